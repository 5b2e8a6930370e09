"""A plan-and-execute agent of 20 steps under one deadline, over two replicas with stragglers. Offline; a few seconds.

Nothing of the graph changes: the hedged model stands in plain nodes, and the run around them shares one deadline and
one purse of extra attempts between all steps.
"""

import asyncio
from typing import Any, TypedDict

from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph

from agent_hedge import Fixed, FleetBudget, Hedger, Target
from agent_hedge.testing.engine import FakeEngine

STEPS = 20
SPIKY = "stragglers:0.02,0.1,0.1,1.5,2,3"  # 20 ms; one call in ten takes 1.5 to 3 s more


class State(TypedDict):
    plan: list[str]
    done: list[str]


def build(llm: BaseChatModel) -> StateGraph[State]:
    async def plan(state: State) -> dict[str, Any]:
        await llm.ainvoke("Plan the journey.")
        return {"plan": [f"leg {number}" for number in range(1, STEPS)], "done": []}

    async def execute(state: State) -> dict[str, Any]:
        leg = state["plan"][len(state["done"])]
        answer = await llm.ainvoke(f"Do {leg}.")
        return {"done": [*state["done"], f"{leg}: {answer.text[:20]}"]}

    builder = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("execute", execute)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "execute")
    builder.add_conditional_edges("execute", lambda state: END if len(state["done"]) == STEPS - 1 else "execute")
    return builder


async def main() -> None:
    async with FakeEngine(SPIKY, seed=1) as one, FakeEngine(SPIKY, seed=2) as other:
        urls = [one.base_url, other.base_url]
        replicas = Target.replicas(urls, ChatOpenAI, model="any", api_key="none", max_tokens=12)
        hedger = Hedger(policy=Fixed(0.2), budget=FleetBudget(0.2))  # the default policy learns its delay
        graph = build(hedger.chat_model(*replicas)).compile()
        async with hedger, hedger.run(key="journey", deadline=30.0, steps=STEPS) as run:
            state = await graph.ainvoke({"plan": [], "done": []}, {"recursion_limit": STEPS + 5})
            print(f"{len(state['done']) + 1} steps, the last of them {state['done'][-1]!r}")
            report = run.report()
            print(f"{report['elapsed_s']:.1f} s, {report['extra_attempts_used']} extra attempts")


if __name__ == "__main__":
    asyncio.run(main())
