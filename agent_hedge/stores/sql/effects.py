"""The registry's rows in SQL. A row that somebody wrote by hand and that makes no sense is read as `UNKNOWN`, and
says why; it never breaks the rest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Table, delete, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import EffectRow
from agent_hedge.errors import ConfigurationError
from agent_hedge.stores.sql.engine import Database
from agent_hedge.stores.sql.schema import store_meta, tool_effect_history, tool_effects

_KEY = ["namespace", "name", "source"]
_REVISION = store_meta.c.name == "effects_revision"


class SqlEffects:
    """An `EffectStore` in SQL. The revision's row is locked by every writer, so revisions appear in their order."""

    def __init__(self, database: Database) -> None:
        self._db = database

    async def read(self) -> tuple[int, Sequence[EffectRow]]:
        async def rows(connection: AsyncConnection) -> tuple[int, Sequence[EffectRow]]:
            # The revision first: rows may then be newer than it, never older.
            revision = await _revision(connection)
            return revision, await _rows(connection, tool_effects)

        return await self._db.read(rows)

    async def revision(self) -> int:
        return await self._db.read(_revision)

    async def write(self, rows: Sequence[EffectRow], *, by: str) -> int:
        if not rows:
            return await self.revision()
        last = {(row.namespace, row.name, row.source): row for row in rows}

        async def put(connection: AsyncConnection) -> int:
            revision = await _next_revision(connection)
            now = (await connection.execute(select(self._db.clock.epoch()))).scalar_one()
            values = [_values(row, revision, now, by) for row in last.values()]
            insert = self._db.insert(tool_effects)
            changed = {name: insert.excluded[name] for name in values[0] if name not in _KEY}
            await connection.execute(insert.on_conflict_do_update(index_elements=_KEY, set_=changed), values)
            history = [{**value, "withdrawn": 0} for value in values]
            await connection.execute(tool_effect_history.insert(), history)
            return revision

        return await self._db.write(put, again=True)

    async def withdraw(self, namespace: str, name: str, source: str, *, by: str) -> int:
        t = tool_effects
        mine = (t.c.namespace == namespace) & (t.c.name == name) & (t.c.source == source)

        async def remove(connection: AsyncConnection) -> int:
            found = (await connection.execute(select(t).where(mine))).mappings().first()
            if found is None:
                return await _revision(connection)
            revision = await _next_revision(connection)
            now = (await connection.execute(select(self._db.clock.epoch()))).scalar_one()
            await connection.execute(delete(t).where(mine))
            line = {**found, "revision": revision, "updated_at": now, "updated_by": by, "withdrawn": 1}
            await connection.execute(tool_effect_history.insert(), [line])
            return revision

        return await self._db.write(remove, again=True)

    async def history(self, namespace: str, name: str) -> Sequence[EffectRow]:
        t = tool_effect_history

        async def rows(connection: AsyncConnection) -> Sequence[EffectRow]:
            return await _rows(connection, t, t.c.namespace == namespace, t.c.name == name)

        return await self._db.read(rows)


async def _revision(connection: AsyncConnection) -> int:
    found = (await connection.execute(select(store_meta.c.number).where(_REVISION))).scalar()
    return int(found or 0)


async def _next_revision(connection: AsyncConnection) -> int:
    moved = update(store_meta).where(_REVISION).values(number=store_meta.c.number + 1).returning(store_meta.c.number)
    return int((await connection.execute(moved)).scalar_one())


async def _rows(connection: AsyncConnection, table: Table, *conditions: Any) -> list[EffectRow]:
    order = table.c.id if table is tool_effect_history else table.c.revision
    found = await connection.execute(select(table).where(*conditions).order_by(order))
    return [_row(values) for values in found.mappings()]


def _values(row: EffectRow, revision: int, now: float, by: str) -> dict[str, Any]:
    return {
        "namespace": row.namespace,
        "name": row.name,
        "source": row.source,
        "effect": row.effect.value,
        "repeat_allowed": int(row.repeat_allowed),
        "trusted": int(row.trusted),
        "schema_hash": row.schema_hash,
        "rules": _json(row.rules),
        "settings": _json(row.settings),
        "note": row.note,
        "revision": revision,
        "updated_at": now,
        "updated_by": by,
    }


def _json(value: Mapping[str, Any] | None) -> str | None:
    return None if value is None else json.dumps(value, sort_keys=True)


def _row(values: Mapping[Any, Any]) -> EffectRow:
    """Read a stored row, or the little that is left of it with its `problem`."""
    common = {name: values[name] for name in ("namespace", "name", "source", "schema_hash", "note", "updated_by")}
    times = {"revision": values["revision"], "updated_at": values["updated_at"]}
    withdrawn = values.get("withdrawn") == 1
    try:
        return EffectRow(
            effect=Effect(values["effect"]),
            trusted=_truth(values["trusted"]),
            repeat_allowed=_truth(values["repeat_allowed"]),
            rules=_rules(values["rules"]),
            settings=_object(values["settings"]),
            withdrawn=withdrawn,
            **common,
            **times,
        )
    except (ConfigurationError, ValueError, TypeError) as error:
        return EffectRow(
            namespace=_plain(values["namespace"]),
            name=_plain(values["name"]) or "?",
            source=_plain(values["source"]),
            effect=Effect.UNKNOWN,
            trusted=False,
            repeat_allowed=False,
            withdrawn=withdrawn,
            problem=f"the stored row makes no sense ({type(error).__name__})",
        )


def _truth(value: object) -> bool:
    if value not in (0, 1):
        raise ValueError("neither 0 nor 1")
    return value == 1


def _object(value: str | None) -> dict[str, Any] | None:
    if value is None:
        return None
    found = json.loads(value)
    if not isinstance(found, dict):
        raise ValueError("not an object")
    return found


def _rules(value: str | None) -> dict[str, dict[str, str]] | None:
    found = _object(value)
    for cases in (found or {}).values():
        for effect in cases.values():
            Effect(effect)
    return found


def _plain(value: object) -> str:
    """What of a hostile name can be shown: it still names the entry that is barred."""
    return "".join(char for char in str(value) if char.isprintable())[:255]
