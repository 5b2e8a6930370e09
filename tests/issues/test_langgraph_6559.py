"""langchain-ai/langgraph#6559: a checkpointer that a server injects at run time does not keep results of `@task`s."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from agent_hedge.adapters.langgraph.private import CHECKPOINTER
from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State


async def a_task_under_an_injected_checkpointer(kit: Kit) -> Any:
    model, runs = kit.chat(), []

    async def choose(text: str) -> str:
        runs.append(text)
        return str((await model.ainvoke(text)).content)

    choosing = task(kit.hedger.task(choose) if kit.unit == "model" else choose)

    async def ask(state: State) -> State:
        chosen = await choosing("a or b")
        return {"log": [chosen, interrupt(chosen)]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    graph = builder.compile()  # as a server wants it: without a checkpointer of its own
    config: Any = {"configurable": {"thread_id": "t", CHECKPOINTER: InMemorySaver()}}
    asked = await graph.ainvoke({"log": []}, config)
    result = await graph.ainvoke(Command(resume="yes"), config)
    assert runs == ["a or b"], "the result of the task is kept over the resume"
    return [asked, result, runs]


def test_r09_a_task_is_not_run_again_under_an_injected_checkpointer() -> None:
    conforms(a_task_under_an_injected_checkpointer, hedges_at_node=False)
