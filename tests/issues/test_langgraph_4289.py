"""langchain-ai/langgraph#4289: INVALID_CHAT_HISTORY, tool calls without tool messages. No call of a loser is kept."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from agent_hedge import Hedger, Target
from agent_hedge.core.scope import Forced, forced
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat, thread


@tool
def look(q: str) -> str:
    """Look something up."""
    return q


def asking(label: str) -> Any:
    def answer(messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage("done")
        calls = [{"name": "look", "args": {"q": label}, "id": f"call_{label}_{len(messages)}_{n}"} for n in range(2)]
        return AIMessage("", tool_calls=calls)

    return answer


@pytest.mark.parametrize("winner", [0, 1])
def test_r05_every_tool_call_in_the_history_has_its_answer(winner: int) -> None:
    hedger = Hedger()
    model = hedger.chat_model(
        Target("a", Chat(answer=asking("a"))), Target("b", Chat(answer=asking("b"))), family="scripted"
    )
    agent: Any = create_agent(model, [look], checkpointer=InMemorySaver())

    async def main() -> Any:
        for text in ("one", "two"):
            result = await agent.ainvoke({"messages": [HumanMessage(text)]}, thread())
        return result["messages"]

    token = forced.set(Forced(hedge=True, winner=winner))
    try:
        messages = run_virtual(main)
    finally:
        forced.reset(token)
    called = [call["id"] for message in messages if isinstance(message, AIMessage) for call in message.tool_calls]
    answered = [message.tool_call_id for message in messages if isinstance(message, ToolMessage)]
    assert called == answered
    assert {str(each).split("_")[1] for each in called} == {"ab"[winner]}
