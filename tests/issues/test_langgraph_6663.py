"""langchain-ai/langgraph#6663: one interrupt is resumed twice, with different values."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, thread


async def resumed_twice(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        answer = interrupt("?")
        return {"log": [answer, (await model.ainvoke(str(answer))).content]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"log": []}, thread())
    before = (await graph.aget_state(thread())).config
    first = await graph.ainvoke(Command(resume="yes"), before)
    second = await graph.ainvoke(Command(resume="no"), before)
    return [first, second]


def test_r04_the_value_of_the_resume_counts() -> None:
    conforms(resumed_twice, hedges_at_model=False, hedges_at_node=False)
