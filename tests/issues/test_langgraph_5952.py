"""langchain-ai/langgraph#5952: resolved interrupts of parallel nodes keep firing, or are routed to the wrong branch."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, thread


async def parallel_questions(kit: Kit) -> Any:
    model = kit.chat()
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)

    def asking(name: str) -> Any:
        async def ask(state: State) -> State:
            draft = (await model.ainvoke(name)).content
            return {"log": [f"{name}: {draft}: {interrupt(name)}"]}

        return ask

    for name in ("left", "right"):
        builder.add_node(name, kit.node(asking(name)))
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"log": []}, thread())
    seen = []
    for name in ("right", "left"):  # one at a time, in the other order
        waiting = {each.value: each.id for each in (await graph.aget_state(thread())).interrupts}
        seen.append(sorted(waiting))
        await graph.ainvoke(Command(resume={waiting[name]: f"yes, {name}"}), thread())
    state = await graph.aget_state(thread())
    return [seen, state.values["log"], len(state.interrupts)]


def test_r07_each_answer_reaches_the_branch_that_asked() -> None:
    conforms(parallel_questions, hedges_at_node=False)
