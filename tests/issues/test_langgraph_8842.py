"""langchain-ai/langgraph#8842: a node's time-out is not passed to its error handler. Hedging changes nothing."""

from __future__ import annotations

from typing import Any

from langgraph.errors import NodeError
from langgraph.graph import START, StateGraph

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, everything


async def a_timeout_and_a_handler(kit: Kit) -> Any:
    model = kit.chat(ttft=9.0)

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    def handle(state: State, error: NodeError) -> State:
        return {"log": [type(error.error).__name__]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", kit.node(ask), timeout=0.5, error_handler=handle)
    builder.add_edge(START, "ask")
    return await everything(builder.compile(), {"log": []})


def test_r07_a_timeout_with_an_error_handler() -> None:
    conforms(a_timeout_and_a_handler)
