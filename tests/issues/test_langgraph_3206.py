"""langchain-ai/langgraph#3206: a subgraph with `checkpointer=True` is skipped when its node runs again."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, thread

TURNS = 2


async def a_subgraph_that_asks_in_every_turn(kit: Kit) -> Any:
    model, drafts = kit.chat(), []

    async def deep(state: State) -> State:
        draft = (await model.ainvoke(f"turn {len(state.get('log', []))}")).content
        answer = interrupt(draft)
        drafts.append(draft)
        return {"log": [answer]}

    inner: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    inner.add_node("deep", deep)
    inner.add_edge(START, "deep")

    outer: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    outer.add_node("count", lambda state: {"n": state.get("n", 0) + 1})
    outer.add_node("sub", kit.node(inner.compile(checkpointer=True)))
    outer.add_edge(START, "count")
    outer.add_edge("count", "sub")
    outer.add_conditional_edges("sub", lambda state: END if state["n"] >= TURNS else "count", ["count", END])
    graph = outer.compile(checkpointer=InMemorySaver())
    seen = [await graph.ainvoke({"log": [], "n": 0}, thread())]
    seen += [await graph.ainvoke(Command(resume=f"answer {turn}"), thread()) for turn in range(TURNS)]
    assert drafts == ["you said turn 0", "you said turn 2"], "it ran in both turns: its memory, and what it is given"
    assert (await graph.aget_state(thread())).next == ()
    return [seen, drafts]


def test_r09_a_subgraph_with_a_memory_runs_in_every_turn() -> None:
    conforms(a_subgraph_that_asks_in_every_turn, hedges_at_node=False)
