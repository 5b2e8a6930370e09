"""The functional API: `@task` bodies and `@entrypoint` workflows at unit="model" (issue 5, 4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import CachePolicy, Command, RetryPolicy, StreamWriter, interrupt

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


async def all_that_a_workflow_has(kit: Kit) -> Any:
    """Injected values, a cached task, one that is retried, five at once, an interrupt, and what the last run saved."""
    model, store = kit.chat(), InMemoryStore()
    tries: list[str] = []

    async def ask(text: str, *, times: int = 1) -> str:
        return str((await model.ainvoke(f"{text} {times}")).content)

    async def flaky(text: str) -> str:
        tries.append(text)
        answer = str((await model.ainvoke(text)).content)
        if len(tries) % 2:
            raise ConnectionError
        return answer

    asking: Any = task(body(kit, ask), name="asking", cache_policy=CachePolicy(ttl=60))
    retried: Any = task(body(kit, flaky), retry_policy=RetryPolicy(initial_interval=0.1, jitter=False))

    async def flow(
        text: str, *, previous: Any, store: BaseStore, writer: StreamWriter, runtime: Runtime[Any]
    ) -> entrypoint.final[Any, Any]:
        first, second = await asking(text, times=3), await retried("flaky")
        several = await asyncio.gather(*(asking(f"part {n}") for n in range(5)))
        writer({"said": first})
        assert runtime.store is store
        await store.aput(("a",), "k", {"v": first})
        answer = interrupt(first)
        return entrypoint.final(value=[first, second, *several, answer, previous], save=first)

    saver, cache = InMemorySaver(), InMemoryCache[Any]()
    workflow = entrypoint(checkpointer=saver, store=store, cache=cache)(body(kit, flow))
    seen: list[Any] = []
    turns: list[Any] = ["one", Command(resume="ok"), "two", Command(resume="sure")]
    for given in turns:
        parts = await everything(workflow, given, thread())
        seen.append([part for part in parts if part[1] in ("values", "custom")])
    return [seen, tries, [each.value for each in await store.asearch(("a",))]]


@pytest.mark.parametrize("scenario", [tasks_in_a_workflow, a_workflow_that_interrupts, all_that_a_workflow_has])
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
