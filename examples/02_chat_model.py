"""Hedge the model of an agent: `create_agent` over two replicas, one of which is stuck. Offline; takes a second.

The replicas are fake engines on loopback; put the `base_url`s of your own there. Needs the extra ``agent-hedge[demo]``.
"""

import asyncio

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI

from agent_hedge import Fixed, Hedger, Target
from agent_hedge.testing.engine import FakeEngine


def look_up(order: str) -> str:
    """Look up an order."""
    return f"Order {order} left the warehouse on Monday."


async def main() -> None:
    async with FakeEngine("fixed:5") as stuck, FakeEngine("fixed:0.1") as well:
        replicas = Target.replicas([stuck.base_url, well.base_url], ChatOpenAI, model="any", api_key="none")
        async with Hedger(policy=Fixed(0.2)) as hedger:  # the default policy learns the delay from 200 calls instead
            agent = create_agent(model=hedger.chat_model(*replicas), tools=[look_up])
            state = await agent.ainvoke({"messages": [{"role": "user", "content": "look_up 'A-17': where is it?"}]})
        for message in state["messages"]:
            if isinstance(message, AIMessage):
                asked = ", ".join(call["name"] for call in message.tool_calls)
                print(f"{asked or message.text!r:.60}: {message.response_metadata['agent_hedge']}")


if __name__ == "__main__":
    asyncio.run(main())
