"""What a fake engine says: a scripted reply, or one derived from the prompt, the same for the same prompt."""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from random import Random
from typing import Any

from agent_hedge.testing.engine.request import BadRequestError, Request
from agent_hedge.testing.engine.schema import Filler, quoted


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool; `arguments` as a mapping, or as the exact text to send. The `id` is made up when empty."""

    name: str
    arguments: Mapping[str, Any] | str = "{}"
    id: str = ""

    @property
    def text(self) -> str:
        """The arguments as they go over the wire."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """One answer. Its parts are sent in this order: reasoning, refusal, text, tool calls."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    reasoning: str = ""
    refusal: str = ""
    finish_reason: str = ""


Replies = Callable[[Request], Reply | str | None] | Iterable[Reply | str] | None
"""A function of the request (None: derive the answer), or a script for the next requests."""


class ReplyPlan:
    """Says what a request is answered: what was scripted, else what follows from the prompt."""

    def __init__(self, replies: Replies = None) -> None:
        self._function = replies if callable(replies) else None
        self._script = deque(() if callable(replies) else replies or ())

    def take(self, request: Request) -> Reply:
        """Return the reply to this request, using up one of a script."""
        if self._script:
            reply: Reply | str | None = self._script.popleft()
        else:
            reply = self._function(request) if self._function is not None else None
        if isinstance(reply, str):
            return Reply(text=reply)
        return derived(request) if reply is None else reply


_VOCABULARY = (
    "after again all also and any as at because before better both by case change clear close come each early end even "
    "every fact far few first for from good great group hand how if in into just keep know large last late less like "
    "long made make many more most much near next of on once one only open order other out over part place point quite "
    "right same see set side since slow small so some step still such sure take than that the then there time turn two "
    "under up use very way well when where which while with work"
)


def derived(request: Request) -> Reply:
    """Answer without a mind: call the tools the prompt names, fill the schema asked for, or say some words."""
    body = request.json
    choice = body.get("tool_choice", "auto")
    functions = request.tools if choice != "none" else []
    forced = _forced(choice, functions)
    if functions and (forced or request.last_role != "tool"):
        return Reply(tool_calls=_calls(request, forced or functions, several=len(forced) != 1))
    layout = body.get("response_format") or {}
    if layout.get("type") == "json_schema":
        schema = (layout.get("json_schema") or {}).get("schema") or {"type": "object"}
        return Reply(text=json.dumps(Filler(request.prompt).fill(schema), ensure_ascii=False))
    if layout.get("type") == "json_object":
        keys = [word for word in quoted(request.prompt) if word.isidentifier()] or ["answer"]
        return Reply(text=json.dumps(dict.fromkeys(keys, _words(request.prompt, 8)), ensure_ascii=False))
    return Reply(text=_words(request.prompt, 0))


def _forced(choice: Any, functions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the functions one of which must be called; none where the model is free."""
    if isinstance(choice, dict):
        name = (choice.get("function") or {}).get("name")
        chosen = [function for function in functions if function["name"] == name]
        if not chosen:
            raise BadRequestError(f"tool_choice names {name!r}, which is not among the tools")
        return chosen
    return functions if choice in ("required", "any") else []


def _calls(request: Request, functions: list[dict[str, Any]], *, several: bool) -> tuple[ToolCall, ...]:
    """One call for each tool the prompt names, in its order; of the first tool where it names none."""
    prompt = request.prompt
    found = {function["name"]: re.search(rf"\b{re.escape(function['name'])}\b", prompt) for function in functions}
    named = [function for function in functions if found[function["name"]] is not None]
    named.sort(key=lambda function: found[function["name"]].start())  # type: ignore[union-attr]
    if not several or request.json.get("parallel_tool_calls") is False:
        named = named[:1]
    filler = Filler(prompt, skip=found)
    return tuple(
        ToolCall(function["name"], filler.fill(function.get("parameters") or {"type": "object"}))
        for function in named or functions[:1]
    )


def _words(prompt: str, length: int) -> str:
    """Return some words that depend on the prompt alone; a `length` of 0 draws one between 12 and 40."""
    random = Random(int.from_bytes(blake2b(prompt.encode(), digest_size=8).digest()))
    words = random.choices(_VOCABULARY.split(), k=length or random.randint(12, 40))
    about = " ".join(prompt.split()[:6])
    return (f"On {about}: " if about and not length else "") + " ".join(words) + "."
