"""Map-reduce over `Send`: 20 parallel branches share one purse of extra attempts. Offline; takes a second or two."""

import asyncio
import operator
from typing import Annotated, Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph
from langgraph.types import Send

from agent_hedge import Fixed, FleetBudget, Hedger, Target
from agent_hedge.testing.engine import FakeEngine

SPIKY = "stragglers:0.02,0.1,0.15,1.5,2,3"  # 20 ms; three calls in twenty take 1.5 to 3 s more


class State(TypedDict):
    chapters: list[int]
    summaries: Annotated[list[str], operator.add]


class Chapter(TypedDict):
    chapter: int


def build(llm: BaseChatModel) -> StateGraph[State]:
    async def summarise(state: Chapter) -> dict[str, Any]:
        answer = await llm.ainvoke(f"Summarise chapter {state['chapter']}.")
        return {"summaries": [answer.text[:20]]}

    def spread(state: State) -> list[Send]:
        return [Send("summarise", {"chapter": chapter}) for chapter in state["chapters"]]

    builder = StateGraph(State)
    builder.add_node("summarise", summarise)
    builder.add_conditional_edges(START, spread, ["summarise"])
    return builder


async def main() -> None:
    async with FakeEngine(SPIKY, seed=1) as one, FakeEngine(SPIKY, seed=2) as other:
        urls = [one.base_url, other.base_url]
        replicas = Target.replicas(urls, ChatOpenAI, model="any", api_key="none", max_tokens=12)
        hedger = Hedger(policy=Fixed(0.2), budget=FleetBudget(0.2))
        graph = build(hedger.chat_model(*replicas)).compile()
        async with hedger, hedger.run(deadline=20.0, extra_attempts=3) as run:
            state = await graph.ainvoke({"chapters": list(range(20)), "summaries": []})
            print(f"{len(state['summaries'])} summaries, {run.extra_attempts_used} of 3 extra attempts used")


if __name__ == "__main__":
    asyncio.run(main())
