"""What a claim costs: claim and completion through the ledger, beside the raw driver's two statements (C10).

`python -m tests.benchmarks.ledger [--json]`; exit code 1 when the bound is missed. Both sides write the same rows with
the same durability (each statement commits) and nothing left prepared on the server, taking turns in one run; the ratio
is that of the medians. Ours is the whole way: naming the call, to the store's loop and back, twice. And what a verdict
for a step costs from the registry's snapshot of a thousand tools: the least of many repeats.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import sqlite3
import statistics
import sys
import tempfile
import time
import timeit
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg

from agent_hedge.core.step import Effect
from agent_hedge.engine.background import Background
from agent_hedge.stores.sql import SqlStores, migrate, sql_stores
from agent_hedge.testing.postgres import postgres_server
from agent_hedge.tools.effect import EffectSpec
from agent_hedge.tools.guarded import Guarded
from agent_hedge.tools.ledger import Ledger
from agent_hedge.tools.registry import Registry
from agent_hedge.tools.site import Site

BOUND = 2.5
VERDICT_BOUND_US = 2.0
CALLS, WARM = 500, 40
SPEC = EffectSpec(effect=Effect.ONCE, key="order", scope="global")

COLUMNS = (
    "effect_key, tool, effect, args_fingerprint, run_key, thread, call_id, principal, state, confirmed, executions, "
    "attempt_id, owner, clock, clock_at, lease_until, claimed_at, note"
)
INSERT = f"INSERT INTO effect_claims ({COLUMNS}) VALUES ({{}}) ON CONFLICT (effect_key) DO NOTHING RETURNING claimed_at"
UPDATE = (
    "UPDATE effect_claims SET state = 'done', result = {}, settled_at = {} "
    "WHERE effect_key = {} AND attempt_id = {} AND state IN ('running', 'in_doubt') RETURNING effect_key"
)

Step = Callable[[], Awaitable[object]]


def values() -> tuple[Any, ...]:
    key, now = secrets.token_hex(32), time.time()
    head = (key, "pay", "once", key, "run", "", "", "", "running", 0, 1)
    return (*head, secrets.token_hex(16), "owner", "clock", now, now + 10, now, "")


@asynccontextmanager
async def raw_sqlite(path: Path) -> AsyncIterator[Step]:
    connection = await aiosqlite.connect(path, isolation_level=None)
    await connection.execute("PRAGMA journal_mode=WAL")
    await connection.execute("PRAGMA synchronous=FULL")
    insert, update = INSERT.format(", ".join("?" * 18)), UPDATE.format(*"????")

    async def step() -> None:
        row = values()
        for statement, given in ((insert, row), (update, (b'"paid"', row[-2], row[0], row[11]))):
            await connection.execute("BEGIN IMMEDIATE")
            async with connection.execute(statement, given) as cursor:
                assert await cursor.fetchone()
            await connection.execute("COMMIT")

    try:
        yield step
    finally:
        await connection.close()


@asynccontextmanager
async def raw_psycopg(dsn: str) -> AsyncIterator[Step]:
    connection = await psycopg.AsyncConnection.connect(dsn, autocommit=True, prepare_threshold=None)
    insert: Any = INSERT.format(", ".join(["%s"] * 18))
    update: Any = UPDATE.format(*["%s"] * 4)

    async def step() -> None:
        row = values()
        for statement, given in ((insert, row), (update, (b'"paid"', row[-2], row[0], row[11]))):
            assert await (await connection.execute(statement, given)).fetchone()

    try:
        yield step
    finally:
        await connection.close()


def guarded(stores: SqlStores, background: Background) -> Step:
    """The whole way: from the caller's loop to the store's and back, twice."""
    ledger = Ledger(stores.claims)
    door = Guarded(ledger, background)

    async def paid(_: str) -> str:
        return "paid"

    async def step() -> None:
        call = ledger.call("pay", SPEC, {"order": secrets.token_hex(8)}, Site(run_key="run"))
        await door.arun(call, paid)

    return step


async def medians(raw: Step, ours: Step) -> tuple[float, float]:
    """Return the medians in seconds, of calls that take turns, each first every other time: a busy disk is then busy
    for both, and neither always comes just after the other's flush."""
    spent: dict[Step, list[float]] = {raw: [], ours: []}
    turns = [raw, ours]
    for step in turns * WARM:
        await step()
    for _ in range(CALLS):
        turns.reverse()
        for step in turns:
            started = time.perf_counter()
            await step()
            spent[step].append(time.perf_counter() - started)
    return statistics.median(spent[raw]), statistics.median(spent[ours])


async def measure(url: str, raw: Step) -> dict[str, float]:
    background, stores = Background(), sql_stores(url)
    try:
        plain, ours = await medians(raw, guarded(stores, background))
    finally:
        await asyncio.to_thread(background.call, stores.close)
        background.close()
    return {"raw_ms": plain * 1e3, "ledger_ms": ours * 1e3, "ratio": ours / plain, "bound": BOUND}


def verdict() -> dict[str, float]:
    registry = Registry()
    registry.declare({f"t{n}": Effect.READ_ONLY for n in range(1000)}, namespace="crm")
    best = min(timeit.repeat(lambda: registry.effect("t7", "crm"), number=5000, repeat=20)) / 5000
    return {"us": best * 1e6, "bound": VERDICT_BOUND_US}


def figures() -> dict[str, dict[str, float]]:
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.db"
        migrate.upgrade(f"sqlite:///{path}")
        with sqlite3.connect(path) as connection:
            connection.execute("PRAGMA journal_mode=WAL")

        async def on_sqlite() -> dict[str, float]:
            async with raw_sqlite(path) as raw:
                return await measure(f"sqlite:///{path}", raw)

        found["sqlite"] = asyncio.run(on_sqlite())
    with postgres_server() as server:
        migrate.upgrade(server.url())

        async def on_postgres() -> dict[str, float]:
            async with raw_psycopg(f"postgresql://postgres@127.0.0.1:{server.port}/postgres") as raw:
                return await measure(server.url("psycopg"), raw)

        found["postgresql"] = asyncio.run(on_postgres())
    return found


def main() -> int:
    found, judged = figures(), verdict()
    if "--json" in sys.argv:
        print(json.dumps({**found, "verdict": judged}, indent=2))
    else:
        for backend, row in found.items():
            print(
                f"{backend:10} claim + completion: raw driver {row['raw_ms']:.3f} ms, "
                f"ledger {row['ledger_ms']:.3f} ms, ratio {row['ratio']:.2f} (bound {BOUND})"
            )
        print(f"verdict    {judged['us']:.2f} us (bound {VERDICT_BOUND_US:g})")
    missed = any(row["ratio"] > BOUND for row in found.values()) or judged["us"] > VERDICT_BOUND_US
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
