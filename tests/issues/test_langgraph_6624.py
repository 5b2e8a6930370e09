"""langchain-ai/langgraph#6624: a tool node does not collect all interrupts of parallel tools. Hedging adds nothing."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command, interrupt

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, thread


@tool
def approve(what: str) -> str:
    """Ask a human."""
    return f"{what}: {interrupt(what)}"


def two_at_once(messages: list[BaseMessage]) -> AIMessage:
    if isinstance(messages[-1], ToolMessage):
        return AIMessage("done")
    return AIMessage("", tool_calls=[{"name": "approve", "args": {"what": w}, "id": f"call_{w}"} for w in ("a", "b")])


async def parallel_tools_that_ask(kit: Kit) -> Any:
    agent: Any = create_agent(kit.chat(two_at_once), [approve], checkpointer=InMemorySaver())
    await agent.ainvoke({"messages": [HumanMessage("hi", id="q")]}, thread())
    seen: list[Any] = []
    for _ in range(3):
        waiting = (await agent.aget_state(thread())).interrupts
        seen.append(sorted(each.value for each in waiting))
        if not waiting:
            break
        answers = {each.id: f"yes to {each.value}" for each in waiting}
        result = await agent.ainvoke(Command(resume=answers), thread())
    return [seen, sorted(m.content for m in result["messages"] if isinstance(m, ToolMessage))]


def test_r07_interrupts_of_parallel_tools() -> None:
    conforms(parallel_tools_that_ask, units=("model",))
