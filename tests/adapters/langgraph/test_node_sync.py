"""Sync graphs: models hedge with cancellable losers; a sync body is raced only where it can be stopped (issue 5, 7)."""

from __future__ import annotations

import asyncio
import queue
import time
import warnings
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableLambda
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph

from agent_hedge import Effect, Fixed, Target, current_attempt
from agent_hedge.core.events import AttemptStarted
from agent_hedge.core.scope import Forced, forced
from tests.adapters.langgraph.conforming import first_difference
from tests.adapters.langgraph.graph_kit import Chat, Kit, State, make_kit, normal
from tests.conftest import HUNG_S


def build(node: Any) -> Any:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", node)
    builder.add_edge(START, "ask")
    return builder.compile()


def hi() -> Any:
    return {"messages": [HumanMessage("hi", id="q")], "log": []}


def run(graph: Any) -> Any:
    return normal(list(graph.stream(hi(), stream_mode=["messages", "custom", "updates", "values", "tasks"])))


def with_model(kit: Kit) -> Any:
    if kit.unit == "model":
        model: Any = kit.hedger.chat_model(
            Target("a", Chat(ttft=0.01)), Target("b", Chat(ttft=0.01)), family="scripted"
        )
    else:
        model = Chat()

    def ask(state: State) -> State:
        get_stream_writer()({"before": 1})
        return {"messages": [model.invoke(state["messages"])]}

    return ask


@pytest.mark.parametrize("winner", [None, 0, 1])
@pytest.mark.parametrize("wrapped", [False, True])
def test_r05_a_sync_graph_with_a_hedged_model(winner: int | None, wrapped: bool) -> None:
    expected = run(build(with_model(make_kit("plain"))))
    kit = make_kit("model")
    node = with_model(kit)
    token = forced.set(None if winner is None else Forced(hedge=True, winner=winner))
    try:
        seen = run(build(kit.hedger.node(node) if wrapped else node))
    finally:
        forced.reset(token)
        kit.hedger.close()
    assert seen == expected, first_difference(seen, expected)
    assert (kit.hedges > 0) == (winner is not None)


def test_r06_the_loser_of_a_sync_graph_is_cancelled() -> None:
    kit = make_kit("model", policy=Fixed(0.01))
    stuck, lively = Chat(ttft=1e6), Chat(ttft=0.01)
    model = kit.hedger.chat_model(Target("stuck", stuck), Target("lively", lively), family="scripted")

    def ask(state: State) -> State:
        return {"messages": [model.invoke("x")]}

    result = build(ask).invoke(hi())
    kit.hedger.close()
    assert result["messages"][-1].content == "you said x"
    assert stuck.calls == ["astream", "cancelled"]


def test_r04_a_sync_body_is_not_raced() -> None:
    kit = make_kit("node")

    def work(state: State) -> State:
        return {"log": [current_attempt()]}

    with pytest.warns(UserWarning, match="is sync: it is never raced"):
        node = kit.hedger.node(work, unit="node", effect=Effect.READ_ONLY, trigger="total")
    token = forced.set(Forced(hedge=True, winner=1))
    try:
        assert build(node).invoke(hi())["log"] == [None]
    finally:
        forced.reset(token)
    assert kit.hedges == 0


def test_r04_a_runnable_in_which_nothing_is_awaited_is_a_sync_body() -> None:
    kit, seen = make_kit("node"), []

    def work(state: State) -> State:
        seen.append(current_attempt())
        return {"log": []}

    settings: Any = {"unit": "node", "effect": Effect.READ_ONLY, "trigger": "total"}
    with pytest.warns(UserWarning, match="is sync: it is never raced"):
        node = kit.hedger.node(RunnableLambda(work) | RunnableLambda(dict), **settings)
    token = forced.set(Forced(hedge=True, winner=1))
    try:
        asyncio.run(build(node).ainvoke(hi()))
        build(node).invoke(hi())
    finally:
        forced.reset(token)
    assert (seen, kit.hedges) == ([None, None], 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a step that awaits is where such a node spends its time
        kit.hedger.node(RunnableLambda(lambda state: "x") | Chat(), **settings)
        kit.hedger.node({"answer": Chat(), "given": RunnableLambda(work)}, **settings)
        kit.hedger.node(Chat().with_config(tags=["t"]), **settings)
        kit.hedger.node(build(work), **settings)
        kit.hedger.node(RunnableLambda(work), cancellable=True, **settings)


@pytest.mark.parametrize("winner", [0, 1])
def test_r05_a_sync_body_that_can_be_stopped_is_raced(winner: int) -> None:
    kit = make_kit("node")
    stopped: queue.SimpleQueue[int] = queue.SimpleQueue()

    def work(state: State) -> State:
        active = current_attempt()
        assert active is not None
        get_stream_writer()({"from": active.number})
        for _ in range(6_000):
            if active.cancelled:
                stopped.put(active.number)
                break
            if active.number == winner:
                time.sleep(0.02)  # a body that blocks its worker thread is the subject here
                break
            time.sleep(0.01)  # as above: it looks at its flag now and then
        return {"log": [active.number]}

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        node = kit.hedger.node(work, unit="node", effect=Effect.READ_ONLY, trigger="total", cancellable=True)
    token = forced.set(Forced(hedge=True, winner=winner))
    try:
        parts = list(build(node).stream(hi(), stream_mode=["custom", "updates"]))
    finally:
        forced.reset(token)
        kit.hedger.close()
    assert parts == [("custom", {"from": winner}), ("updates", {"ask": {"log": [winner]}})]
    assert sum(isinstance(event, AttemptStarted) for event in kit.events) == 2
    assert stopped.get(timeout=HUNG_S) == 1 - winner
