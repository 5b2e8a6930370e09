"""Acceptance C7: what an LLM call loses while the store is away.

    python -m tests.benchmarks.outage [--json]

A hedged model whose hedger lives on a PostgreSQL behind a faulty proxy, beside its bare primary, call by call in turn,
so that whatever else this machine does meets both. One call in ten is slow. Meanwhile a guarded payment is tried again
and again: while the store is away none may be dispatched, and once it is back they go on in the same process. The times
are wall time, in milliseconds. Exit code 1 when a bound is missed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import AsyncIterator, Callable
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.tools import tool

from agent_hedge import Effect, Fixed, Hedger, Target, tool_effect
from agent_hedge.stores.sql import migrate
from agent_hedge.testing.postgres import postgres_server
from agent_hedge.testing.tcp_proxy import FaultyProxy

BOUND_MS = 5.0
"""How much later the p95 may be than without hedging."""
HUNG_S = 5.0
CALLS = 200
QUICK_S, SLOW_S, TRIGGER_S = 0.02, 0.08, 0.04
PAY_EVERY_S = 0.25

FAULTS: dict[str, Callable[[FaultyProxy], None]] = {
    "healthy": lambda proxy: None,
    "refused": FaultyProxy.refuse,
    "black hole": FaultyProxy.black_hole,
    "+200 ms each way": lambda proxy: setattr(proxy, "delay", 0.2),
}


class Timed(BaseChatModel):
    """Answers after as many seconds as the prompt says, at most `limit`."""

    limit: float = SLOW_S

    @property
    def _llm_type(self) -> str:
        return "timed"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        await asyncio.sleep(min(self.limit, float(str(messages[-1].content))))
        yield ChatGenerationChunk(message=AIMessageChunk(content="word"))


class Payments:
    """A guarded tool, and what became of its calls."""

    def __init__(self, hedger: Hedger) -> None:
        self.dispatched = 0
        self.outcomes: Counter[str] = Counter()
        self._numbers = itertools.count()

        @tool_effect(Effect.ONCE, key="order", scope="global")
        @tool
        async def pay(order: str) -> str:
            """Pay."""
            self.dispatched += 1
            return "paid"

        (self._pay,) = hedger.guard_tools([pay])

    async def once(self) -> str:
        order = f"{id(self)}-{next(self._numbers)}"
        try:
            outcome = str(await self._pay.ainvoke({"order": order}))
        except Exception as error:
            outcome = type(error).__name__
        self.outcomes[outcome] += 1
        return outcome

    async def again_and_again(self) -> None:
        open_: set[asyncio.Task[str]] = set()
        try:
            while True:
                open_.add(asyncio.ensure_future(self.once()))
                await asyncio.sleep(PAY_EVERY_S)
        finally:
            await asyncio.wait(open_)


async def p95_ms(bare: BaseChatModel, hedged: BaseChatModel) -> dict[str, float]:
    spent: dict[str, list[float]] = {"bare": [], "hedged": []}
    turns = [("bare", bare), ("hedged", hedged)]
    for number in range(CALLS):
        turns.reverse()
        for name, model in turns:
            started = time.perf_counter()
            async for _ in model.astream(str(SLOW_S if number % 10 == 9 else QUICK_S)):
                pass
            spent[name].append(time.perf_counter() - started)
    ranked = {name: sorted(times) for name, times in spent.items()}
    return {
        "bare_p95_ms": ranked["bare"][CALLS * 95 // 100] * 1e3,
        "hedged_p95_ms": ranked["hedged"][CALLS * 95 // 100] * 1e3,
        "hung": float(sum(seconds > HUNG_S for seconds in ranked["hedged"])),
    }


async def measure(url: str, proxy: FaultyProxy, fault: str) -> dict[str, Any]:
    hedger = Hedger(url, policy=Fixed(TRIGGER_S))
    hedged = hedger.chat_model(Target("a", Timed()), Target("b", Timed(limit=QUICK_S)))
    payments = Payments(hedger)
    try:
        assert await payments.once() == "paid"
        FAULTS[fault](proxy)
        before = payments.dispatched
        payments.outcomes.clear()
        paying = asyncio.ensure_future(payments.again_and_again())
        found: dict[str, Any] = {"fault": fault, **await p95_ms(Timed(), hedged)}
        paying.cancel()
        await asyncio.wait({paying})
        found |= {"payments": dict(payments.outcomes), "dispatched": payments.dispatched - before}
        proxy.accept()
        found["afterwards"] = await payments.once()
    finally:
        proxy.accept()
        await hedger.aclose()
    return found


def met(row: dict[str, Any]) -> bool:
    away = row["fault"] in ("refused", "black hole")
    told = {"StoreUnavailable"} if away else {"paid"}
    return (
        row["hedged_p95_ms"] <= row["bare_p95_ms"] + BOUND_MS
        and row["hung"] == 0
        and set(row["payments"]) == told
        and row["dispatched"] == row["payments"].get("paid", 0)
        and row["afterwards"] == "paid"
    )


def main() -> int:
    warnings.simplefilter("ignore")
    logging.getLogger("agent_hedge").setLevel(logging.ERROR)  # which says that the store is away
    with postgres_server() as server, FaultyProxy(server.port) as proxy:
        migrate.upgrade(server.url())
        rows = [asyncio.run(measure(server.url(port=proxy.port), proxy, fault)) for fault in FAULTS]
    if "--json" in sys.argv:
        print(json.dumps(rows, indent=2))
    else:
        for row in rows:
            print(
                f"{row['fault']:16} p95 bare {row['bare_p95_ms']:6.1f} ms, hedged {row['hedged_p95_ms']:6.1f} ms "
                f"(bound +{BOUND_MS:g}), {row['hung']:.0f} hung; guarded calls {row['payments']}, "
                f"{row['dispatched']} dispatched, then {row['afterwards']}: {'met' if met(row) else 'MISSED'}"
            )
    return int(not all(map(met, rows)))


if __name__ == "__main__":
    sys.exit(main())
