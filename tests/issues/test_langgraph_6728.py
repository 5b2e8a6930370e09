"""langchain-ai/langgraph#6728: duplicated subgraph tasks and forked checkpoints with `checkpointer=True`."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, thread


async def a_subgraph_with_a_memory(kit: Kit) -> Any:
    model, saver = kit.chat(), InMemorySaver()

    async def deep(state: State) -> State:
        said = (await model.ainvoke(f"turn {len(state['log'])}")).content
        return {"log": [said]}

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    inner.add_node("deep", deep)
    inner.add_edge(START, "deep")
    memory = inner.compile(checkpointer=True)

    async def call(state: State) -> State:
        return {"log": [len((await memory.ainvoke({"log": []}))["log"])]}

    outer: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    outer.add_node("call", kit.node(call))
    outer.add_edge(START, "call")
    graph = outer.compile(checkpointer=saver)
    results = [await graph.ainvoke({"log": []}, thread()) for _ in range(3)]
    namespaces = sorted({each.config["configurable"]["checkpoint_ns"] for each in saver.list(thread())})
    return [results, namespaces]


def test_r09_a_subgraph_with_a_memory_runs_once() -> None:
    conforms(a_subgraph_with_a_memory, hedges_at_node=False)
