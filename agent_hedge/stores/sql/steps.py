"""Logical requests and physical attempts in SQL: batches of partial rows, merged by id."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, delete, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_hedge.core.stores import ATTEMPT_COLUMNS, STEP_COLUMNS, check_columns
from agent_hedge.stores.sql.engine import Database
from agent_hedge.stores.sql.schema import attempts, steps

_SETTLED = ("outcome", "decision")


class SqlSteps:
    """A `StepStore` in SQL."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def add_steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        await self._add(steps, rows, STEP_COLUMNS, "step_id")

    async def add_attempts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        await self._add(attempts, rows, ATTEMPT_COLUMNS, "attempt_id")

    async def _add(self, table: Table, rows: Sequence[Mapping[str, Any]], columns: frozenset[str], key: str) -> None:
        # Rows of the same columns go in one statement. Order within an id matters, so an id seen again ends a batch;
        # ids are written in one order everywhere, so that two workers cannot wait for each other.
        rounds: list[dict[str, dict[str, Any]]] = []
        seen: dict[str, int] = defaultdict(int)
        for row in rows:
            check_columns(row, columns, key)
            turn = seen[row[key]]
            seen[row[key]] += 1
            if turn == len(rounds):
                rounds.append({})
            rounds[turn][row[key]] = {name: value for name, value in row.items() if value is not None}

        async def put(connection: AsyncConnection) -> None:
            for batch in rounds:
                alike: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
                for _, row in sorted(batch.items()):
                    alike[tuple(sorted(row))].append(row)
                for names, values in alike.items():
                    await connection.execute(self._merge(table, names, key), values)

        if rounds:
            await self._db.write(put, again=True)

    def _merge(self, table: Table, names: Sequence[str], key: str) -> Any:
        insert = self._db.insert(table)
        changed = {
            name: func.coalesce(table.c[name], insert.excluded[name]) if name in _SETTLED else insert.excluded[name]
            for name in names
            if name != key
        }
        if not changed:
            return insert.on_conflict_do_nothing(index_elements=[key])
        return insert.on_conflict_do_update(index_elements=[key], set_=changed)

    async def steps_of(self, run_key: str) -> Sequence[Mapping[str, Any]]:
        return await self._rows(select(steps).where(steps.c.run_key == run_key).order_by(steps.c.started_at))

    async def attempts_of(self, run_key: str) -> Sequence[Mapping[str, Any]]:
        mine = select(steps.c.step_id).where(steps.c.run_key == run_key)
        return await self._rows(
            select(attempts).where(attempts.c.step_id.in_(mine)).order_by(attempts.c.started_at, attempts.c.number)
        )

    async def since(self, epoch: float, limit: int) -> Sequence[Mapping[str, Any]]:
        return await self._rows(
            select(steps).where(steps.c.started_at >= epoch).order_by(steps.c.started_at.desc()).limit(limit)
        )

    async def attempts_since(self, epoch: float, limit: int) -> Sequence[Mapping[str, Any]]:
        return await self._rows(
            select(attempts)
            .where(attempts.c.started_at >= epoch)
            .order_by(attempts.c.started_at.desc(), attempts.c.number.desc())
            .limit(limit)
        )

    async def prune(self, before: float) -> int:
        async def remove(connection: AsyncConnection) -> int:
            await connection.execute(delete(attempts).where(attempts.c.started_at < before))
            return (await connection.execute(delete(steps).where(steps.c.started_at < before))).rowcount

        return await self._db.write(remove, again=True)

    async def _rows(self, statement: Any) -> list[dict[str, Any]]:
        async def rows(connection: AsyncConnection) -> list[dict[str, Any]]:
            return [dict(row) for row in (await connection.execute(statement)).mappings()]

        return await self._db.read(rows)
