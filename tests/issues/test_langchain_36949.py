"""langchain-ai/langchain#36949: a stream that hangs in silence. The hedge answers, and the hanging one is stopped."""

from __future__ import annotations

from typing import Any

from langgraph.graph import START, StateGraph

from agent_hedge import Fixed, Hedger, Target
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat, State


def test_r06_a_silent_stream_is_overtaken_and_stopped() -> None:
    hedger = Hedger(policy=Fixed(1.0))
    silent, lively = Chat(ttft=1e6), Chat(ttft=0.1, label="lively")
    model = hedger.chat_model(Target("silent", silent), Target("lively", lively), family="scripted")

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")

    async def main() -> Any:
        result = await builder.compile().ainvoke({"messages": []})
        await hedger.aclose()
        return result

    assert run_virtual(main)["messages"][-1].content == "you said x"
    assert silent.calls == ["astream", "cancelled"]
