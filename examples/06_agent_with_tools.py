"""`create_agent` with a tool that reads and one that pays: `explain` tells them apart. Offline; takes a second.

The model is hedged, the payment is not: its tool call runs once, behind the ledger, after the model step is over.
"""

import asyncio

from langchain.agents import create_agent
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

from agent_hedge import Effect, Fixed, Hedger, Target, tool_effect
from agent_hedge.testing.engine import FakeEngine


@tool_effect(Effect.READ_ONLY)
@tool
def balance(account: str) -> str:
    """Read the balance of an account."""
    return f"{account} holds 120"


@tool_effect(Effect.ONCE)
@tool
def pay(account: str) -> str:
    """Pay the rent from an account."""
    return f"paid from {account}"


async def main() -> None:
    async with FakeEngine("fixed:5") as stuck, FakeEngine("fixed:0.05") as well:
        replicas = Target.replicas([stuck.base_url, well.base_url], ChatOpenAI, model="any", api_key="none")
        async with Hedger(policy=Fixed(0.2)) as hedger:
            guarded = hedger.guard_tools([balance, pay])
            agent = create_agent(model=hedger.chat_model(*replicas), tools=guarded)
            for node in hedger.explain(agent).nodes:
                if node.models:
                    print(f"{node.name}: its model calls are {node.verdicts['model']}")
            state = await agent.ainvoke({"messages": [{"role": "user", "content": "balance 'rent': what is left?"}]})
        for message in state["messages"]:
            if isinstance(message, ToolMessage):
                print(f"{message.name}: {message.text}")


if __name__ == "__main__":
    asyncio.run(main())
