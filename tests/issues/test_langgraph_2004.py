"""langchain-ai/langgraph#2004 (and #5639): MultipleSubgraphsError where one node calls a subgraph several times."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, thread


async def two_subgraphs_at_once(kit: Kit) -> Any:
    model = kit.chat()

    async def deep(state: State) -> State:
        return {"log": [(await model.ainvoke(str(state["n"]))).content]}

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    inner.add_node("deep", deep)
    inner.add_edge(START, "deep")
    graph = inner.compile()

    async def call(state: State) -> State:
        found = await asyncio.gather(*(graph.ainvoke({"n": n, "log": []}) for n in range(2)))
        return {"log": [each["log"] for each in found]}

    outer: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    outer.add_node("call", kit.node(call))
    outer.add_edge(START, "call")
    saver = InMemorySaver()
    result = await outer.compile(checkpointer=saver).ainvoke({"log": []}, thread())
    counts: dict[str, int] = {}
    for each in saver.list(thread()):
        namespace = each.config["configurable"]["checkpoint_ns"].partition(":")
        counts[namespace[0] + namespace[2][36:]] = counts.get(namespace[0] + namespace[2][36:], 0) + 1
    return [result, dict(sorted(counts.items()))]


def test_r05_subgraphs_of_attempts_do_not_collide() -> None:
    conforms(two_subgraphs_at_once)
