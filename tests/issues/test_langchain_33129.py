"""langchain-ai/langchain#33129: create_agent with fallbacks and a middleware fails. A hedged model works."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware, ModelFallbackMiddleware
from langchain_core.messages import HumanMessage

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, everything


async def fallbacks_and_a_middleware(kit: Kit) -> Any:
    def refuse(messages: Any) -> ValueError:
        return ValueError("no")

    around: list[Any] = [ModelCallLimitMiddleware(run_limit=3), ModelFallbackMiddleware(kit.chat())]
    agent = create_agent(kit.chat(refuse), [], middleware=around)
    return await everything(agent, {"messages": [HumanMessage("hi", id="q")]})


def test_r01_fallbacks_behind_a_hedged_model() -> None:
    conforms(fallbacks_and_a_middleware, units=("model",))
