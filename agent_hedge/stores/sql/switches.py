"""Switches in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_hedge.core.stores import SCOPE_KINDS, Switch
from agent_hedge.errors import ConfigurationError
from agent_hedge.stores.sql.engine import Database
from agent_hedge.stores.sql.schema import switches as t


class SqlSwitches:
    """A `SwitchStore` in SQL; expiry is on the database's clock."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def switches(self) -> Sequence[Switch]:
        statement = select(t).where(or_(t.c.until.is_(None), t.c.until > self._db.clock.epoch()))

        async def rows(connection: AsyncConnection) -> list[Switch]:
            return [_switch(row) for row in (await connection.execute(statement)).mappings()]

        return await self._db.read(rows)

    async def set(self, switch: Switch) -> None:
        values = {**asdict(switch), "updated_at": self._db.clock.epoch()}
        insert = self._db.insert(t).values(values)
        changed = {name: insert.excluded[name] for name in ("mode", "reason", "until", "updated_at")}
        statement = insert.on_conflict_do_update(index_elements=["scope_kind", "scope"], set_=changed)

        async def put(connection: AsyncConnection) -> None:
            await connection.execute(statement)

        await self._db.one(put)


def _switch(row: Mapping[Any, Any]) -> Switch:
    try:
        return Switch(
            scope_kind=row["scope_kind"], scope=row["scope"], mode=row["mode"], reason=row["reason"], until=row["until"]
        )
    except ConfigurationError:
        # Somebody wanted something of this scope: the strictest it can mean, over the widest it can mean.
        known = row["scope_kind"] in SCOPE_KINDS
        return Switch(
            scope_kind=row["scope_kind"] if known else "fleet",
            scope=row["scope"] if known and len(row["scope"]) <= 512 else "",
            mode="off",
            reason="a stored switch makes no sense",
        )
