"""langchain-ai/langchain#39163: model runs stay pending for tracers when their caller is cancelled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.tracers.base import AsyncBaseTracer
from langgraph.graph import START, StateGraph

from agent_hedge import Hedger, Target
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat, State


class Pending(AsyncBaseTracer):
    async def _persist_run(self, run: Any) -> None: ...


@pytest.mark.parametrize("mode", ["values", "messages"])
def test_r07_a_cancelled_graph_leaves_no_model_run_open(mode: Any) -> None:
    hedger, tracer = Hedger(), Pending()
    model = hedger.chat_model(Target("a", Chat(ttft=9.0)), Target("b", Chat(ttft=9.0)), family="scripted")
    open_runs: list[Any] = []

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")

    async def run() -> None:
        async for _ in builder.compile().astream({"messages": []}, {"callbacks": [tracer]}, stream_mode=mode):
            pass

    async def main() -> None:
        task = asyncio.ensure_future(run())
        await asyncio.sleep(1.0)
        assert any(run.run_type in ("llm", "chat_model") for run in tracer.run_map.values())
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(1.0)
        open_runs.extend(run.name for run in tracer.run_map.values() if run.run_type in ("llm", "chat_model"))

    run_virtual(main)
    assert open_runs == []
