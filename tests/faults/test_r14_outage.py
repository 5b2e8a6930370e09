"""C7: the store is refused, swallowed by a black hole, or slow. A guarded call is a typed error with no dispatch; the
calls of the model do not notice; and when the store is back, nothing has to be restarted. (How little the model
notices in real time: `python -m tests.benchmarks.outage`.)"""

from __future__ import annotations

import asyncio
import itertools
import threading
import uuid
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.tools import tool

from agent_hedge import Hedger
from agent_hedge.core.step import Effect
from agent_hedge.errors import StoreUnavailable
from agent_hedge.policies import Fixed
from agent_hedge.stores.sql.engine import Database
from agent_hedge.testing.clock import VirtualTimeLoop
from agent_hedge.testing.postgres import PostgresServer
from agent_hedge.testing.tcp_proxy import FaultyProxy
from agent_hedge.tools.effect import tool_effect

FAULTS = ["refused", "black hole", "slow"]
HUNG_S = 60.0
"""Real seconds after which a call counts as hung: far above every time-out of the store, on any machine."""


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(postgres.port) as running:
        yield running


@contextmanager
def broken(proxy: FaultyProxy, agent: Agent, fault: str) -> Iterator[None]:
    """Only where no answer can come is the store given up soon: elsewhere a busy machine may take its time."""
    if fault == "slow":
        proxy.delay = 0.2
    else:
        agent.database.timeout = 1.0
        (proxy.refuse if fault == "refused" else proxy.black_hole)()
    yield
    proxy.accept()
    agent.database.timeout = HUNG_S


class Agent:
    """A hedged function that stands for the model, and a guarded payment."""

    def __init__(self, url: str) -> None:
        self.hedger = Hedger(url, policy=Fixed(0.05))
        self.database: Database = self.hedger._shared.stores.database  # type: ignore[attr-defined]
        self.database.timeout = HUNG_S
        self.paid: list[int] = []
        self.amounts = itertools.count()

        @tool_effect(Effect.ONCE)
        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        async def say(seconds: float) -> str:
            await asyncio.sleep(seconds)
            return "said"

        (self.pay,) = self.hedger.guard_tools([pay])
        self.say = self.hedger.wrap(say, key="say", effect=Effect.READ_ONLY, targets=["a", "b"])

    async def call(self) -> Any:
        return await self.pay.ainvoke(
            {"type": "tool_call", "id": f"call-{uuid.uuid4()}", "name": "pay", "args": {"amount": next(self.amounts)}}
        )

    async def calls(self, number: int) -> list[Any]:
        """Make so many calls at a time; each has ended, one way or the other."""
        tasks = [asyncio.ensure_future(self.call()) for _ in range(number)]
        ended, hung = await asyncio.wait(tasks, timeout=HUNG_S)
        assert not hung
        return [task.exception() or task.result() for task in ended]


@pytest.fixture
def agent(postgres: PostgresServer, proxy: FaultyProxy) -> Iterator[Agent]:
    agent = Agent(postgres.url("psycopg", port=proxy.port))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield agent
        agent.hedger.close()


@pytest.mark.parametrize("fault", FAULTS)
def test_r14_no_claim_no_dispatch_and_no_restart(proxy: FaultyProxy, agent: Agent, fault: str) -> None:
    async def main() -> None:
        assert (await agent.call()).content == "paid"
        with broken(proxy, agent, fault):
            answers = await agent.calls(4)
        if fault == "slow":
            assert {answer.content for answer in answers} == {"paid"}
            assert len(agent.paid) == 5
        else:
            assert {type(error) for error in answers} == {StoreUnavailable}
            assert len(agent.paid) == 1
        before = len(agent.paid)
        assert (await agent.call()).content == "paid"
        assert len(agent.paid) == before + 1

    asyncio.run(main())


@contextmanager
def paying(agent: Agent) -> Iterator[None]:
    """Keep the background loop busy with guarded calls, from another thread."""
    over = threading.Event()

    async def main() -> None:
        while not over.is_set():
            await agent.calls(2)

    thread = threading.Thread(target=lambda: asyncio.run(main()))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("fault", FAULTS)
def test_r14_the_model_does_not_notice(proxy: FaultyProxy, agent: Agent, fault: str) -> None:
    """In virtual time, which ticks along, a call that waited for anything but its model would take longer by that."""

    async def main() -> list[tuple[float, float]]:
        loop, spent = asyncio.get_running_loop(), []

        def tick() -> None:
            loop.call_later(0.001, tick)

        tick()
        for number in range(200):
            needed = 0.08 if number % 10 == 9 else 0.02
            started = loop.time()
            assert await agent.say(needed) == "said"
            spent.append((loop.time() - started, needed))
        return spent

    asyncio.run(agent.call())
    with broken(proxy, agent, fault), paying(agent), asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        spent = runner.run(main())
    assert [took for took, _ in spent] == pytest.approx([needed for _, needed in spent], abs=1e-9)
