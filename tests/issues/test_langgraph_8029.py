"""langchain-ai/langgraph#8029: `stream.abort()` of a v3 stream does not stop subgraphs."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.graph import START, StateGraph

from agent_hedge import Effect, Fixed, Hedger
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import State


def test_r07_abort_stops_every_attempt_and_what_runs_in_it() -> None:
    hedger, ticks = Hedger(), []

    async def deep(state: State) -> State:
        for _ in range(100):
            await asyncio.sleep(0.1)
            ticks.append(1)
        return {}

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    inner.add_node("deep", deep)
    inner.add_edge(START, "deep")
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
        compiled: Any = outer.compile()
        stream = await compiled.astream_events({"log": []}, version="v3")

        async def read() -> None:
            async for _ in stream:
                pass

        reading = asyncio.ensure_future(read())
        await asyncio.sleep(1.0)
        await stream.abort()
        await asyncio.wait([reading])
        before = len(ticks)
        assert before > 0
        await asyncio.sleep(5.0)
        assert len(ticks) == before

    run_virtual(main)
