"""G1 over the shipped driver: real tasks, cancellations, runs, threads, and the context that each attempt sees."""

from __future__ import annotations

import asyncio
import operator
import os
import random
import threading
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Send
from opentelemetry import trace

from agent_hedge import Effect, Fixed, Hedger, current_attempt
from agent_hedge.observers.otel import Tracing
from agent_hedge.testing import run_virtual

from .spans import Backend, events, everything, said

RUN, STEP, ATTEMPT = "agent_hedge.run", "agent_hedge.step work", "agent_hedge.attempt work"


@pytest.fixture
def backend() -> Backend:
    return Backend()


def hedger_of(backend: Backend, **settings: Any) -> Hedger:
    settings.setdefault("policy", Fixed(1.0))
    return Hedger(observers=[Tracing(backend.provider)], telemetry=False, **settings)


def wrapped(hedger: Hedger, fn: Any, **settings: Any) -> Any:
    return hedger.wrap(fn, key="work", effect=Effect.READ_ONLY, targets=["a", "b"], **settings)


def test_r19_an_attempt_runs_inside_its_own_span(backend: Backend) -> None:
    async def work() -> str:
        attempt = current_attempt()
        assert attempt is not None
        trace.get_tracer("client", tracer_provider=backend.provider).start_span(f"http {attempt.number}").end()
        await asyncio.sleep(9.0 if attempt.number == 0 else 0.5)
        return "ok"

    async def main() -> None:
        async with hedger_of(backend) as hedger, hedger.run(key="r"):
            await wrapped(hedger, work)()
            assert trace.get_current_span().get_span_context() == backend.open_of(RUN)
        assert not trace.get_current_span().get_span_context().is_valid

    run_virtual(main)
    assert backend.tree() == [(RUN, [(STEP, [(ATTEMPT, [("http 0", [])]), (ATTEMPT, [("http 1", [])])])])]
    (run,) = backend.named(RUN)
    assert said(run, "run.key", "run.steps", "run.hedges") == ("r", 1, 1)


def test_a_sync_function_and_its_worker_thread(backend: Backend) -> None:
    threads: set[str] = set()

    def work() -> str:
        threads.add(threading.current_thread().name)
        trace.get_tracer("client", tracer_provider=backend.provider).start_span("http").end()
        return "ok"

    with hedger_of(backend).run() as _, backend.current("node"):
        pass
    hedger = hedger_of(backend)
    with backend.current("node"):
        assert wrapped(hedger, work)() == "ok"
    hedger.close()
    assert threading.current_thread().name not in threads
    assert backend.tree()[-1] == ("node", [(STEP, [(ATTEMPT, [("http", [])])])])


def test_steps_of_a_graph_stand_in_its_run(backend: Backend) -> None:
    """Async and sync nodes, a subgraph, branches of `Send`: LangGraph's tasks and threads carry the context."""

    async def ask(node: str) -> str:
        trace.get_tracer("client", tracer_provider=backend.provider).start_span(f"http {node}").end()
        return node

    def sync_ask(node: str) -> str:
        trace.get_tracer("client", tracer_provider=backend.provider).start_span(f"http {node}").end()
        return node

    async def main() -> None:
        async with hedger_of(backend) as hedger:
            call = {name: named(hedger, ask, name) for name in ("plan", "branch", "inner")}
            sync_call = named(hedger, sync_ask, "thread")

            async def plan(state: State) -> dict[str, Any]:
                return {"said": [await call["plan"]("plan")]}

            def thread(state: State) -> dict[str, Any]:
                return {"said": [sync_call("thread")]}

            async def branch(state: State) -> dict[str, Any]:
                return {"said": [await call["branch"]("branch")]}

            async def inner(state: State) -> dict[str, Any]:
                return {"said": [await call["inner"]("inner")]}

            sub: Any = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
            builder: Any = StateGraph(State)
            builder.add_node("plan", plan).add_node("thread", thread).add_node("branch", branch).add_node("sub", sub)
            builder.add_edge(START, "plan").add_edge("plan", "thread").add_edge("thread", "sub")
            builder.add_conditional_edges("sub", lambda _: [Send("branch", {"said": []})] * 2, ["branch"])
            async with hedger.run(key="r"):
                await builder.compile().ainvoke({"said": []})

    asyncio.run(main())
    of: dict[str, Any] = {
        name: (f"agent_hedge.step {name}", [(f"agent_hedge.attempt {name}", [(f"http {name}", [])])]) for name in NODES
    }
    assert backend.tree() == [(RUN, [of["plan"], of["thread"], of["inner"], of["branch"], of["branch"]])]
    assert backend.open.count == 0


NODES = ("plan", "thread", "inner", "branch")


class State(TypedDict):
    said: Annotated[list[str], operator.add]


def named(hedger: Hedger, fn: Any, name: str) -> Any:
    return hedger.wrap(fn, key=name, effect=Effect.READ_ONLY, targets=["a", "b"])


def test_two_runs_in_one_trace_do_not_mix(backend: Backend) -> None:
    async def work(wait: float) -> str:
        await asyncio.sleep(wait)
        return "ok"

    async def one(hedger: Hedger, key: str, wait: float) -> None:
        async with hedger.run(key=key):
            for _ in range(3):
                await wrapped(hedger, work)(wait)

    async def main() -> None:
        async with hedger_of(backend) as hedger:
            with backend.current("app"):
                await asyncio.gather(one(hedger, "first", 0.3), one(hedger, "second", 2.5))

    run_virtual(main)
    (app,) = backend.children(None)
    assert len({span.context.trace_id for span in backend.spans}) == 1
    first, second = backend.children(app)
    assert [said(span, "run.key") for span in (first, second)] == [("first",), ("second",)]
    for run, attempts in ((first, [1, 1, 1]), (second, [2, 2, 1])):  # the fleet's floor is two hedges
        steps = backend.children(run)
        assert [span.name for span in steps] == [STEP] * 3
        assert {said(step, "run.key") for step in steps} == {said(run, "run.key")}
        assert [len(backend.children(step)) for step in steps] == attempts


def test_a_forked_child_ends_no_span_of_its_parent(backend: Backend) -> None:
    """It leaves the scope too; what it does there stands under the parent's run."""

    def in_a_child() -> int:
        child = os.fork()
        if not child:
            scope.__exit__(None, None, None)
            os._exit(len(backend.spans))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    hedger = hedger_of(backend)
    scope = hedger.run(key="r")
    with scope:
        assert in_a_child() == 0
    assert backend.tree() == [(RUN, [])]


def test_the_caller_leaves(backend: Backend) -> None:
    async def main() -> None:
        async with hedger_of(backend) as hedger:
            call = asyncio.ensure_future(wrapped(hedger, asyncio.sleep)(9.0))
            await asyncio.sleep(1.5)
            call.cancel()
            await asyncio.wait([call])

    run_virtual(main)
    step, primary, hedge = backend.spans
    assert everything(step) == {
        "node": "work",
        "trigger": 1.0,
        "outcome": "cancelled",
        "attempts": 2,
        "hedges": 1,
    }
    assert events(step) == ["trigger_armed", "hedge_due"]
    assert step.status.is_unset
    for attempt in (primary, hedge):
        assert said(attempt, "outcome", "cancel.cause") == ("cancelled", "caller")
        assert events(attempt) == ["cancel_sent"]
        assert attempt.status.is_unset


def test_a_claim_commits_and_says_so(backend: Backend) -> None:
    async def work() -> str:
        attempt = current_attempt()
        assert attempt is not None
        await asyncio.sleep(2.0 - attempt.number * 1.5)
        assert attempt.claim() == (attempt.number == 1)
        await asyncio.sleep(1.0)
        return "paid"

    async def main() -> None:
        async with hedger_of(backend) as hedger:
            await wrapped(hedger, work)()

    run_virtual(main)
    step = backend.named(STEP)[0]
    commit = next(event for event in step.events if event.name == "agent_hedge.commit")
    assert dict(commit.attributes or {}) == {"agent_hedge.by_claim": True}
    assert said(step, "winner") == ("b",)


def test_no_span_is_left_open_in_a_thousand_cancellations(backend: Backend) -> None:
    rng = random.Random(7)

    async def work() -> str:
        kind = rng.random()
        await asyncio.sleep(rng.expovariate(1.0))
        if kind < 0.2:
            raise ConnectionError("broken")
        return "ok"

    async def main() -> None:
        async with hedger_of(backend, policy=Fixed(0.4, attempts=3), deadline=2.0) as hedger:
            call = wrapped(hedger, work)
            for number in range(1000):
                async with hedger.run(key=f"run-{number}"):
                    task = asyncio.ensure_future(call())
                    await asyncio.wait([task], timeout=rng.expovariate(1.0))
                    task.cancel()
                    await asyncio.wait([task])
                    if not task.cancelled():
                        task.exception()

    run_virtual(main)
    assert backend.open.count == 0
    assert len(backend.named(RUN)) == len(backend.named(STEP)) == 1000
    outcomes = {said(span, "outcome")[0] for span in backend.named(ATTEMPT)}
    assert outcomes >= {"won", "superseded", "failed", "cancelled"}
