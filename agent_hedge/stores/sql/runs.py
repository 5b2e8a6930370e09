"""Runs in SQL: what each process has counted is added up, and the purse is granted in blocks under the row's lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import case, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_hedge.core.ports import Block
from agent_hedge.core.stores import RunRow
from agent_hedge.stores.sql.engine import Database
from agent_hedge.stores.sql.schema import runs as t

_COUNTS = ("steps", "hedges_used", "tokens_used", "cost_used", "recoveries_used")
_GRANTED = (t.c.hedges_granted, t.c.tokens_granted, t.c.cost_granted)
_USED = (t.c.hedges_used, t.c.tokens_used, t.c.cost_used)
_CAPS = (t.c.extra_attempts, t.c.tokens, t.c.cost)


class SqlRuns:
    """A `RunStore` in SQL."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def load(self, run_key: str) -> RunRow | None:
        found = await self._rows(select(t).where(t.c.run_key == run_key).order_by(t.c.generation.desc()).limit(1))
        return found[0] if found else None

    async def save(self, row: RunRow) -> None:
        values = {**asdict(row), "updated_at": self._db.clock.epoch()}
        insert = self._db.insert(t).values(values | {column.name: 0 for column in _GRANTED})
        new = insert.excluded
        kept = ("run_key", "generation", *(column.name for column in _GRANTED))
        changed: dict[str, Any] = {name: new[name] for name in values if name not in kept}
        changed |= {name: t.c[name] + new[name] for name in _COUNTS}
        statement = insert.on_conflict_do_update(index_elements=["run_key", "generation"], set_=changed)

        async def put(connection: AsyncConnection) -> None:
            await connection.execute(statement)

        await self._db.write(put)

    async def grant(self, run_key: str, generation: int, wanted: Block) -> Block:
        mine = (t.c.run_key == run_key) & (t.c.generation == generation)

        async def take(connection: AsyncConnection) -> Block:
            # The lock in a statement of its own: a clever single one over-grants under READ COMMITTED (measured).
            row = (await connection.execute(select(*_CAPS, *_GRANTED).where(mine).with_for_update())).first()
            if row is None:
                return Block()
            granted = wanted.at_most(Block(*row[3:]).left_of(*row[:3]))
            if granted != Block():
                more = {column.name: column + part for column, part in zip(_GRANTED, granted, strict=True)}
                await connection.execute(update(t).where(mine).values(more))
            return granted

        return await self._db.write(take)

    async def release(self, run_key: str, generation: int, unspent: Block) -> None:
        mine = (t.c.run_key == run_key) & (t.c.generation == generation)
        less = {
            granted.name: case((granted - part > used, granted - part), else_=used)
            for granted, used, part in zip(_GRANTED, _USED, unspent, strict=True)
        }

        async def put(connection: AsyncConnection) -> None:
            await connection.execute(update(t).where(mine).values(less))

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
