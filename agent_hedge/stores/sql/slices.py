"""Latency slices in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_hedge.core.checks import KEY_LIMIT, WORKER_LIMIT, check_text
from agent_hedge.stores.sql.engine import Database
from agent_hedge.stores.sql.schema import latency_slices as t


class SqlSlices:
    """A `SliceStore` in SQL."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def put(self, worker: str, rows: Sequence[tuple[str, int, bytes]]) -> None:
        check_text(worker, "a worker", WORKER_LIMIT, empty=False)
        for key, _, _ in rows:
            check_text(key, "a step key", KEY_LIMIT, empty=False)
        last = {(key, epoch): counts for key, epoch, counts in rows}
        values = [
            {"key": key, "slice": epoch, "worker": worker, "counts": counts}
            for (key, epoch), counts in sorted(last.items())
        ]
        insert = self._db.insert(t)
        statement = insert.on_conflict_do_update(
            index_elements=["key", "slice", "worker"], set_={"counts": insert.excluded.counts}
        )

        async def write(connection: AsyncConnection) -> None:
            await connection.execute(statement, values)

        if values:
            await self._db.write(write, again=True)

    async def since(self, epoch: int) -> Sequence[tuple[str, int, bytes]]:
        statement = select(t.c.key, t.c.slice, t.c.counts).where(t.c.slice >= epoch).order_by(t.c.slice)

        async def rows(connection: AsyncConnection) -> list[tuple[str, int, bytes]]:
            return [(row.key, row.slice, row.counts) for row in await connection.execute(statement)]

        return await self._db.read(rows)

    async def prune(self, before: int) -> int:
        async def remove(connection: AsyncConnection) -> int:
            return (await connection.execute(delete(t).where(t.c.slice < before))).rowcount

        return await self._db.one(remove)
