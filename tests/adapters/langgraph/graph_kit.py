"""What the conformance suite is made of: a scripted chat model, a kit that wraps or does not, and what a caller sees.

A scenario is an async function of a `Kit`. It is run unhedged and then hedged, with hedges forced on every step and
each attempt winning in turn; what it returns is compared after ids and times have been named in order of appearance.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, AnyMessage, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph.message import add_messages
from langgraph.types import Interrupt, StateSnapshot
from pydantic import Field
from typing_extensions import TypedDict

from agent_hedge import Effect, Hedger, Target
from agent_hedge.core.events import AttemptEnded, AttemptStarted, Event
from agent_hedge.core.scope import Forced, forced
from agent_hedge.testing.clock import run_virtual

Unit = Literal["plain", "model", "node"]
MODES = ["messages", "custom", "updates", "values", "tasks", "debug", "checkpoints"]
TTFT, GAP = 0.05, 0.01


class State(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[Any], lambda old, new: [*old, *new]]
    n: int


class Chat(BaseChatModel):
    """Answers as `answer` says, word by word, after `ttft` seconds; the same for the same messages."""

    label: str = "m"
    ttft: float = TTFT
    answer: Callable[[list[BaseMessage]], AIMessage | Exception] = Field(default_factory=lambda: echo)
    calls: list[str] = Field(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def _chunks(self, messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
        answer = self.answer(messages)
        if isinstance(answer, Exception):
            raise answer
        calls = [
            tool_call_chunk(name=call["name"], args=_json(call["args"]), id=call["id"], index=index)
            for index, call in enumerate(answer.tool_calls)
        ]
        if calls:
            yield AIMessageChunk(content="", tool_call_chunks=calls)
        words = str(answer.content).split(" ") if answer.content else []
        for index, word in enumerate(words):
            yield AIMessageChunk(content=word if index == len(words) - 1 else f"{word} ")
        yield AIMessageChunk(content="", chunk_position="last")

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        self.calls.append("generate")
        answer = self.answer(messages)
        if isinstance(answer, Exception):
            raise answer
        return ChatResult(generations=[ChatGeneration(message=answer.model_copy())])

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        await asyncio.sleep(self.ttft)
        return self._generate(messages)

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        self.calls.append("stream")
        for chunk in self._chunks(messages):
            yield ChatGenerationChunk(message=chunk)

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        self.calls.append("astream")
        try:
            await asyncio.sleep(self.ttft)
            for chunk in self._chunks(messages):
                yield ChatGenerationChunk(message=chunk)
                await asyncio.sleep(GAP)
        except (asyncio.CancelledError, GeneratorExit):
            self.calls.append("cancelled")
            raise

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[convert_to_openai_tool(tool) for tool in tools], **kwargs)


def _json(value: Any) -> str:
    import json

    return json.dumps(value)


def echo(messages: list[BaseMessage]) -> AIMessage:
    """Answer with what was said last."""
    last = messages[-1].content if messages else "nothing"
    return AIMessage(content=f"you said {last}"[:60])


@dataclasses.dataclass
class Kit:
    """Makes models and nodes that are plain, or hedged at one unit."""

    unit: Unit
    hedger: Hedger
    events: list[Event]
    models: list[Chat] = dataclasses.field(default_factory=list)

    def chat(self, answer: Callable[[list[BaseMessage]], AIMessage | Exception] = echo, **settings: Any) -> Any:
        """Return a model: hedged over two members at unit "model", plain elsewhere."""
        first = Chat(answer=answer, **settings)
        self.models.append(first)
        if self.unit != "model":
            return first
        second = Chat(answer=answer, label="second", **settings)
        self.models.append(second)
        return self.hedger.chat_model(Target("first", first), Target("second", second), family="scripted")

    def node(self, action: Any, **settings: Any) -> Any:
        """Return the node, wrapped at this kit's unit."""
        if self.unit == "plain":
            return action
        if self.unit == "model":
            return self.hedger.node(action)
        settings = {"effect": Effect.READ_ONLY, "targets": ["one", "two"], **settings}
        return self.hedger.node(action, unit="node", **settings)

    @property
    def hedges(self) -> int:
        return sum(isinstance(event, AttemptStarted) and event.attempt.number > 0 for event in self.events)

    @property
    def unended(self) -> int:
        started = sum(isinstance(event, AttemptStarted) for event in self.events)
        return started - sum(isinstance(event, AttemptEnded) for event in self.events)


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


def make_kit(unit: Unit, **settings: Any) -> Kit:
    recorder = Recorder()
    return Kit(unit, Hedger(observers=[recorder], **settings), recorder.events)


Scenario = Callable[[Kit], Awaitable[Any]]


def play(scenario: Scenario, unit: Unit, winner: int | None = None) -> tuple[Any, Kit]:
    """Run a scenario in virtual time; return what it saw, with ids and times named, and its kit."""
    kit = make_kit(unit)

    async def main() -> Any:
        seen = await scenario(kit)
        await kit.hedger.aclose()
        mine = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not mine]
        assert not left, f"tasks are left: {left}"
        return seen

    token = forced.set(None if winner is None else Forced(hedge=True, winner=winner))
    try:
        return normal(run_virtual(main)), kit
    finally:
        forced.reset(token)


# --- what a caller sees, up to ids and times ------------------------------------------------------------------------

_ID = re.compile(
    r"lc_run--[0-9a-f-]{36}(?:-\d+)?|(?:run-|call_)?[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
    r"|\b[0-9a-f]{32}\b"
)
_ELAPSED = re.compile(r"elapsed: [0-9.]+s")
_TIMES = frozenset({"ts", "timestamp", "created_at", "agent_hedge", "agent_hedge_unit", "versions_seen", "seq"})


def normal(seen: Any) -> Any:
    """Return plain data in which ids are numbered by appearance and times are left out."""
    names: dict[str, str] = {}

    def text(value: str) -> str:
        value = _ID.sub(lambda found: names.setdefault(found[0], f"<{len(names)}>"), value)
        return _ELAPSED.sub("elapsed", value)

    def walk(value: Any) -> Any:
        if isinstance(value, str):
            return text(value)
        if isinstance(value, BaseMessage):
            return {"message": type(value).__name__, **walk(value.model_dump(exclude={"type"}))}
        if isinstance(value, Interrupt):
            return ("interrupt", walk(value.value), walk(value.id))
        if isinstance(value, StateSnapshot):
            return walk({"values": value.values, "next": value.next, "metadata": value.metadata, "tasks": value.tasks})
        if isinstance(value, BaseException):
            return (type(value).__name__, text(str(value)))
        if isinstance(value, Mapping):
            return {text(str(key)): walk(item) for key, item in value.items() if key not in _TIMES and not _ours(item)}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return (type(value).__name__, [walk(getattr(value, each.name)) for each in dataclasses.fields(value)])
        if isinstance(value, tuple) and (named := getattr(value, "_asdict", None)) is not None:
            return walk(named())
        if isinstance(value, set | frozenset):
            return sorted(map(str, value))
        if isinstance(value, list | tuple):
            return [walk(item) for item in value]
        return value if isinstance(value, int | float | bool | None) else f"<{type(value).__name__}>"

    return walk(seen)


def _ours(value: Any) -> bool:
    """Whether this holds nothing but what a hedged model adds (DESIGN 5.19)."""
    return isinstance(value, Mapping) and set(value) <= {"agent_hedge"}


async def everything(graph: Any, given: Any, config: RunnableConfig | None = None, **settings: Any) -> list[Any]:
    """Return every stream part of a run, subgraphs included; an error comes last."""
    parts: list[Any] = []
    try:
        async for part in graph.astream(given, config, stream_mode=MODES, subgraphs=True, **settings):
            parts.append(part)  # noqa: PERF401 - what came before an error counts
    except Exception as error:
        parts.append(error)
    return parts


async def checkpoints(graph: Any, config: RunnableConfig) -> list[Any]:
    """Return the state with its subgraphs, and the history."""
    state = await graph.aget_state(config, subgraphs=True)
    return [state, [snapshot async for snapshot in graph.aget_state_history(config)]]


def thread(name: str = "t") -> RunnableConfig:
    return {"configurable": {"thread_id": name}}
