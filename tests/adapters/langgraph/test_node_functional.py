"""The functional API: `@task` bodies and `@entrypoint` workflows at unit="model" (issue 5, 4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.types import Command, interrupt

from agent_hedge import Hedger
from agent_hedge.errors import ConfigurationError
from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, everything, thread


def body(kit: Kit, function: Any) -> Any:
    return kit.hedger.task(function) if kit.unit == "model" else function


async def tasks_in_a_workflow(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(text: str) -> str:
        return str((await model.ainvoke(text)).content)

    asking = task(body(kit, ask))

    async def flow(text: str, *, previous: Any = None) -> Any:
        first = await asking(text)
        if text == "at once":
            both = list(await asyncio.gather(asking(first), asking("other")))
        else:
            both = [await asking(first), await asking("other")]
        return entrypoint.final(value=[*both, previous], save=first)

    workflow = entrypoint(checkpointer=InMemorySaver())(body(kit, flow))
    again = await everything(workflow, "two", thread())
    return [again, await workflow.ainvoke("at once", thread())]


async def a_workflow_that_interrupts(kit: Kit) -> Any:
    model, runs = kit.chat(), []

    async def ask(text: str) -> str:
        runs.append(text)
        return str((await model.ainvoke(text)).content)

    asking = task(body(kit, ask))

    async def flow(text: str) -> Any:
        draft = await asking(text)
        return [draft, interrupt(draft), await asking("after")]

    workflow = entrypoint(checkpointer=InMemorySaver())(body(kit, flow))
    seen = [await everything(workflow, "one", thread()), await everything(workflow, Command(resume="ok"), thread())]
    return [seen, runs]


@pytest.mark.parametrize("scenario", [tasks_in_a_workflow, a_workflow_that_interrupts])
def test_r07_functional(scenario: Any) -> None:
    conforms(scenario, units=("model",))


def test_sync_tasks_keep_their_names() -> None:
    hedger = Hedger()

    def add(a: int, b: int = 1) -> int:
        return a + b

    adding = task(hedger.task(add))

    @entrypoint()
    @hedger.task
    def flow(a: int) -> int:
        return adding(a, b=2).result()

    assert getattr(adding, "__name__", "add") == "add"
    with pytest.warns(UserWarning, match="hedges nothing"):
        assert flow.invoke(1) == 3


def test_a_task_itself_is_refused() -> None:
    @task
    def add(a: int) -> int:
        return a

    with pytest.raises(ConfigurationError, match="below @task"):
        Hedger().task(add)
