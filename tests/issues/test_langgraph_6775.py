"""langchain-ai/langgraph#6775: under an anyio cancel scope a subgraph's nodes run on as orphans. Attempts do not."""

from __future__ import annotations

import asyncio
from typing import Any

import anyio
import pytest
from langgraph.graph import START, StateGraph

from agent_hedge import Effect, Fixed, Hedger
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import State


@pytest.mark.parametrize("inner_nodes", [1, 2])
def test_r07_a_cancel_scope_around_the_graph_stops_every_attempt(inner_nodes: int) -> None:
    hedger, ended = Hedger(), []

    async def deep(state: State) -> State:
        try:
            await asyncio.sleep(3.0)
            ended.append("finished")
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        return {}

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    for index in range(inner_nodes):
        inner.add_node(f"deep{index}", deep)
        inner.add_edge(START, f"deep{index}")
    graph = inner.compile()

    async def call(state: State) -> Any:
        return await graph.ainvoke(state)

    node = hedger.node(
        call, unit="node", effect=Effect.READ_ONLY, trigger="total", policy=Fixed(0.2), targets=["a", "b"]
    )
    outer: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    outer.add_node("call", node)
    outer.add_edge(START, "call")

    async def main() -> None:
        with anyio.move_on_after(1.0):
            await outer.compile().ainvoke({"log": []})
        await asyncio.sleep(5.0)

    run_virtual(main)
    assert ended == ["cancelled"] * (2 * inner_nodes)
