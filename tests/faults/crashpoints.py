"""One guarded call in a process that dies at one of seven points (`facts/reliability.md` 2.3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

from langchain_core.tools import tool

from agent_hedge.core.step import Effect
from agent_hedge.errors import EffectInDoubt
from agent_hedge.stores.sql import direct
from agent_hedge.tools.effect import tool_effect
from tests.faults.agents import die, hedger_of

POINTS = (
    "P0 before the claim",
    "P1 claim not committed",
    "P2 claimed, not dispatched",
    "P3 effect done",
    "P4 before completion",
    "P5 completion not committed",
    "P6 completed",
)


def pay_once(store: str, world: str, effect: str, point: str, run: str, asynchronous: bool) -> str:
    """Pay in a run that always makes the same call; die at `point`. Return what the caller got."""
    hedger = hedger_of(store)
    ledger = hedger._guard._guarded.ledger
    here = point[:2]
    if here in ("P1", "P5"):
        _die_before_commit(1 if here == "P1" else 2)
    if here == "P2":
        ledger.sent = lambda permit: die()  # type: ignore[method-assign]
    if here == "P4":
        ledger.done = cast("Any", _deadly)  # type: ignore[method-assign]

    def execute(key: str) -> str:
        with Path(world).open("a") as file:
            file.write(f"{key or 'payment'}\n")
        if here == "P3":
            die()
        return "paid"

    keyed = effect == "keyed"
    declared: Any = tool_effect(Effect(effect), key_param="key" if keyed else None)

    def pay(amount: int, key: str = "") -> str:
        """Pay."""
        return execute(key)

    async def apay(amount: int, key: str = "") -> str:
        """Pay."""
        return execute(key)

    body: Any = apay if asynchronous else pay
    (guarded,) = hedger.guard_tools([declared(tool("pay")(body))])
    call = {"type": "tool_call", "id": "call-1", "name": "pay", "args": {"amount": 5}}
    if here == "P0":
        die()
    with hedger.run(key=run, deadline=600.0):
        try:
            answer = asyncio.run(guarded.ainvoke(call)) if asynchronous else guarded.invoke(call)
        except EffectInDoubt as doubt:
            said = vars(doubt)
            return "in doubt" if (said["tool"], len(said["key"]), said["age"] >= 0) == ("pay", 64, True) else "odd"
    if here == "P6":
        die()
    hedger.close()
    return str(answer.content)


def recover(store: str, effect: str, calls: list[tuple[str, str, bool]]) -> str:
    """Make each call twice more, each time as another incarnation."""
    said = []
    for world, run, asynchronous in calls:
        said += [pay_once(store, world, effect, "", run, asynchronous) for _ in range(2)]
    return "|".join(said)


async def _deadly(*_: Any) -> Any:
    die()


def _die_before_commit(number: int) -> None:
    """Die in place of the commit of the `number`th statement that claims or settles."""
    plain, begun = direct.Direct.run, 0

    async def counted(self: direct.Direct, driver: Any, parameters: Any) -> Any:
        nonlocal begun
        begun += 1
        return await plain(self, Doomed(driver) if begun == number else driver, parameters)

    direct.Direct.run = counted  # type: ignore[method-assign]


class Doomed:
    """A driver's connection, or what it hands out, that dies in place of a commit."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def _conn(self) -> Doomed:  # aiosqlite's
        return Doomed(self.inner._conn)

    def execute(self, sql: str, *parameters: Any) -> Any:
        if sql == "COMMIT" or not hasattr(self.inner, "in_transaction"):
            die()  # psycopg commits with the statement: not sent any more, which is the same to see
        return self.inner.execute(sql, *parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:  # asyncpg's
        async with self.inner.transaction():
            yield
            die()
