"""One guarded call in a process that dies at one of seven points (`facts/reliability.md` 2.3)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from langchain_core.tools import tool
from sqlalchemy import event

from agent_hedge.core.step import Effect
from agent_hedge.errors import EffectInDoubt
from agent_hedge.stores.sql import SqlStores, sqlite
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
        _die_before_commit(hedger._shared.stores, 1 if here == "P1" else 2)
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
    with hedger.run(key=run, deadline=10.0):
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


def _die_before_commit(stores: Any, number: int) -> None:
    """Die when the `number`th transaction that writes claims is about to be committed.

    psycopg commits by itself with the statement; there the statement is not sent any more, which is the same to see.
    """
    assert isinstance(stores, SqlStores)
    database = stores.database
    written = 0
    if database.is_sqlite:
        _die_in_the_transaction(number)
        return
    pending = False
    opened = database._open

    async def open_and_listen() -> None:
        await opened()
        engine = database.engine.sync_engine
        lone = database.url.drivername == "postgresql+psycopg"

        @event.listens_for(engine, "before_cursor_execute")
        def before(_c: Any, _k: Any, statement: str, *_: Any) -> None:
            nonlocal pending, written
            if "effect_claims" in statement and statement.startswith(("INSERT", "UPDATE")):
                pending = True
                if lone:
                    written += 1
                    if written == number:
                        die()

        @event.listens_for(engine, "commit")
        def commit(_: Any) -> None:
            nonlocal pending, written
            if pending and not lone:
                written += 1
                if written == number:
                    die()
            pending = False

    database._open = open_and_listen  # type: ignore[method-assign]


def _die_in_the_transaction(number: int) -> None:
    """On SQLite the whole transaction runs in one trip: run all of it but the commit."""
    plain, written = sqlite.at_once, 0

    async def deadly(driver: Any, sql: str, parameters: Any) -> Any:
        nonlocal written
        written += 1
        if written < number:
            return await plain(driver, sql, parameters)
        connection = driver._conn

        def run() -> None:
            connection.execute("BEGIN IMMEDIATE")
            assert connection.execute(sql, parameters).fetchone() is not None
            die()

        return await driver._execute(run)

    sqlite.at_once = deadly
