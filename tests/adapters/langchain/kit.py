"""What these tests share: hedged models over fake engines or scripted members, and ears for what they do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any
from uuid import UUID

import openai
from langchain_anthropic import ChatAnthropic
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.rate_limiters import BaseRateLimiter
from langchain_openai import ChatOpenAI
from pydantic import Field

from agent_hedge import FleetBudget, Hedger, Never, Target
from agent_hedge.adapters.langchain.model import HedgedChatModel
from agent_hedge.core.events import AttemptRefused, Event
from agent_hedge.testing.engine import FakeEngine

AMPLE: dict[str, Any] = {"share": 1.0, "floor": 100_000, "burst": 100_000, "recoveries_per_minute": 100_000}

Step = float | str | BaseException | ChatGenerationChunk
"""Of a scripted stream: seconds to sleep, text to say, an error to raise, or a chunk as it is."""


def ample(**settings: Any) -> Hedger:
    """Return a hedger that can afford everything; unless told otherwise it hedges nothing by itself."""
    defaults: dict[str, Any] = {"policy": Never(), "budget": FleetBudget(**AMPLE)}
    return Hedger(**(defaults | settings))


def plain(engine: FakeEngine, **settings: Any) -> ChatOpenAI:
    """Return the model that a user would have without us."""
    return ChatOpenAI(**({"model": "gpt-4o-mini", "base_url": engine.base_url, "api_key": "none"} | settings))


def anthropic(**settings: Any) -> ChatAnthropic:
    """Return a model of the other provider."""
    return ChatAnthropic(**({"model": "claude-sonnet-4-5", "api_key": "none"} | settings))


def bare(engine: FakeEngine, **settings: Any) -> ChatOpenAI:
    """Return a `plain` model to be called itself, on this test's loop: its package shares clients between loops."""
    return plain(engine, http_async_client=openai.DefaultAsyncHttpxClient(), **settings)


def hedged(
    engines: Sequence[FakeEngine],
    hedger: Hedger | None = None,
    *,
    options: dict[str, Any] | None = None,
    **settings: Any,
) -> HedgedChatModel:
    """Return the hedged model over one `plain` member an engine, named 0, 1...; `options` are those of `chat_model`."""
    members = [Target(str(number), plain(engine, **settings)) for number, engine in enumerate(engines)]
    return (hedger or ample()).chat_model(*members, **(options or {}))


def requests(engines: Iterable[FakeEngine]) -> int:
    """Return how many requests for tokens the engines have received."""
    return sum(len(engine.records) for engine in engines)


def anthropic_body(*blocks: dict[str, Any]) -> bytes:
    """Return a stream of the other provider's, with these content blocks."""
    message: dict[str, Any] = {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": []}
    message |= {"stop_reason": None, "stop_sequence": None, "usage": {"input_tokens": 3, "output_tokens": 1}}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message}]
    for index, block in enumerate(blocks):
        start: dict[str, Any] = {"type": "text", "text": ""}
        delta: dict[str, Any] = {"type": "text_delta", "text": block.get("text")}
        if "input" in block:
            start = {"type": "tool_use", "id": "toolu_1", "name": block["name"], "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    stop = {"stop_reason": "end_turn", "stop_sequence": None}
    events += [{"type": "message_delta", "delta": stop, "usage": {"output_tokens": 5}}, {"type": "message_stop"}]
    return b"".join(b"event: " + e["type"].encode() + b"\ndata: " + json.dumps(e).encode() + b"\n\n" for e in events)


def said(message: BaseMessage) -> dict[str, Any]:
    """Return what a hedged model says of an answer."""
    summary: dict[str, Any] = message.response_metadata["agent_hedge"]
    return summary


def text(content: str, **fields: Any) -> ChatGenerationChunk:
    return ChatGenerationChunk(message=AIMessageChunk(content=content, **fields))


def usage(tokens: int) -> ChatGenerationChunk:
    counts = UsageMetadata(input_tokens=1, output_tokens=tokens, total_tokens=1 + tokens)
    return text("", usage_metadata=counts, response_metadata={"model_name": "scripted"}, chunk_position="last")


class Scripted(BaseChatModel):
    """Streams a script; `script` is one list of steps, or a function of the call's number. Counts what is alive."""

    script: list[Any] | Callable[[int], list[Any]] = Field(default_factory=list)
    model_name: str = "scripted"
    temperature: float | None = None
    calls: list[dict[str, Any]] = Field(default_factory=list)
    alive: list[int] = Field(default_factory=list)

    def __init__(self, *script: Step, **fields: Any) -> None:
        super().__init__(**({"script": list(script)} | fields))

    def __repr__(self) -> str:  # every run asks for it, to say which model it is of
        return f"{type(self).__name__}({self.model_name!r})"

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.bind(tools=[{"name": f"{self.model_name}:{tool}"} for tool in tools], **kwargs)

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> ChatResult:
        answer = "".join([chunk.text async for chunk in Scripted._astream(self, messages, stop, **kwargs)])
        return ChatResult(generations=[ChatGeneration(message=AIMessage(answer))])

    async def _astream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        number = len(self.calls)
        self.calls.append({"messages": messages, "stop": stop, **kwargs})
        self.alive.append(number)
        try:
            for step in self.script(number) if callable(self.script) else self.script:
                if isinstance(step, BaseException):
                    raise step
                if isinstance(step, int | float):
                    await asyncio.sleep(step)
                else:
                    yield text(step) if isinstance(step, str) else step.model_copy(deep=True)
        finally:
            self.alive.remove(number)


class Whole(Scripted):
    """A member that cannot stream: the script's text comes all at once."""

    def __init__(self, *script: Step, **fields: Any) -> None:
        super().__init__(*script, **fields)

    _astream = BaseChatModel._astream


class Limiter(BaseRateLimiter):
    """A rate limiter with so many turns left; one that waits gets its turn at once, and is counted."""

    def __init__(self, turns: int = 1_000) -> None:
        self.turns = turns
        self.taken = 0
        self.refused = 0
        self.waited = 0

    def acquire(self, *, blocking: bool = True) -> bool:
        if self.turns == 0 and not blocking:
            self.refused += 1
            return False
        self.waited += self.turns == 0
        self.turns = max(0, self.turns - 1)
        self.taken += 1
        return True

    async def aacquire(self, *, blocking: bool = True) -> bool:
        return self.acquire(blocking=blocking)


class Ear(BaseCallbackHandler):
    """Hears a run: what every callback was given that a user could see, without ids."""

    run_inline = True

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.heard]

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: UUID, **given: Any) -> None:
        given.pop("parent_run_id", None)
        self.heard.append(("start", (serialized, messages, given)))

    def on_llm_new_token(self, token: Any, **given: Any) -> None:
        self.heard.append(("token", token))

    def on_llm_end(self, response: Any, **given: Any) -> None:
        self.heard.append(("end", response))

    def on_llm_error(self, error: BaseException, **given: Any) -> None:
        self.heard.append(("error", type(error)))


class Refusals:
    """An observer that keeps the reasons of refusals."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, AttemptRefused):
            self.reasons.append(event.reason)
