"""Runs in SQL: their counts never go down, and their purse is granted in blocks under the row's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import case, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_hedge.core.ports import RunRow
from agent_hedge.stores.sql.engine import Database
from agent_hedge.stores.sql.schema import runs as t

_COUNTS = ("hedges_used", "recoveries_used", "steps")


class SqlRuns:
    """A `RunStore` in SQL."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def load(self, run_key: str) -> RunRow | None:
        found = await self._rows(select(t).where(t.c.run_key == run_key).order_by(t.c.generation.desc()).limit(1))
        return found[0] if found else None

    async def save(self, row: RunRow) -> None:
        values = {**asdict(row), "updated_at": self._db.clock.epoch()}
        insert = self._db.insert(t).values(values)
        new = insert.excluded
        changed: dict[str, Any] = {
            name: new[name] for name in values if name not in ("run_key", "generation", "hedges_granted")
        }
        changed |= {name: case((t.c[name] > new[name], t.c[name]), else_=new[name]) for name in _COUNTS}
        statement = insert.on_conflict_do_update(index_elements=["run_key", "generation"], set_=changed)

        async def put(connection: AsyncConnection) -> None:
            await connection.execute(statement)

        await self._db.one(put)

    async def grant(self, run_key: str, generation: int, block: int) -> int:
        mine = (t.c.run_key == run_key) & (t.c.generation == generation)

        async def take(connection: AsyncConnection) -> int:
            # The lock in a statement of its own: a clever single one over-grants under READ COMMITTED (measured).
            locked = select(t.c.extra_attempts, t.c.hedges_granted).where(mine).with_for_update()
            row = (await connection.execute(locked)).first()
            if row is None:
                return 0
            left = block if row.extra_attempts is None else row.extra_attempts - row.hedges_granted
            granted = max(0, min(block, left))
            if granted:
                await connection.execute(update(t).where(mine).values(hedges_granted=t.c.hedges_granted + granted))
            return granted

        return await self._db.write(take)

    async def release(self, run_key: str, generation: int, unspent: int) -> None:
        mine = (t.c.run_key == run_key) & (t.c.generation == generation)
        less = t.c.hedges_granted - unspent
        granted = case((less > t.c.hedges_used, less), else_=t.c.hedges_used)

        async def put(connection: AsyncConnection) -> None:
            await connection.execute(update(t).where(mine).values(hedges_granted=granted))

        await self._db.write(put)

    async def recent(self, limit: int) -> Sequence[RunRow]:
        return await self._rows(select(t).order_by(t.c.updated_at.desc()).limit(limit))

    async def prune(self, older_than: float) -> int:
        statement = delete(t).where(t.c.updated_at < self._db.clock.epoch() - older_than)

        async def remove(connection: AsyncConnection) -> int:
            return (await connection.execute(statement)).rowcount

        return await self._db.one(remove)

    async def _rows(self, statement: Any) -> list[RunRow]:
        async def rows(connection: AsyncConnection) -> list[RunRow]:
            return [_row(values) for values in (await connection.execute(statement)).mappings()]

        return await self._db.read(rows)


def _row(values: Mapping[Any, Any]) -> RunRow:
    return RunRow(**dict(values))
