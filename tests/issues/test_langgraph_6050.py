"""langchain-ai/langgraph#6050: a nested resume runs completed tasks again. A raced node with tasks is barred."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import task
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, thread


async def tasks_and_a_question(kit: Kit) -> Any:
    model, runs = kit.chat(), []

    async def work(text: str) -> str:
        runs.append(text)
        return str((await model.ainvoke(text)).content)

    working = task(kit.hedger.task(work) if kit.unit == "model" else work)

    async def ask(state: State) -> State:
        first = await working("first")
        answer = interrupt("?")
        return {"log": [first, answer, await working("second")]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke({"log": []}, thread())
    result = await graph.ainvoke(Command(resume="yes"), thread())
    assert runs == ["first", "second"], "a completed task is not run again"
    return [result, runs]


def test_r09_a_completed_task_is_not_run_again() -> None:
    conforms(tasks_and_a_question, hedges_at_node=False)
