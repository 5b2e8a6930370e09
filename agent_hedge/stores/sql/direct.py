"""One writing statement, straight to the driver, durable when it returns.

A claim and its settlement stand around every side effect. SQLAlchemy words these statements, once; to go through it
for every call would cost several times what they cost (0.3 ms each more, measured on psycopg).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Insert, Update
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import OperationalError
from sqlalchemy.sql.compiler import SQLCompiler

Row = tuple[Any, ...]


class Direct:
    """A statement in the words of a dialect's driver; its tables are those of `schema`, its parameters `names`."""

    def __init__(self, statement: Insert | Update, names: Sequence[str], dialect: Dialect, schema: str | None) -> None:
        where: dict[str, Any] = {}
        if schema:
            where = {"schema_translate_map": {None: schema}, "render_schema_translate": True}
        compiled = statement.compile(dialect=dialect, column_keys=list(names), **where)
        assert isinstance(compiled, SQLCompiler)
        self._compiled = compiled
        self._send: Callable[[Any, str, Any], Awaitable[Row | None]]
        self._send = {"aiosqlite": _sqlite, "asyncpg": _asyncpg}.get(dialect.driver, _psycopg)

    async def run(self, driver: Any, parameters: Mapping[str, object]) -> Row | None:
        """Run it on a connection of the driver, in a transaction of its own; return its first row.

        The driver's errors come as `OperationalError`.
        """
        named = self._compiled.construct_params(parameters)
        order = self._compiled.positiontup
        given = named if order is None else [named[name] for name in order]
        return await self._send(driver, self._compiled.string, given)


async def _psycopg(driver: Any, sql: str, parameters: Any) -> Row | None:
    """One trip, on a connection that commits by itself."""
    import psycopg

    try:
        row: Row | None = await (await driver.execute(sql, parameters)).fetchone()
    except psycopg.Error as error:
        raise _failed(error) from None
    return row


async def _asyncpg(driver: Any, sql: str, parameters: Any) -> Row | None:
    """Two trips, to parse and to execute, which only a transaction keeps on one server behind a pooling proxy."""
    import asyncpg  # type: ignore[import-untyped]

    try:
        async with driver.transaction():
            found = await driver.fetchrow(sql, *parameters)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError) as error:
        raise _failed(error) from None
    return None if found is None else tuple(found)


async def _sqlite(driver: Any, sql: str, parameters: Any) -> Row | None:
    """One trip to the connection's thread: step by step the trips cost more than the claim itself."""
    connection: sqlite3.Connection = driver._conn

    def run() -> Row | None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            row: Row | None = connection.execute(sql, parameters).fetchone()
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return row

    try:
        found: Row | None = await driver._execute(run)
    except sqlite3.Error as error:
        raise _failed(error) from None
    return found


def _failed(error: Exception) -> OperationalError:
    return OperationalError(None, None, error, hide_parameters=True)
