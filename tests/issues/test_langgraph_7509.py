"""langchain-ai/langgraph#7509: the tag `nostream` silences tokens, and the message of the node still comes."""

from __future__ import annotations

from typing import Any

from langgraph.graph import START, StateGraph

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, everything


async def silent(kit: Kit) -> Any:
    model = kit.chat().with_config(tags=["nostream"])

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    parts = await everything(builder.compile(), {"log": [], "messages": []})
    assert sum(part[1] == "messages" for part in parts) == 1
    return parts


def test_r05_nostream_is_kept() -> None:
    conforms(silent)
