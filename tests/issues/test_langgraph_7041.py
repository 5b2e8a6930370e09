"""langchain-ai/langgraph#7041 (and #5927): configuration and stream writer are lost in async nodes."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.config import get_config, get_stream_writer
from langgraph.graph import START, StateGraph

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, everything, thread


async def deep_calls(kit: Kit) -> Any:
    model = kit.chat()

    async def helper() -> str:
        get_stream_writer()({"thread": get_config()["configurable"]["thread_id"]})
        return str((await model.ainvoke("x")).content)

    def in_a_thread() -> str:
        get_stream_writer()({"in": "thread"})
        return str(get_config()["metadata"]["langgraph_node"])

    async def ask(state: State) -> State:
        said = await asyncio.create_task(helper())
        return {"log": [said, await asyncio.to_thread(in_a_thread)]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    return await everything(builder.compile(), {"log": []}, thread())


def test_r08_configuration_and_writer_reach_tasks_and_threads() -> None:
    conforms(deep_calls)
