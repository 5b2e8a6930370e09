"""Runs around LangGraph: parallel branches on one purse, people who take two hours, turns on one thread (E4, E5)."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict

from agent_hedge import Hedger, Target, current_attempt, current_run
from agent_hedge.core.events import AttemptRefused, AttemptStarted, Event, Reason
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Role
from agent_hedge.core.stores import RunRow
from agent_hedge.errors import DeadlineExceeded
from agent_hedge.stores.sql import sql_stores
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat
from tests.engine.kit import hedger
from tests.runs.kit import OnceGranted, Yielding, until_heard


class Listener:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def hedges(self) -> int:
        return sum(isinstance(one, AttemptStarted) and one.attempt.role is Role.HEDGE for one in self.events)

    def refusals(self) -> list[Reason]:
        return [one.reason for one in self.events if isinstance(one, AttemptRefused)]


class Slow(Chat):
    """Answers after `seconds` (or what it waits for) as the primary, at once as a hedge."""

    seconds: float | Callable[[], Awaitable[None]] = 60.0

    async def _astream(self, *args: Any, **kwargs: Any) -> Any:
        active = current_attempt()
        assert active is not None
        if active.number == 0 and callable(self.seconds):
            await self.seconds()
        else:
            await asyncio.sleep(self.seconds if active.number == 0 else 0.1)  # type: ignore[arg-type]
        async for chunk in super()._astream(*args, **kwargs):
            yield chunk


def slow(opened: Hedger, seconds: float | Callable[[], Awaitable[None]] = 60.0) -> Any:
    return opened.chat_model(Target("a", Slow(seconds=seconds)), Target("b", Slow(seconds=seconds)), family="scripted")


class Branches(TypedDict, total=False):
    done: Annotated[list[str], operator.add]


def fan_out(model: Any, branches: int) -> Any:
    async def work(state: Any) -> Branches:
        answer = await model.ainvoke([HumanMessage("x")])
        return {"done": [answer.content]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Branches)
    builder.add_node("work", work)
    builder.add_conditional_edges(START, lambda _: [Send("work", {}) for _ in range(branches)], ["work"])
    return builder.compile()


@pytest.mark.parametrize("key", ["", "stored"])
def test_r13_ten_parallel_branches_share_three_extra_attempts(key: str) -> None:
    """E4: exactly three."""
    heard = Listener()
    opened = hedger(1.0, observers=[heard])
    graph = fan_out(slow(opened, 5.0), 10)

    async def main() -> dict[str, Any]:
        async with opened.run(key=key, deadline=30.0, extra_attempts=3) as run:
            assert len((await graph.ainvoke({}))["done"]) == 10
            return run.report()

    report = run_virtual(main)
    assert heard.hedges() == 3
    assert heard.refusals().count(Reason.RUN_BUDGET) >= 7
    assert (report["steps"], report["extra_attempts_used"]) == (10, 3)


def test_r13_ten_parallel_branches_on_a_store(sqlite_url: str) -> None:
    heard, yielding = Listener(), Yielding()
    settings: dict[str, Any] = {"policy": OnceGranted(0.05), "observers": [heard, yielding], "accounting": "off"}

    async def main() -> None:
        async with hedger(store=sqlite_url, **settings) as opened:
            graph = fan_out(slow(opened, yielding), 10)
            async with opened.run(key="k", deadline=30.0, extra_attempts=3):
                await until_heard(opened)
                await graph.ainvoke({})

    asyncio.run(main())
    assert heard.hedges() == 3


class Turns(TypedDict, total=False):
    said: Annotated[list[str], operator.add]


def approval(model: Any, seen: list[tuple[Run, float]], saver: Any) -> Any:
    """A plain node that asks a person stands before the one that asks the model: nothing of ours sees the interrupt."""

    async def ask(state: Turns) -> Turns:
        await asyncio.sleep(4.0)
        return {"said": [interrupt("may I?")]}

    async def act(state: Turns) -> Turns:
        answer = await model.ainvoke([HumanMessage("x")])
        run = current_run()
        assert run is not None
        seen.append((run, run.remaining))
        return {"said": [answer.content]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(Turns)
    builder.add_sequence([("plan", act), ("ask", ask), ("act", act)])
    builder.add_edge(START, "plan")
    return builder.compile(checkpointer=saver)


def test_r12_two_hours_of_a_person_do_not_move_the_deadline() -> None:
    """E5. The scope is left while the person thinks; the resume comes in a scope of its own."""
    seen: list[tuple[Run, float]] = []

    async def main() -> None:
        opened = hedger(99.0)
        graph = approval(opened.chat_model(Chat(), Chat(), family="scripted"), seen, InMemorySaver())
        config: Any = {"configurable": {"thread_id": "t"}}
        async with opened.run(key="t", deadline=30.0):
            await graph.ainvoke({"said": []}, config)
        await asyncio.sleep(7_200.0)
        async with opened.run(key="t", deadline=30.0) as run:
            await graph.ainvoke(Command(resume="yes"), config)
            assert run.steps == 2
        await asyncio.sleep(7_200.0)
        async with opened.run(key="t", deadline=30.0):
            await graph.ainvoke({"said": []}, config)

    run_virtual(main)
    (first, before), (second, after), (third, fresh) = seen
    assert (first.generation, second.generation, third.generation) == (0, 0, 1)
    assert before - after == pytest.approx(8.0 + _model_time(seen), abs=0.2)  # asked twice: the node runs again
    assert fresh == pytest.approx(before)


def _model_time(seen: list[tuple[Run, float]]) -> float:
    return 30.0 - seen[0][1]


def test_r12_two_hours_in_the_middle_of_a_process_of_its_own(sqlite_url: str, tmp_path: Path) -> None:
    """The same between two hedgers on one store, as in two processes: what was left is what is left."""
    seen: list[tuple[Run, float]] = []
    saver = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "t"}}

    def turn(given: Any, start: float) -> Callable[[], Any]:
        async def main() -> None:
            await asyncio.sleep(start)
            async with hedger(99.0, store=sqlite_url, accounting="off") as opened:
                graph = approval(opened.chat_model(Chat(), Chat(), family="scripted"), seen, saver)
                async with opened.run(key="t", deadline=30.0):
                    await graph.ainvoke(given, config)

        return main

    run_virtual(turn({"said": []}, 0.0))
    run_virtual(turn(Command(resume="yes"), 7_200.0))
    (first, before), (second, after) = seen
    assert (first.generation, second.generation, second.steps) == (0, 0, 2)
    assert before - after == pytest.approx(8.0 + _model_time(seen), abs=0.2)


def test_r12_a_run_of_configuration_goes_on_in_another_process_with_what_was_left(sqlite_url: str) -> None:
    """As on a LangGraph server: no scope, a plain node asks a person, another worker resumes the thread."""
    seen: list[tuple[Run, float]] = []
    saver = InMemorySaver()
    config: Any = {"configurable": {"thread_id": "t", "agent_hedge": {"deadline_s": 30, "run_key": "t"}}}
    started = time.time()

    def turn(given: Any) -> Callable[[], Any]:
        async def main() -> None:
            async with hedger(99.0, store=sqlite_url, accounting="off") as opened:
                opened._shared.runbook.epoch = lambda: started  # it stands still, as the run's clock does
                model = opened.chat_model(Chat(), Chat(), family="scripted")

                async def act(state: Turns) -> Turns:
                    answer = await model.ainvoke([HumanMessage("x")])
                    run = current_run()
                    assert run is not None
                    seen.append((run, run.remaining))
                    return {"said": [answer.text]}

                def ask(state: Turns) -> Turns:
                    return {"said": [interrupt("may I?")]}

                builder: StateGraph[Any, Any, Any, Any] = StateGraph(Turns)
                builder.add_sequence([("plan", act), ("ask", ask), ("act", act)])
                builder.add_edge(START, "plan")
                await opened.wrap_graph(builder).compile(checkpointer=saver).ainvoke(given, config)

        return main

    run_virtual(turn({"said": []}))
    (row,) = asyncio.run(rows(sqlite_url))
    assert (row.state, row.deadline_epoch) == ("paused", None)
    assert row.remaining == pytest.approx(seen[0][1])
    run_virtual(turn(Command(resume="yes")))
    (first, _), (second, _) = seen
    assert first is not second
    (row,) = asyncio.run(rows(sqlite_url))
    assert (row.generation, row.steps) == (0, 2)


async def rows(url: str) -> Sequence[RunRow]:
    stores = sql_stores(url, create=False)
    try:
        return await stores.runs.recent(9)
    finally:
        await stores.close()


def test_r12_the_second_turn_on_a_thread_is_past_the_first_ones_deadline_and_works() -> None:
    async def main() -> list[int]:
        opened = hedger(99.0)
        model = slow(opened, 4.0)
        graph = fan_out(model, 1)
        generations = []
        for _ in range(3):
            async with opened.run(key="thread", deadline=5.0) as run:
                await graph.ainvoke({"done": []})
                generations.append(run.generation)
            await asyncio.sleep(100.0)
        with pytest.raises(DeadlineExceeded):
            async with opened.run(key="thread", deadline=3.0):
                await graph.ainvoke({"done": []})
        return generations

    assert run_virtual(main) == [0, 1, 2]


def test_a_chain_inside_does_not_hear_of_runs_that_are_decided() -> None:
    """The listener is there only where the first graph decides, and is gone after the scope."""
    from agent_hedge.adapters.langgraph import invocation

    async def main() -> None:
        opened = hedger()
        for expected in (False, True):  # the first generation is settled at once
            async with opened.run(key="k"):
                assert (invocation._listening.get() is not None) is expected
                await slow(opened, 0.1).ainvoke("x")
            assert invocation._listening.get() is None

    run_virtual(main)
