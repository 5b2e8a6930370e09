"""langchain-ai/langgraph#7780: interrupt() in a loop needs more resumes than it asks questions."""

from __future__ import annotations

from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, thread


async def questions_in_a_loop(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        draft = (await model.ainvoke("draft")).content
        answers: list[str] = []
        while "stop" not in answers:
            answers.append(interrupt(f"{draft} {len(answers)}"))
        return {"log": answers}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=InMemorySaver())
    results = [await graph.ainvoke({"log": []}, thread())]
    results += [await graph.ainvoke(Command(resume=answer), thread()) for answer in ("a", "b", "stop")]
    return results


def test_r07_one_resume_answers_one_question() -> None:
    conforms(questions_in_a_loop, hedges_at_node=False)
