"""A run's deadline beside LangGraph's time-outs of nodes and of supersteps: the first of them ends the step (R12)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.errors import NodeTimeoutError
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from agent_hedge import DeadlineExceeded, Hedger, Target, current_attempt
from agent_hedge.core.events import Reason
from agent_hedge.core.step import StepKey
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat
from tests.engine.kit import hedger
from tests.runs.kit import slow_once
from tests.runs.test_langgraph import Listener


class Forever(Chat):
    """Never answers, and notes how each attempt ended and what was left to it."""

    ended: Any
    left: Any

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[Any]:
        active = current_attempt()
        assert active is not None
        self.left.append(active.deadline - asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(1_000.0)
        except asyncio.CancelledError:
            self.ended.append("cancelled")
            raise
        yield


class State(TypedDict, total=False):
    n: int


def asking(opened: Hedger, ended: list[str], left: list[float], *, node: Any, step: float | None) -> Any:
    members = [Target(name, Forever(ended=ended, left=left)) for name in ("a", "b")]
    model = opened.chat_model(*members, family="scripted")

    async def ask(state: State) -> State:
        await model.ainvoke([HumanMessage("x")])
        return {}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", ask, timeout=node)
    builder.add_edge(START, "ask")
    graph = builder.compile()
    graph.step_timeout = step
    return graph


@pytest.mark.parametrize(
    ("run", "node", "step", "ends", "error"),
    [
        (2.0, 5.0, None, 2.0, DeadlineExceeded),
        (5.0, 2.0, None, 2.0, NodeTimeoutError),
        (2.0, None, 5.0, 2.0, DeadlineExceeded),
        (5.0, None, 2.0, 2.0, TimeoutError),
        (9.0, 5.0, 3.0, 3.0, TimeoutError),
        (9.0, 3.0, 5.0, 3.0, NodeTimeoutError),
    ],
)
def test_r12_the_first_of_all_time_outs_ends_every_attempt_of_the_step(
    run: float, node: float | None, step: float | None, ends: float, error: type[Exception]
) -> None:
    opened = hedger(1.0)
    ended: list[str] = []
    left: list[float] = []

    async def main() -> float:
        loop = asyncio.get_running_loop()
        started = loop.time()
        with pytest.raises(error):
            async with opened.run(deadline=run):
                await asking(opened, ended, left, node=node, step=step).ainvoke({})
        return loop.time() - started

    assert run_virtual(main) == pytest.approx(ends)
    assert ended == ["cancelled"] * 2, "a primary and its hedge"
    assert left == pytest.approx([run, run - 1.0]), "each attempt is told what is left"


def test_r12_a_hedge_that_could_not_make_it_is_not_launched() -> None:
    """Half of the target's requests take 3 s to their first token; 2 s are left when the hedge is due."""
    heard = Listener()

    async def main() -> None:
        opened = hedger(3.0, observers=[heard])
        for target in ("a", "b"):
            opened.book.record(StepKey(node="step"), target, 0.1, 0.0)  # it is warm from then on
        await asyncio.sleep(100.0)
        for target in ("a", "b"):
            for number in range(1_000):
                opened.book.record(StepKey(node="step"), target, 3.0 if number % 2 else 2.5, 100.0)
        async with opened.run(deadline=5.0):
            with pytest.raises(DeadlineExceeded):
                await slow_once(opened)()

    run_virtual(main)
    assert heard.refusals() == [Reason.TOO_LATE]
    assert heard.hedges() == 0


@pytest.mark.parametrize(("limit", "too_late"), [(7.0, False), (timedelta(seconds=5), True), (None, False)])
@pytest.mark.parametrize("around", [False, True])
def test_r12_nor_one_that_a_nodes_time_out_would_end_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: Any, too_late: bool, around: bool
) -> None:
    """The same with a time-out of the node, or of the node around its graph."""
    heard = Listener()
    known = tmp_path / "known.csv"
    known.write_text("target,ttft_s\n" + "a,3.0\nb,3.0\n" * 1_000)

    async def main() -> None:
        opened = hedger(3.0, observers=[heard])
        opened.prime(known)
        monkeypatch.setattr(time, "time", asyncio.get_running_loop().time)  # by which LangGraph says when a node began
        graph = asking(opened, [], [], node=None if around else limit, step=None)
        if around:
            outer: StateGraph[Any, Any, Any, Any] = StateGraph(State)
            outer.add_node("inner", graph, timeout=limit)
            outer.add_edge(START, "inner")
            graph = outer.compile()
        with pytest.raises((NodeTimeoutError, DeadlineExceeded)):
            async with opened.run(deadline=30.0):
                await graph.ainvoke({})

    run_virtual(main)
    assert (Reason.TOO_LATE in heard.refusals()) == too_late
    assert heard.hedges() == (not too_late)
