"""langchain-ai/langgraph#5682: a subgraph called with `ainvoke` goes on after its caller was cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.graph import START, StateGraph

from agent_hedge import Effect, Fixed, Hedger
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import State


@pytest.mark.filterwarnings("ignore:the wrapped node")
@pytest.mark.parametrize("unit", ["model", "node"])
@pytest.mark.parametrize("inner_nodes", [1, 2])
@pytest.mark.parametrize("how", ["ainvoke", "astream"])
def test_r07_a_cancelled_node_stops_the_subgraphs_of_all_its_attempts(unit: Any, inner_nodes: int, how: str) -> None:
    hedger, ticks = Hedger(), []

    async def deep(state: State) -> State:
        while True:
            await asyncio.sleep(0.1)
            ticks.append(1)

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    for index in range(inner_nodes):
        inner.add_node(f"deep{index}", deep)
        inner.add_edge(START, f"deep{index}")
    graph = inner.compile()

    async def call(state: State) -> Any:
        if how == "ainvoke":
            return await graph.ainvoke(state)
        return [part async for part in graph.astream(state, subgraphs=True)][-1]

    settings: Any = {"unit": unit}
    if unit == "node":
        settings |= {"effect": Effect.READ_ONLY, "trigger": "total", "policy": Fixed(0.2), "targets": ["a", "b"]}
    outer: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    outer.add_node("call", hedger.node(call, **settings))
    outer.add_edge(START, "call")

    async def main() -> None:
        task = asyncio.ensure_future(outer.compile().ainvoke({"log": []}))
        await asyncio.sleep(1.0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        before = len(ticks)
        assert before > 0
        await asyncio.sleep(5.0)
        assert len(ticks) == before

    run_virtual(main)
