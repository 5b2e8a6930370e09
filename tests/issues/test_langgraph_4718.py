"""langchain-ai/langgraph#4718: tokens of a model in a subgraph are not streamed."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State


async def tokens_of_a_subgraph(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    inner.add_node("ask", ask)
    inner.add_edge(START, "ask")
    graph = inner.compile()

    async def call(state: State) -> Any:
        return await graph.ainvoke(state)

    outer: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    outer.add_node("call", kit.node(call))
    outer.add_edge(START, "call")
    given: Any = {"messages": [HumanMessage("hi")], "log": []}
    compiled: Any = outer.compile()
    stream = compiled.astream(given, stream_mode="messages", subgraphs=True)
    parts = [part[0].content async for _, part in stream]

    assert len(parts) > 2
    return parts


def test_r05_tokens_of_a_subgraph_are_streamed() -> None:
    conforms(tokens_of_a_subgraph)
