"""The wire form of a chat completion: one JSON document, or a stream of chunks with one token each."""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain, zip_longest
from typing import Any, Protocol

from agent_hedge.testing.engine.replies import Reply
from agent_hedge.testing.engine.request import BadRequestError, Request

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
_TOKEN = re.compile(r"\s*\S{1,8}|\s+")
Delta = dict[str, Any]


class Answer(Protocol):
    """What is written while the tokens of a request are computed."""

    content_type: str
    streamed: bool

    @property
    def finish(self) -> str:
        """Why it ends when nothing goes wrong, in vLLM's words: ``stop`` or ``length``."""
        ...

    @property
    def tokens(self) -> int:
        """How many tokens it takes to compute, at least 1."""
        ...

    def prelude(self) -> bytes:
        """What can be sent before the first token, empty when there is nothing."""
        ...

    def piece(self, index: int) -> bytes:
        """What is sent when token `index` has been computed."""
        ...

    def closing(self, reason: str = "") -> bytes:
        """What follows the last token; `reason` overrides the finish reason (``abort``)."""
        ...


def tokens_of(text: str) -> list[str]:
    """Split a text into pieces of at most eight letters, each with the blanks before it; joined they are the text."""
    return _TOKEN.findall(text)


@dataclass(frozen=True, slots=True)
class Choice:
    """One of the `n` answers: its deltas, one a token, and why it ends."""

    deltas: list[Delta]
    finish: str


class Completion:
    """The content of a chat completion, whatever its wire form. Tokens of several choices take turns."""

    def __init__(self, request: Request, replies: list[Reply], id: str, model: str) -> None:  # noqa: A002
        self.id = id
        self.model = str(request.json.get("model") or model)
        self.prompt_tokens = request.prompt_tokens
        self.choices = [_choice(reply, request, f"{id}/{index}") for index, reply in enumerate(replies)]
        self.turns = _turns(self.choices)
        self.include_usage = bool((request.json.get("stream_options") or {}).get("include_usage"))
        self._created = int(time.time())

    @property
    def finish(self) -> str:
        """``length`` when a choice was cut by its token limit, else ``stop``."""
        return "length" if any(choice.finish == "length" for choice in self.choices) else "stop"

    def usage(self, completion_tokens: int) -> dict[str, int]:
        """Return the usage object for so many tokens of answer."""
        total = self.prompt_tokens + completion_tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": total,
        }

    def body(self, kind: str, choices: list[dict[str, Any]], **more: Any) -> str:
        """Return the JSON of an object of that `kind`."""
        head = {"id": self.id, "object": kind, "created": self._created, "model": self.model, "choices": choices}
        return _json(head | more)


class ChatStream:
    """A completion as server-sent events."""

    content_type = "text/event-stream; charset=utf-8"
    streamed = True

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._started: set[int] = set()
        self._left = [len(choice.deltas) for choice in completion.choices]
        self._written = 0

    @property
    def finish(self) -> str:
        return self._completion.finish

    @property
    def tokens(self) -> int:
        return len(self._completion.turns)

    def prelude(self) -> bytes:
        return b"".join(self._role(index) for index in range(len(self._left)))

    def piece(self, index: int) -> bytes:
        choice, delta = self._completion.turns[index]
        self._written += 1
        self._left[choice] -= 1
        data = self._role(choice) + self._chunk(choice, delta)
        return data if self._left[choice] else data + self._chunk(choice, {}, self._completion.choices[choice].finish)

    def closing(self, reason: str = "") -> bytes:
        unfinished = [index for index, left in enumerate(self._left) if left and reason]
        data = b"".join(self._chunk(index, {}, reason) for index in unfinished)
        if self._completion.include_usage:
            usage = self._completion.usage(self._written)
            data += _event(self._completion.body("chat.completion.chunk", [], usage=usage))
        return data + b"data: [DONE]\n\n"

    def _role(self, index: int) -> bytes:
        if index in self._started:
            return b""
        self._started.add(index)
        return self._chunk(index, {"role": "assistant", "content": ""})

    def _chunk(self, index: int, delta: Delta, finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "finish_reason": finish}
        return _event(self._completion.body("chat.completion.chunk", [choice]))


class ChatDocument:
    """A completion as one JSON document, sent when its last token has been computed."""

    content_type = "application/json"
    streamed = False

    def __init__(self, completion: Completion) -> None:
        self._completion = completion
        self._done: list[list[Delta]] = [[] for _ in completion.choices]

    @property
    def finish(self) -> str:
        return self._completion.finish

    @property
    def tokens(self) -> int:
        return len(self._completion.turns)

    def prelude(self) -> bytes:
        return b""

    def piece(self, index: int) -> bytes:
        choice, delta = self._completion.turns[index]
        self._done[choice].append(delta)
        return b""

    def closing(self, reason: str = "") -> bytes:
        choices = []
        for index, (choice, done) in enumerate(zip(self._completion.choices, self._done, strict=True)):
            finish = reason if reason and len(done) < len(choice.deltas) else choice.finish
            choices.append({"index": index, "message": _message(done), "finish_reason": finish})
        usage = self._completion.usage(sum(map(len, self._done)))
        return self._completion.body("chat.completion", choices, usage=usage).encode()


def _event(data: str) -> bytes:
    return f"data: {data}\n\n".encode()


def _choice(reply: Reply, request: Request, seed: str) -> Choice:
    """Turn a reply into deltas within ``stop`` and ``max_tokens``."""
    text, stopped = _until_stop(reply.text, request.json.get("stop"))
    deltas: list[Delta] = [{"reasoning_content": token} for token in tokens_of(reply.reasoning)]
    deltas += [{"refusal": token} for token in tokens_of(reply.refusal)]
    deltas += [{"content": token} for token in tokens_of(text)]
    for index, call in enumerate(() if stopped else reply.tool_calls):
        made_up = "call_" + blake2b(f"{seed}/{index}".encode(), digest_size=12).hexdigest()
        head = {"index": index, "id": call.id or made_up, "type": "function"}
        deltas.append({"tool_calls": [head | {"function": {"name": call.name, "arguments": ""}}]})
        deltas += [{"tool_calls": [{"index": index, "function": {"arguments": part}}]} for part in tokens_of(call.text)]
    finish = reply.finish_reason or ("tool_calls" if reply.tool_calls and not stopped else "stop")
    limit = _limit(request)
    if limit is not None and limit < len(deltas):
        return Choice(deltas[:limit], "length")
    return Choice(deltas or [{"content": ""}], finish)


def _until_stop(text: str, stop: Any) -> tuple[str, bool]:
    words = [stop] if isinstance(stop, str) else stop or []
    found = [position for word in words if word and (position := text.find(word)) >= 0]
    return (text[: min(found)], True) if found else (text, False)


def _limit(request: Request) -> int | None:
    for name in ("max_completion_tokens", "max_tokens"):
        limit = request.json.get(name)
        if limit is not None:
            if not isinstance(limit, int) or limit < 1:
                raise BadRequestError(f"{name!r} must be a positive integer, not {limit!r}")
            return limit
    return None


def _turns(choices: list[Choice]) -> list[tuple[int, Delta]]:
    rows = [[(index, delta) for delta in choice.deltas] for index, choice in enumerate(choices)]
    return [turn for turn in chain.from_iterable(zip_longest(*rows)) if turn is not None]


def _message(deltas: list[Delta]) -> dict[str, Any]:
    """Join the deltas of a choice into a message, as a client would."""
    message: dict[str, Any] = {"role": "assistant", "content": None}
    calls: dict[int, dict[str, Any]] = {}
    for delta in deltas:
        for part in delta.get("tool_calls", ()):
            if "id" in part:
                function = dict(part["function"])
                calls[part["index"]] = {"id": part["id"], "type": part["type"], "function": function}
            else:
                calls[part["index"]]["function"]["arguments"] += part["function"]["arguments"]
        for name in ("content", "reasoning_content", "refusal"):
            if name in delta:
                message[name] = (message.get(name) or "") + delta[name]
    return message | {"tool_calls": list(calls.values())} if calls else message
