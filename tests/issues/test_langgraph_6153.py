"""langchain-ai/langgraph#6153: in `messages` mode tokens come, and the full message once more at the end."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import HumanMessage
from langgraph.graph import START, StateGraph

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State


async def tokens(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    given: Any = {"messages": [HumanMessage("hi")], "log": []}
    graph: Any = builder.compile()
    parts = [part[0].content async for part in graph.astream(given, stream_mode="messages")]
    assert "".join(parts) == "you said hi", "every token once, and no message after them"
    return parts


def test_r05_every_token_comes_once() -> None:
    conforms(tokens)
