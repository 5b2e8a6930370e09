"""Runs that configuration opens have a span too, though nobody says when they end: run -> step -> attempts."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langgraph.graph import START, MessagesState, StateGraph
from opentelemetry import trace

from agent_hedge import Hedger, Never
from agent_hedge.core.events import Claimed
from agent_hedge.observers.otel import Tracing
from agent_hedge.observers.otel.visits import IDLE_S, LOOK_S
from agent_hedge.testing import run_virtual

from .kit import IdlePortal, a_run, play
from .spans import Backend, said

RUN = "agent_hedge.run"
SETTINGS = {"run_key": "order-7", "tenant": "acme", "deadline_s": 30.0}
ATTEMPT: list[Any] = [("chat fakelistchatmodel", [])]
PLAN, WRITE = ("agent_hedge.step plan", ATTEMPT), ("agent_hedge.step write", ATTEMPT)


@pytest.fixture
def hedger() -> Hedger:
    return Hedger(policy=Never())


def graph_of(hedger: Hedger, backend: Backend, *, own_span: bool = False) -> Any:
    """Two nodes that ask a hedged model; the second one in a span of the application's, where that is wanted."""
    members = (FakeListChatModel(responses=["yes"]) for _ in range(2))
    model = hedger.chat_model(*members)

    async def plan(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def write(state: MessagesState) -> dict[str, Any]:
        if not own_span:
            return await plan(state)
        tracer = trace.get_tracer("app", tracer_provider=backend.provider)
        with tracer.start_as_current_span("mine"):
            return await plan(state)

    builder = StateGraph(MessagesState).add_node("plan", plan).add_node("write", write)
    return builder.add_edge(START, "plan").add_edge("plan", "write").compile()


def invoke(graph: Any, where: str = "configurable", settings: Any = SETTINGS) -> Any:
    return graph.ainvoke({"messages": [("user", "go")]}, {where: {"agent_hedge": settings}})


@pytest.mark.parametrize("where", ["configurable", "metadata"])
def test_steps_stand_in_the_run_that_configuration_opens(where: str, backend: Backend, hedger: Hedger) -> None:
    async def main() -> None:
        async with hedger:
            await invoke(graph_of(hedger, backend), where)
            assert not backend.named(RUN), "nobody knows yet that it is over"

    asyncio.run(main())
    assert backend.tree() == [(RUN, [PLAN, WRITE])]
    (run,) = backend.named(RUN)
    assert said(run, "run.key", "run.generation", "tenant", "run.steps", "run.hedges", "run.recoveries") == (
        "order-7",
        0,
        "acme",
        2,
        0,
        0,
    )
    assert 0 < said(run, "deadline.left")[0] <= 30.0
    last = backend.named("agent_hedge.step write")[0]
    assert run.end_time == pytest.approx(last.end_time, abs=50e6), "nanoseconds: with its last step, not later"
    assert backend.open.count == 0


def test_a_run_without_a_key_has_one_too(backend: Backend, hedger: Hedger) -> None:
    async def main() -> None:
        async with hedger:
            await invoke(graph_of(hedger, backend), settings={"deadline_s": 30.0})

    asyncio.run(main())
    assert backend.tree() == [(RUN, [PLAN, WRITE])]


def test_it_stands_in_the_applications_trace_and_yields_to_spans_inside(backend: Backend, hedger: Hedger) -> None:
    async def main() -> None:
        async with hedger:
            graph = graph_of(hedger, backend, own_span=True)
            for request in ("first", "second"):
                with backend.current(request):
                    await invoke(graph)

    asyncio.run(main())
    of_request: list[Any] = [(RUN, [PLAN]), ("mine", [WRITE])]
    assert backend.tree() == [("first", of_request), ("second", of_request)]
    assert [said(run, "run.generation", "run.steps") for run in backend.named(RUN)] == [(0, 2), (1, 2)]


def test_a_scope_comes_first(backend: Backend, hedger: Hedger) -> None:
    async def main() -> None:
        async with hedger, hedger.run(key="scoped"):
            await invoke(graph_of(hedger, backend))

    asyncio.run(main())
    assert backend.tree() == [(RUN, [PLAN, WRITE])]
    assert said(backend.named(RUN)[0], "run.key") == ("scoped",)


def test_without_settings_there_is_no_run(backend: Backend, hedger: Hedger) -> None:
    async def main() -> None:
        async with hedger:
            await graph_of(hedger, backend).ainvoke({"messages": [("user", "go")]})

    asyncio.run(main())
    assert backend.tree() == [PLAN, WRITE]


def test_beside_another_instrumentation_its_graph_has_the_span(
    backend: Backend, hedger: Hedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.langchain", sys)

    async def main() -> None:
        async with hedger:
            await invoke(graph_of(hedger, backend))

    asyncio.run(main())
    assert backend.tree() == [PLAN, WRITE]


def visits_of(hedger: Hedger) -> Any:
    telemetry: Any = hedger._observing.telemetry
    return telemetry._tracing._visits


def test_one_that_is_idle_ends_when_its_last_step_did_and_what_comes_later_stands_under_it(backend: Backend) -> None:
    run, portal, now = a_run("r"), IdlePortal(), 0.0
    tracing = Tracing(backend.provider, run_here=lambda: run, portal=portal, wall_ns=lambda: int(now * 1e9))
    events: list[Any] = []
    play(Keeping(events), ("a", 0.5))

    async def main() -> None:
        nonlocal now
        begun = asyncio.get_running_loop().time()
        watch = asyncio.ensure_future(portal.started[0]())
        while not watch.done():
            await asyncio.sleep(1.0)
            now = asyncio.get_running_loop().time() - begun
            if now == 70.0:  # the step has taken this long
                assert not backend.named(RUN), "a step of it is open"
                for event in events[1:]:
                    tracing.on_event(event)

    tracing.on_event(events[0])
    run_virtual(main)
    (span,) = backend.named(RUN)
    assert span.end_time == 70_000_000_000
    assert 70.0 + IDLE_S <= now <= 70.0 + IDLE_S + LOOK_S + 1.0
    for event in events:
        tracing.on_event(replace(event, step_id="later"))
    assert backend.tree() == [(RUN, [(STEP, [(TRIED, [])]), (STEP, [(TRIED, [])])])]
    assert backend.open.count == 0
    assert len(portal.started) == 1, "nothing is open, and nobody watches"


class Keeping:
    """Keeps what it hears."""

    def __init__(self, events: list[Any]) -> None:
        self.events = events

    def on_event(self, event: Any) -> None:
        self.events.append(event)


STEP, TRIED = "agent_hedge.step scenario", "agent_hedge.attempt scenario"


def test_a_claim_is_said_in_it(backend: Backend) -> None:
    run = a_run("r")
    tracing = Tracing(backend.provider, run_here=lambda: run)
    play(tracing, ("a", 0.5))
    tracing.on_event(Claimed(at=1.0, tool="pay", answer="run", run=id(run)))
    tracing.close()
    assert [event.name for event in backend.named(RUN)[0].events] == ["agent_hedge.claim"]


def test_a_forked_child_ends_no_span_of_its_parent(backend: Backend, hedger: Hedger) -> None:
    async def main() -> None:
        async with hedger:
            await invoke(graph_of(hedger, backend))
            assert left_in_a_child(visits_of(hedger)) == 0
            assert len(visits_of(hedger)._open) == 1

    asyncio.run(main())
    assert len(backend.named(RUN)) == 1


def left_in_a_child(visits: Any) -> int:
    child = os.fork()
    if not child:
        os._exit(len(visits._open))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
