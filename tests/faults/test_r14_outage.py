"""C7: the store is refused, swallowed by a black hole, or slow. A guarded call is a typed error with no dispatch; the
calls of the model do not notice; and when the store is back, nothing has to be restarted."""

from __future__ import annotations

import asyncio
import itertools
import time
import uuid
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.tools import tool

from agent_hedge import Hedger
from agent_hedge.core.step import Effect
from agent_hedge.errors import StoreUnavailable
from agent_hedge.testing.postgres import PostgresServer
from agent_hedge.testing.tcp_proxy import FaultyProxy
from agent_hedge.tools.effect import tool_effect


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(postgres.port) as running:
        yield running


class Agent:
    """A hedged function that stands for the model, and a guarded payment."""

    def __init__(self, url: str, timeout: float) -> None:
        self.hedger = Hedger(url)
        self.hedger._shared.stores.database.timeout = timeout  # type: ignore[attr-defined]
        self.paid: list[int] = []
        self.amounts = itertools.count()

        @tool_effect(Effect.ONCE)
        @tool
        async def pay(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        async def say() -> str:
            await asyncio.sleep(0.01)
            return "said"

        (self.pay,) = self.hedger.guard_tools([pay])
        self.say = self.hedger.wrap(say, effect=Effect.READ_ONLY)

    async def call(self) -> Any:
        return await self.pay.ainvoke(
            {"type": "tool_call", "id": f"call-{uuid.uuid4()}", "name": "pay", "args": {"amount": next(self.amounts)}}
        )

    async def p95(self) -> float:
        spent = []
        for _ in range(40):
            started = time.perf_counter()
            await self.say()
            spent.append(time.perf_counter() - started)
        return sorted(spent)[37]


@pytest.mark.parametrize("fault", ["refused", "black hole", "slow"])
def test_r14_a_store_that_is_away(postgres: PostgresServer, proxy: FaultyProxy, fault: str) -> None:
    agent = Agent(postgres.url("psycopg", port=proxy.port), timeout=5.0 if fault == "slow" else 1.0)

    async def main() -> None:
        assert (await agent.call()).content == "paid"
        healthy = await agent.p95()
        if fault == "slow":
            proxy.delay = 0.2
            assert (await agent.call()).content == "paid"
        else:
            (proxy.refuse if fault == "refused" else proxy.black_hole)()
            started = time.perf_counter()
            refused = await asyncio.gather(*(agent.call() for _ in range(4)), return_exceptions=True)
            assert {type(error) for error in refused} == {StoreUnavailable}
            assert time.perf_counter() - started < 5.0
            assert len(agent.paid) == 1
        busy = asyncio.gather(*(agent.call() for _ in range(4)), return_exceptions=True)
        assert await agent.p95() < healthy + 0.05  # 5 ms on a quiet machine; this one is shared
        await busy
        before = len(agent.paid)
        proxy.accept()
        assert (await agent.call()).content == "paid"
        assert len(agent.paid) == before + 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        asyncio.run(main())
    agent.hedger.close()
