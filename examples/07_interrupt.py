"""An agent that asks a human: the draft is hedged, the resumed task is not. Offline; takes a second.

A node that may interrupt is never raced as a whole, and a resumed task never hedges: a human's answer must meet the
very draft that was shown. The clock of the run stands still while the human thinks.
"""

import asyncio
from typing import Any, TypedDict

from langchain_core.runnables import RunnableConfig
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from agent_hedge import Fixed, Hedger, Target
from agent_hedge.testing.engine import FakeEngine


class State(TypedDict):
    draft: str
    sent: str


async def main() -> None:
    async with FakeEngine("fixed:5") as stuck, FakeEngine("fixed:0.05") as well:
        replicas = Target.replicas([stuck.base_url, well.base_url], ChatOpenAI, model="any", api_key="none")
        hedger = Hedger(policy=Fixed(0.2))
        llm = hedger.chat_model(*replicas)

        async def write(state: State) -> dict[str, Any]:
            answer = await llm.ainvoke("Write to the landlord.")
            print(f"written by {answer.response_metadata['agent_hedge']['target']}")
            return {"draft": answer.text}

        def send(state: State) -> dict[str, Any]:
            decision = interrupt({"send this?": state["draft"][:20]})
            return {"sent": decision}

        builder = StateGraph(State)
        builder.add_sequence([("write", write), ("send", send)])
        builder.add_edge(START, "write")
        graph = hedger.wrap_graph(builder).compile(checkpointer=InMemorySaver())
        run = {"run_key": "letter", "deadline_s": 30}  # where no code can open a run, configuration does
        config: RunnableConfig = {"configurable": {"thread_id": "1", "agent_hedge": run}}
        async with hedger:
            paused = await graph.ainvoke({"draft": "", "sent": ""}, config)
            print(f"a human is asked: {paused['__interrupt__'][0].value}")
            state = await graph.ainvoke(Command(resume="yes"), config)
            print(f"sent: {state['sent']}")


if __name__ == "__main__":
    asyncio.run(main())
