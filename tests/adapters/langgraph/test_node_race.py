"""A node raced as a whole: what decides it, what bars it, and what of a loser stays unseen (issue 5, 1)."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
from langchain_core.callbacks import (
    AsyncCallbackHandler,
    BaseCallbackHandler,
    get_usage_metadata_callback,
)
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langchain_core.tracers.context import collect_runs
from langchain_core.tracers.langchain import LangChainTracer
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.errors import GraphDrained, NodeCancelledError, NodeTimeoutError
from langgraph.func import task
from langgraph.graph import START, StateGraph
from langgraph.pregel._loop import AsyncPregelLoop
from langgraph.runtime import RunControl
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Send, TimeoutPolicy, interrupt
from pydantic import BaseModel, Field

from agent_hedge import (
    AllAttemptsFailed,
    DeadlineExceeded,
    Effect,
    Fixed,
    FleetBudget,
    Hedger,
    Never,
    Target,
    current_attempt,
)
from agent_hedge.adapters.langgraph import private
from agent_hedge.adapters.langgraph.attempt import isolated
from agent_hedge.core.events import AttemptEnded, AttemptRefused, AttemptStarted, Committed, FirstToken, Reason
from agent_hedge.core.scope import Forced, forced
from agent_hedge.core.step import Verdict
from agent_hedge.errors import AnswerRejected
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat, Kit, State, echo, make_kit, normal, thread

Builder = StateGraph[Any, Any, Any, Any]


def hi(**more: Any) -> Any:
    return {"messages": [HumanMessage("hi", id="q")], "log": [], **more}


def single(action: Any, name: str = "ask", **settings: Any) -> Builder:
    builder: Builder = StateGraph(State)
    builder.add_node(name, action, **settings)
    builder.add_edge(START, name)
    return builder


def raced(kit: Kit, action: Any, **settings: Any) -> Any:
    settings = {"effect": Effect.READ_ONLY, "trigger": "total", "policy": Fixed(0.1), "targets": ["a", "b"], **settings}
    return kit.hedger.node(action, unit="node", **settings)


def forcing(main: Any, winner: int) -> Any:
    token = forced.set(Forced(hedge=True, winner=winner))
    try:
        return run_virtual(main)
    finally:
        forced.reset(token)


def refusals(kit: Kit) -> list[tuple[Reason, str]]:
    return [(event.reason, event.detail) for event in kit.events if isinstance(event, AttemptRefused)]


def verdicts(kit: Kit) -> list[Verdict]:
    return [event.verdict for event in kit.events if isinstance(event, AttemptEnded)]


SLOW_THEN_FAST = (5.0, 0.2)


async def by_number(state: State) -> State:
    """Take 5 s as the primary, and 0.2 s as the hedge."""
    active = current_attempt()
    number = active.number if active is not None else 0
    get_stream_writer()({"begins": number})
    await asyncio.sleep(SLOW_THEN_FAST[number])
    return {"log": [number]}


# --- what decides it ------------------------------------------------------------------------------------------------


def test_r05_the_first_result_wins_at_its_exact_instant() -> None:
    kit = make_kit("node")

    async def main() -> Any:
        loop = asyncio.get_running_loop()
        parts = [part async for part in single(raced(kit, by_number)).compile().astream(hi(), stream_mode="custom")]
        return parts, loop.time()

    parts, at = run_virtual(main)
    assert parts == [{"begins": 1}]
    assert at == pytest.approx(0.3)
    assert sorted(verdicts(kit)) == [Verdict.SUPERSEDED, Verdict.WON]


def test_r05_the_first_token_wins_and_what_follows_flows_live() -> None:
    kit = make_kit("node")
    models = {"a": Chat(ttft=5.0), "b": Chat(ttft=0.2)}

    async def ask(state: State) -> State:
        get_stream_writer()("before")
        answer = await models[current_attempt().target.name].ainvoke("x")  # type: ignore[union-attr]
        get_stream_writer()("between")
        await asyncio.sleep(1.0)
        get_stream_writer()("after")
        return {"messages": [answer]}

    async def main() -> Any:
        graph: Any = single(raced(kit, ask, trigger="first")).compile()
        loop = asyncio.get_running_loop()
        stream = graph.astream(hi(), stream_mode=["custom", "messages", "updates"])
        return [(round(loop.time(), 3), part if mode == "custom" else mode) async for mode, part in stream]

    parts: list[tuple[float, str]] = run_virtual(main)
    assert parts == [
        (0.3, "before"),  # held back from 0.1 s on, when the hedge began: until the race was decided
        (0.3, "messages"),
        (0.31, "messages"),
        (0.32, "messages"),
        (0.33, "messages"),
        (0.34, "between"),
        (1.34, "after"),
        (1.34, "updates"),
    ]
    committed = next(event for event in kit.events if isinstance(event, Committed))
    assert committed.at == pytest.approx(0.3), "before the result, which takes a second more"


def test_r05_the_stream_of_a_subgraph_flows_live_after_the_first_token() -> None:
    kit = make_kit("node")
    model = Chat(ttft=0.2)

    async def speak(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    async def count(state: State) -> State:
        await asyncio.sleep(1.0)
        return {"n": state.get("n", 0) + 1}

    inner: Builder = StateGraph(State)
    inner.add_sequence([("speak", speak), ("count", count)])
    inner.add_edge(START, "speak")

    async def main() -> Any:
        graph: Any = single(raced(kit, inner.compile(), trigger="first", policy=Fixed(9.0))).compile()
        loop = asyncio.get_running_loop()
        stream = graph.astream(hi(), stream_mode=["messages", "updates"], subgraphs=True)
        return [
            (round(loop.time(), 3), next(iter(part)) if mode == "updates" else mode) async for _, mode, part in stream
        ]

    parts: list[tuple[float, str]] = run_virtual(main)
    assert [part for part in parts if part[1] != "messages"] == [(0.24, "speak"), (1.24, "count"), (1.24, "ask")]
    assert [at for at, mode in parts if mode == "messages"] == [0.2, 0.21, 0.22, 0.23]


def test_r05_a_node_that_accept_judges_is_shown_when_it_ends() -> None:
    kit = make_kit("node")
    model = Chat(ttft=0.2)

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    async def main() -> Any:
        node = raced(kit, ask, trigger="first", policy=Fixed(9.0), accept=lambda result: True)
        loop = asyncio.get_running_loop()
        stream = single(node).compile().astream(hi(), stream_mode="messages")
        return {round(loop.time(), 3) async for _ in stream}

    assert run_virtual(main) == {0.24}


def test_r02_an_invoked_model_is_made_to_stream_so_that_its_first_token_is_seen() -> None:
    kit = make_kit("node")
    model = Chat(ttft=0.05)

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    run_virtual(lambda: single(raced(kit, ask, trigger="first")).compile().ainvoke(hi()))
    assert [event.latency for event in kit.events if isinstance(event, FirstToken)] == [pytest.approx(0.05)]
    assert model.calls == ["astream"]


def test_r04_first_tells_which_custom_item_counts() -> None:
    kit = make_kit("node")

    async def sdk(state: State) -> State:
        number = current_attempt().number  # type: ignore[union-attr]
        get_stream_writer()("role")
        await asyncio.sleep((0.05, 0.01)[number])
        get_stream_writer()("text")
        await asyncio.sleep(10.0)
        return {"log": [number]}

    node = raced(kit, sdk, trigger="first", first=lambda item: item == "text")
    assert run_virtual(lambda: single(node).compile().ainvoke(hi()))["log"] == [0]
    assert kit.hedges == 0, "the first item disarms the trigger at 0.05 s"


def test_r01_an_unacceptable_result_is_a_recoverable_failure() -> None:
    kit = make_kit("node")
    node = raced(kit, by_number, accept=lambda result: result["log"] == [1], policy=Fixed(60.0))
    shown = run_virtual(lambda: _custom(single(node)))
    assert shown == [{"begins": 1}]
    kit = make_kit("node")
    node = raced(kit, by_number, accept=lambda result: False, policy=Fixed(60.0))
    with pytest.raises(AnswerRejected):
        run_virtual(lambda: single(node).compile().ainvoke(hi()))


async def _custom(builder: Builder) -> list[Any]:
    return [part async for part in builder.compile().astream(hi(), stream_mode="custom")]


def test_r01_when_all_fail_the_caller_gets_the_primarys_error_and_what_it_showed() -> None:
    kit = make_kit("node")

    async def fails(state: State) -> State:
        get_stream_writer()({"by": current_attempt().number})  # type: ignore[union-attr]
        raise ConnectionError(current_attempt().number)  # type: ignore[union-attr]

    shown: list[Any] = []

    async def main() -> None:
        async for part in single(raced(kit, fails)).compile().astream(hi(), stream_mode="custom"):
            shown.append(part)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(ConnectionError) as raised:
        run_virtual(main)
    assert raised.value.args == (0,)
    assert isinstance(raised.value.__cause__, AllAttemptsFailed)
    assert shown == [{"by": 0}]


def test_r01_recover_widens_what_is_recoverable() -> None:
    for recover, expected in (((), None), (KeyError, [1])):
        kit = make_kit("node")

        async def fails_once(state: State) -> State:
            if current_attempt().number == 0:  # type: ignore[union-attr]
                raise KeyError("x")
            return {"log": [1]}

        graph = single(raced(kit, fails_once, recover=recover)).compile()
        if expected is None:
            with pytest.raises(KeyError):
                run_virtual(partial(graph.ainvoke, hi()))
        else:
            assert run_virtual(partial(graph.ainvoke, hi()))["log"] == expected


# --- what an attempt has of its own -----------------------------------------------------------------------------------


def test_r08_targets_reach_the_node_in_both_ways() -> None:
    kit, found = make_kit("node"), []
    targets = [Target("us", {"region": "us-1"}), Target("eu", {"region": "eu-1"})]

    async def ask(state: State, config: RunnableConfig) -> State:
        active = current_attempt()
        assert active is not None
        found.append((active.target.name, config["configurable"]["region"]))
        await asyncio.sleep(SLOW_THEN_FAST[active.number])
        return {}

    run_virtual(lambda: single(raced(kit, ask, targets=targets)).compile().ainvoke(hi()))
    assert found == [("us", "us-1"), ("eu", "eu-1")]


class PydanticState(BaseModel):
    log: list[Any] = Field(default_factory=list)


@dataclass
class DataclassState:
    log: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class SlotsState:
    log: list[Any] = field(default_factory=list)


@pytest.mark.parametrize("winner", [0, 1])
@pytest.mark.parametrize("schema", [State, PydanticState, DataclassState, SlotsState])
def test_r08_attempts_do_not_see_each_others_changes_of_the_state(schema: Any, winner: int) -> None:
    kit = make_kit("node")

    async def appends(state: Any) -> Any:
        log = state["log"] if isinstance(state, dict) else state.log
        log.append(current_attempt().number)  # type: ignore[union-attr]
        log[0]["by"].append(current_attempt().number)  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
        return {"log": list(log)}

    builder: Builder = StateGraph(schema)
    builder.add_node("ask", raced(kit, appends), input_schema=schema)
    builder.add_edge(START, "ask")
    log = forcing(lambda: builder.compile().ainvoke({"log": [{"by": []}]}), winner)["log"]
    assert log[-2:] == [{"by": [winner]}, winner]


@pytest.mark.parametrize("winner", [None, 0, 1])
def test_r05_what_an_attempt_changes_in_its_input_is_in_no_state(winner: int | None) -> None:
    kit = make_kit("node")

    async def changes(state: State) -> State:
        state["log"][0]["by"].append(current_attempt().number)  # type: ignore[union-attr]
        await asyncio.sleep(0.1)
        return {"n": 1}

    def main() -> Any:
        return single(raced(kit, changes)).compile().ainvoke(hi(log=[{"by": []}]))

    result = run_virtual(main) if winner is None else forcing(main, winner)
    assert result["log"] == [{"by": []}]


def test_r08_a_state_that_holds_itself_is_copied_once() -> None:
    ring: list[Any] = [{"at": 1}]
    ring.append((ring, ring[0]))
    own = isolated(ring)
    assert own is not ring
    assert own[1][0] is own
    assert own[1][1] is own[0]
    assert own[0] is not ring[0]


def test_r08_what_cannot_be_copied_is_shared() -> None:
    lock = threading.Lock()
    assert isolated(lock) is lock
    assert isolated({"lock": [lock]}) == {"lock": [lock]}


@pytest.mark.parametrize("winner", [0, 1])
def test_r08_a_method_that_is_wrapped_in_its_class_keeps_its_object(winner: int) -> None:
    kit = make_kit("node")

    class Agent:
        calls = 0

        async def ask(self, state: State) -> State:
            self.calls += 1
            state["log"].append(current_attempt().number)  # type: ignore[union-attr]
            await asyncio.sleep(0.1)
            return {"log": list(state["log"])}

        ask = raced(kit, ask)  # as a decorator does

    agent = Agent()
    log = forcing(lambda: single(agent.ask).compile().ainvoke(hi()), winner)["log"]
    assert agent.calls == 2
    assert log[-1:] == [winner]


def test_r08_attempts_have_metadata_of_their_own() -> None:
    kit, found = make_kit("node"), []

    async def marks(state: State, config: RunnableConfig) -> State:
        found.append("mark" in config["metadata"])
        config["metadata"]["mark"] = True
        await asyncio.sleep(1.0)
        return {}

    run_virtual(lambda: single(raced(kit, marks)).compile().ainvoke(hi()))
    assert found == [False, False]


@pytest.mark.parametrize("winner", [0, 1])
def test_r05_writes_past_the_result_are_the_winners_only(winner: int) -> None:
    kit = make_kit("node")

    async def writes(state: State, config: RunnableConfig) -> State:
        number = current_attempt().number  # type: ignore[union-attr]
        config["configurable"][private.SEND]([("log", [f"sent by {number}"])])
        await asyncio.sleep(0.1)
        return {"log": [number]}

    graph = single(raced(kit, writes)).compile()
    assert forcing(lambda: graph.ainvoke(hi()), winner)["log"] == [f"sent by {winner}", winner]


class Heard(BaseCallbackHandler):
    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        self.heard.append("start")

    def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
        self.heard.append("token")

    def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
        self.heard.append("end")

    def on_llm_error(self, error: BaseException, **kwargs: Any) -> None:
        self.heard.append(f"error {type(error).__name__}")


class AsyncHeard(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.heard: list[str] = []

    async def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(0)
        self.heard.append("start")

    async def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
        self.heard.append("end")


class OldHeard(BaseCallbackHandler):
    """Knows no chat models: LangChain tells it of one as of any other model."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], **kwargs: Any) -> None:
        self.heard.append(prompts)


class SlotsHeard(Heard):
    """Says by a slot that it hears of models."""

    __slots__ = ("deaf",)

    def __init__(self) -> None:
        super().__init__()
        self.deaf = False

    @property
    def ignore_llm(self) -> bool:
        return self.deaf


class OldAsyncHeard(AsyncCallbackHandler):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    async def on_llm_start(self, serialized: dict[str, Any], prompts: list[str], **kwargs: Any) -> None:
        self.heard.append(prompts)


@pytest.mark.parametrize("winner", [0, 1])
def test_r05_callbacks_hear_of_the_winner_only(winner: int) -> None:
    kit = make_kit("node")
    model = Chat()

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    heard, other, old, old_async, slots = Heard(), AsyncHeard(), OldHeard(), OldAsyncHeard(), SlotsHeard()
    graph = single(raced(kit, ask)).compile()
    forcing(lambda: graph.ainvoke(hi(), {"callbacks": [heard, other, old, old_async, slots]}), winner)
    assert kit.hedges == 1
    assert old.heard == old_async.heard == [["Human: x"]]
    assert heard.heard == slots.heard == ["start", "token", "token", "token", "token", "end"]
    assert other.heard == ["start", "end"]


class Final(Heard):
    """Cannot have a subclass that says no more than its name."""

    def __init_subclass__(cls, *, why: str) -> None:
        raise AssertionError(why)


def test_r05_a_node_whose_handler_cannot_be_held_back_is_not_raced() -> None:
    kit, heard = make_kit("node"), Final()
    graph = single(raced(kit, asks_in_steps)).compile()
    forcing(lambda: graph.ainvoke(hi(), {"callbacks": [heard]}), 1)
    assert kit.hedges == 0
    assert (heard.heard[0], heard.heard[-1]) == ("start", "end")
    assert (Reason.BARRED, "Final would show every attempt") in refusals(kit)


class Metered(Chat):
    """Says what it used with its last chunk; `temperature` is an argument that traces show."""

    temperature: float = 0.5

    @property
    def _identifying_params(self) -> dict[str, Any]:
        return {"temperature": self.temperature}

    def _chunks(self, messages: list[BaseMessage]) -> Iterator[AIMessageChunk]:
        yield from super()._chunks(messages)
        used = UsageMetadata(input_tokens=3, output_tokens=2, total_tokens=5)
        yield AIMessageChunk(content="", usage_metadata=used, response_metadata={"model_name": "m"})


async def asks_in_steps(state: State) -> State:
    before = await RunnableLambda(lambda text: text, name="before").ainvoke("x")
    return {"messages": [await Metered().ainvoke(before, stream=True)]}


@pytest.mark.parametrize("winner", [None, 0, 1])
def test_r05_callbacks_of_a_context_variable_hear_of_the_winner_only(winner: int | None) -> None:
    """LangChain adds such handlers to every call anew: it must find those that wait behind the gate."""
    kit = make_kit("node")
    graph = single(raced(kit, asks_in_steps)).compile()

    async def main() -> Any:
        with get_usage_metadata_callback() as usage, collect_runs() as collected:
            await graph.ainvoke(hi())
        return usage.usage_metadata, [run.name for run in collected.traced_runs]

    usage, runs = run_virtual(main) if winner is None else forcing(main, winner)
    assert usage == {"m": {"input_tokens": 3, "output_tokens": 2, "total_tokens": 5}}
    assert runs == ["before", "Metered", "LangGraph"]


class Traces:
    """What LangSmith is sent."""

    def __init__(self) -> None:
        self.runs: dict[str, Any] = {}

    def create_run(self, **run: Any) -> None:
        self.runs.setdefault(run["name"], []).append(run["extra"]["metadata"])

    def update_run(self, **run: Any) -> None:
        pass


@pytest.mark.parametrize("winner", [0, 1])
def test_r05_langsmith_is_told_of_the_winner_what_it_is_told_of_a_plain_node(winner: int) -> None:
    def traced(node: Any) -> Any:
        traces: Any = Traces()
        tracer = LangChainTracer(client=traces, project_name="p")
        forcing(lambda: single(node).compile().ainvoke(hi(), {"callbacks": [tracer]}), winner)
        return normal(traces.runs)

    kit = make_kit("node")
    seen = traced(raced(kit, asks_in_steps, key="ask"))
    assert kit.hedges == 1
    assert seen["Metered"][0]["temperature"] == 0.5
    assert seen == traced(asks_in_steps)


def test_r07_a_cancelled_winner_closes_its_model_runs() -> None:
    kit = make_kit("node")
    model = Chat(answer=lambda _: echo([HumanMessage("a very long answer of many words indeed, which goes on")]))

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    heard = Heard()
    graph = single(raced(kit, ask), timeout=0.1).compile()

    async def main() -> None:
        with pytest.raises(NodeTimeoutError):
            await graph.ainvoke(hi(), {"callbacks": [heard]})
        await asyncio.sleep(1.0)  # LangGraph does not wait for a node that has timed out

    forcing(main, 1)
    assert heard.heard[0] == "start"
    assert heard.heard[-1] == "error CancelledError"
    assert heard.heard.count("start") == 1


def test_r07_a_cancelled_hedged_model_closes_its_run() -> None:
    hedger = Hedger()
    model = hedger.chat_model(Target("a", Chat(ttft=9.0)), Target("b", Chat(ttft=9.0)), family="scripted")

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    for mode in ("values", "messages"):
        heard = Heard()

        async def main(mode: Any = mode, heard: Heard = heard) -> None:
            graph = single(ask, timeout=0.1).compile()
            with pytest.raises(NodeTimeoutError):
                async for _ in graph.astream(hi(), {"callbacks": [heard]}, stream_mode=mode):
                    pass
            await asyncio.sleep(1.0)  # LangGraph does not wait for a node that has timed out

        run_virtual(main)
        assert heard.heard == ["start", "error CancelledError"], mode


@pytest.mark.parametrize("ticks", range(4))
def test_r07_a_model_cancelled_as_it_starts_closes_its_runs(ticks: int) -> None:
    """As when a branch beside it fails in the same turn of the loop: what was told of a start is told of an end."""
    hedger, both = Hedger(), asyncio.Event()

    class Inline(Heard):
        run_inline = True

        def on_chat_model_start(self, *args: Any, **kwargs: Any) -> None:
            super().on_chat_model_start()
            if len(self.heard) == 2:
                both.set()

    heard = Inline()
    model = hedger.chat_model(Target("a", Chat(ttft=9.0)), Target("b", Chat(ttft=9.0)), family="scripted")

    async def main() -> None:
        call = asyncio.create_task(model.agenerate([[HumanMessage("x")], [HumanMessage("y")]], callbacks=[heard]))
        await both.wait()
        for _ in range(ticks):
            await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await hedger.aclose()

    run_virtual(main)
    assert heard.heard == ["start", "start", "error CancelledError", "error CancelledError"]


def test_r07_runs_that_had_ended_when_their_call_was_cancelled_are_told_of_once() -> None:
    class Slow(Heard):
        run_inline = True

        async def on_llm_end(self, *args: Any, **kwargs: Any) -> None:  # type: ignore[override]
            await asyncio.sleep(1.0)
            self.heard.append("end")

    hedger, heard = Hedger(), Slow()
    model = hedger.chat_model(Target("a", Chat()), Target("b", Chat()), family="scripted")

    async def main() -> None:
        call = asyncio.create_task(model.ainvoke("x", {"callbacks": [heard]}))
        await asyncio.sleep(0.5)  # the answer is there, and its end is being told
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(2.0)
        await hedger.aclose()

    run_virtual(main)
    assert [said for said in heard.heard if said != "token"] == ["start", "end"]


# --- what bars it -----------------------------------------------------------------------------------------------------


@tool
def pay(amount: int) -> str:
    """Pay."""
    PAID.append(current_attempt().number)  # type: ignore[union-attr]
    return "paid"


PAID: list[int] = []


@task
async def step(x: int) -> int:
    return x


async def interrupts(state: State) -> State:
    return {"log": [interrupt("?")]}


async def pays(state: State) -> State:
    return {"log": [await pay.ainvoke({"amount": 1})]}


async def runs_a_task(state: State) -> State:
    return {"log": [await step(1)]}


def remembering() -> Any:
    inner: Builder = StateGraph(State)
    inner.add_node("deep", lambda state: {"n": 1})
    inner.add_edge(START, "deep")
    graph = inner.compile(checkpointer=True)

    async def call(state: State) -> Any:
        return await graph.ainvoke(state)

    return call


@pytest.mark.parametrize(
    ("action", "said"),
    [(interrupts, "interrupt"), (pays, "pay is unknown"), (runs_a_task, "task"), (remembering(), "memory")],
)
def test_r09_a_node_in_which_something_must_not_happen_twice_is_not_raced(action: Any, said: str) -> None:
    kit = make_kit("node")
    graph = single(raced(kit, action)).compile(checkpointer=InMemorySaver())
    PAID.clear()
    forcing(lambda: graph.ainvoke(hi(), thread()), 1)
    assert kit.hedges == 0
    ((reason, detail),) = refusals(kit)
    assert reason is Reason.BARRED
    assert said in detail
    assert len(PAID) <= 1


@pytest.mark.parametrize(
    ("action", "settings", "said"),
    [
        (pays, {}, "the node 'pays' is never raced: pay is unknown"),
        (by_number, {"trigger": "first"}, "the node 'by_number' is never raced: its first token cannot be seen"),
    ],
)
def test_r04_a_node_that_is_declared_and_never_raced_says_so_once(action: Any, settings: Any, said: str) -> None:
    kit = make_kit("node")
    graph = single(raced(kit, action, **settings)).compile()
    with pytest.warns(UserWarning, match=said):
        run_virtual(lambda: graph.ainvoke(hi()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_virtual(lambda: graph.ainvoke(hi()))
    assert kit.hedges == 0


@pytest.mark.filterwarnings("ignore:the node")
def test_r09_without_a_declared_effect_a_node_is_not_raced() -> None:
    kit = make_kit("node")
    node = kit.hedger.node(by_number, unit="node", trigger="total")
    run_virtual(lambda: single(node).compile().ainvoke(hi()))
    assert kit.hedges == 0


def test_r09_a_model_inside_a_raced_node_is_not_hedged_as_well() -> None:
    kit = make_kit("node")
    model = kit.hedger.chat_model(Target("m", Chat()), Target("n", Chat()), family="scripted")

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    forcing(lambda: single(raced(kit, ask)).compile().ainvoke(hi()), 1)
    started = [event.attempt.target.name for event in kit.events if isinstance(event, AttemptStarted)]
    assert sorted(started) == ["a", "b", "m", "m"]


def test_r09_downstream_bars_a_raced_node_whose_graph_was_not_shown() -> None:
    kit = make_kit("node", bar="downstream")
    builder = single(raced(kit, by_number))
    forcing(lambda: builder.compile().ainvoke(hi()), 1)
    assert [reason for reason, _ in refusals(kit)] == [Reason.GRAPH_UNSEEN]
    kit.hedger.explain(builder)
    forcing(lambda: builder.compile().ainvoke(hi()), 1)
    assert kit.hedges == 1


def test_r05_astream_events_v2_is_refused_hedging() -> None:
    kit = make_kit("node")
    graph = single(raced(kit, by_number)).compile()

    async def main() -> None:
        async for _ in graph.astream_events(hi(), version="v2"):
            pass

    forcing(main, 1)
    assert kit.hedges == 0
    assert "would show every attempt" in refusals(kit)[0][1]


def test_r04_a_node_is_not_raced_while_the_graph_drains() -> None:
    kit, control = make_kit("node"), RunControl()

    async def stops(state: State) -> State:
        control.request_drain()
        return {}

    builder = single(raced(kit, by_number))
    builder.add_node("stops", stops)
    builder.add_edge(START, "stops")

    async def main() -> Any:
        with suppress(GraphDrained):
            await builder.compile().ainvoke(hi(), control=control)

    run_virtual(main)
    assert refusals(kit) == [(Reason.DRAINING, "")]
    assert verdicts(kit) == [Verdict.WON], "the primary, though it takes 5 s"


def test_r05_a_node_that_is_not_raced_is_not_run_again_either() -> None:
    """What it shows is not held back: a recovery would show it twice. Retrying is the node's RetryPolicy's."""
    kit, runs = make_kit("node"), []

    async def fails(state: State) -> State:
        runs.append(1)
        get_stream_writer()({"run": len(runs)})
        if len(runs) > 9:
            return {"log": [interrupt("?")]}
        raise ConnectionError

    with pytest.raises(ConnectionError):
        run_virtual(lambda: _custom(single(raced(kit, fails))))
    assert runs == [1]


# --- what the static look cannot see ----------------------------------------------------------------------------------


@pytest.mark.parametrize("winner", [0, 1])
def test_r10_a_tool_that_nobody_saw_is_run_by_one_attempt(winner: int) -> None:
    kit = make_kit("node")

    async def hides(state: State) -> State:
        number = current_attempt().number  # type: ignore[union-attr]
        await asyncio.sleep(0.1 if number == winner else 0.2)
        called = vars(sys.modules[__name__])[str(state["messages"][0].content)]
        return {"log": [await called.ainvoke({"amount": 1}), number]}

    PAID.clear()
    graph = single(raced(kit, hides, policy=Fixed(0.01))).compile()
    result = run_virtual(lambda: graph.ainvoke({"messages": [HumanMessage("pay")], "log": []}))
    assert kit.hedges == 1
    assert [winner] == PAID
    assert result["log"] == ["paid", winner]
    assert any(isinstance(event, Committed) and event.by_claim for event in kit.events)


@pytest.mark.parametrize("winner", [0, 1])
def test_r10_a_write_to_the_store_decides(winner: int) -> None:
    kit, store = make_kit("node"), InMemoryStore()

    async def writes(state: State, *, store: BaseStore) -> State:
        number = current_attempt().number  # type: ignore[union-attr]
        await store.aget(("n",), "k")
        await asyncio.sleep(0.1 if number == winner else 0.2)
        await store.aput(("n",), f"k{number}", {"by": number})
        await asyncio.sleep(5.0)
        return {"log": [number]}

    graph = single(raced(kit, writes, policy=Fixed(0.01))).compile(store=store)
    assert run_virtual(lambda: graph.ainvoke(hi()))["log"] == [winner]
    assert [item.key for item in store.search(("n",))] == [f"k{winner}"]


@pytest.mark.parametrize("winner", [0, 1])
def test_r05_checkpoints_of_a_losers_subgraph_are_not_kept(winner: int) -> None:
    kit, saver = make_kit("node"), InMemorySaver()

    async def deep(state: State) -> State:
        await asyncio.sleep(0.1)
        return {"log": [current_attempt().number]}  # type: ignore[union-attr]

    inner = single(deep, "deep").compile()

    async def call(state: State) -> Any:
        return {"log": (await inner.ainvoke({"log": []}))["log"]}

    graph = single(raced(kit, call)).compile(checkpointer=saver)
    forcing(lambda: graph.ainvoke(hi(), thread()), winner)
    namespaces = {each.config["configurable"]["checkpoint_ns"].partition(":")[0] for each in saver.list(thread())}
    values = [
        each.checkpoint["channel_values"]["log"]
        for each in saver.list(thread())
        if each.config["configurable"]["checkpoint_ns"] and each.checkpoint["channel_values"].get("log")
    ]
    assert namespaces == {"", "ask"}
    assert values == [[winner]]
    assert not any("|" in each.config["configurable"]["checkpoint_ns"] for each in saver.list(thread()))


@pytest.mark.parametrize("winner", [0, 1])
def test_r09_what_stands_inside_a_raced_node_is_not_hedged_a_second_time(winner: int) -> None:
    kit = make_kit("node")
    model = kit.hedger.chat_model(Target("m", Chat()), Target("n", Chat()), family="scripted")

    async def deep(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    async def deeper(state: State) -> State:
        await asyncio.sleep(0.1)
        return {"log": ["deeper"]}

    inner: Builder = StateGraph(State)
    inner.add_sequence([("deep", kit.hedger.node(deep)), ("deeper", raced(kit, deeper))])
    inner.add_edge(START, "deep")
    graph = inner.compile()

    async def call(state: State) -> Any:
        return await graph.ainvoke(state)

    forcing(lambda: single(raced(kit, call)).compile().ainvoke(hi()), winner)
    hedges = [event.key.node for event in kit.events if isinstance(event, AttemptStarted) and event.attempt.is_hedge]
    assert hedges == ["ask"]


def test_r12_twenty_branches_share_one_purse() -> None:
    kit = make_kit("node", budget=FleetBudget(1.0))

    async def slow(state: State) -> State:
        await asyncio.sleep(5.0 if current_attempt().number == 0 else 0.1)  # type: ignore[union-attr]
        return {"log": [state["n"]]}

    builder: Builder = StateGraph(State)
    builder.add_node("work", raced(kit, slow))
    builder.add_conditional_edges(START, lambda _: [Send("work", {"n": n}) for n in range(20)], ["work"])

    async def main() -> Any:
        async with kit.hedger.run(extra_attempts=3) as run:
            result = await builder.compile().ainvoke(hi())
            return result, run.extra_attempts_used

    result, used = run_virtual(main)
    assert result["log"] == list(range(20))
    assert used == kit.hedges == 3
    assert [reason for reason, _ in refusals(kit)] == [Reason.RUN_BUDGET] * 17


def test_r12_a_raced_node_keeps_its_deadline() -> None:
    kit = make_kit("node")

    async def stuck(state: State) -> State:
        await asyncio.sleep(1e6)
        return {}

    async def main() -> float:
        with pytest.raises(DeadlineExceeded):
            await single(raced(kit, stuck, timeout=2.0)).compile().ainvoke(hi())
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == pytest.approx(2.0)
    assert sorted(verdicts(kit)) == [Verdict.CANCELLED, Verdict.CANCELLED]


def test_a_handler_that_fails_on_what_a_winner_has_shown_fails_nobody(caplog: pytest.LogCaptureFixture) -> None:
    kit = make_kit("node")
    model = Chat()

    class Broken(BaseCallbackHandler):
        def on_llm_end(self, *args: Any, **kwargs: Any) -> None:
            raise ValueError("a secret answer")

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    graph = single(raced(kit, ask, accept=lambda result: True)).compile()
    result = forcing(lambda: graph.ainvoke(hi(), {"callbacks": [Broken()]}), 1)
    assert result["messages"][-1].content == "you said x"
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.asyncio
async def test_what_is_held_back_still_refreshes_an_idle_timeout() -> None:
    """In real time: LangGraph reads the wall clock for it."""
    kit = make_kit("node")

    async def works(state: State) -> State:
        for _ in range(6):
            await asyncio.sleep(0.1)
            get_stream_writer()({"at": "work"})
        return {"log": ["done"]}

    policy = TimeoutPolicy(idle_timeout=0.35)
    graph = single(raced(kit, works, policy=Never()), timeout=policy).compile()
    assert (await graph.ainvoke(hi()))["log"] == ["done"]


def test_r07_a_node_that_cancels_itself_fails_as_the_plain_node_does() -> None:
    kit = make_kit("node")

    async def gives_up(state: State) -> State:
        raise asyncio.CancelledError

    for node in (gives_up, raced(kit, gives_up)):
        with pytest.raises(NodeCancelledError):
            run_virtual(partial(single(node).compile().ainvoke, hi()))


@pytest.mark.parametrize("winner", [0, 1])
def test_a_race_leaves_no_cycle_that_keeps_the_graphs_loop(winner: int) -> None:
    kit = make_kit("node")
    model = Chat()

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    graph = single(raced(kit, ask)).compile()

    def loops() -> int:
        return sum(isinstance(found, AsyncPregelLoop) for found in gc.get_objects())

    async def main() -> int:
        gc.collect()
        gc.disable()
        try:
            before = loops()
            await graph.ainvoke(hi())
            await kit.hedger.aclose()
            await asyncio.sleep(0)
            return loops() - before
        finally:
            gc.enable()

    assert forcing(main, winner) == 0
