"""One database: its engine, and the one way every statement goes to it.

- An operation runs in a task of its own and is bounded in time. One that does not come back is left behind with its
  socket shut down: cancelling a driver call can itself hang on a dead peer (`asyncio.wait_for` around asyncpg in a
  black hole was still stuck after 6 s, measured).
- An operation that may be repeated is repeated once the connection is lost: claims carry their attempt id, so a reply
  that was swallowed is found on the row.
- No session state and no prepared statements: it works behind a proxy that pools transactions.
- Errors leave as `StoreUnavailable` or `ConfigurationError`, without the driver's text and without its context.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeVar

from sqlalchemy import Insert, Table, Update, select, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from agent_hedge.errors import ConfigurationError, StoreUnavailable
from agent_hedge.stores.sql import migrate
from agent_hedge.stores.sql import sqlite as files
from agent_hedge.stores.sql.clock import DatabaseClock, HostClock, LeaseClock
from agent_hedge.stores.sql.connect import checked_out, dispose, driver_of, make_engine, sever
from agent_hedge.stores.sql.direct import Direct, Row
from agent_hedge.stores.sql.faults import LOST, described, passing
from agent_hedge.stores.sql.schema import store_meta
from agent_hedge.stores.sql.url import Store, check_schema, shown, sqlite_path, store_url

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]

TIMEOUT_S = 5.0
"""Longest wait for PostgreSQL, all retries included."""
PATIENCE_S = 2.0
"""For how long an operation is repeated while connections are refused or break."""
CLOSE_S = 1.0
"""For how long closing waits for operations: one that is cancelled breaks its connection, and SQLAlchemy logs that."""
_GREETED = "agent_hedge_greeted"

Way = Literal["together", "alone", "reading"]


class _Ways(NamedTuple):
    """One engine as it is entered: statements in a transaction, one that commits by itself, reading only.

    (Made once: to derive an engine costs more than a statement.)
    """

    together: AsyncEngine
    alone: AsyncEngine
    reading: AsyncEngine

    @classmethod
    def of(cls, engine: AsyncEngine) -> _Ways:
        if engine.dialect.name == "sqlite":
            return cls(engine, engine, engine.execution_options(**{files.READ_ONLY: True}))
        # psycopg sends a lone statement in one trip. asyncpg parses and executes in two, which only a transaction
        # keeps on one server behind a pooling proxy.
        psycopg = engine.dialect.driver.startswith("psycopg")
        alone = engine.execution_options(isolation_level="AUTOCOMMIT") if psycopg else engine
        return cls(engine, alone, alone)


class Database:
    """A store's database, opened at the first operation and again after a failure to open. Belongs to one event loop.

    `timeout` in seconds; `create` lets a missing SQLite file be created and migrated.
    """

    def __init__(
        self,
        store: Store,
        *,
        schema: str | None = None,
        create: bool = True,
        timeout: float | None = None,
        clock: LeaseClock | None = None,
    ) -> None:
        self.url = store_url(store)
        check_schema(schema, self.url)
        if timeout is not None and not timeout > 0:
            raise ConfigurationError("the timeout of a store must be positive")
        self.schema = schema
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.timeout = timeout or (files.BUSY_S + TIMEOUT_S if self.is_sqlite else TIMEOUT_S)
        self.clock: LeaseClock = clock or (HostClock() if self.is_sqlite else DatabaseClock())
        self.uuid = ""
        self._create = create
        self._store = store
        self._ways: _Ways | None = None
        self._file: files.FileIdentity | None = None
        self._opening: asyncio.Lock | None = None
        self._pid = os.getpid()
        self._left_behind: set[asyncio.Future[Any]] = set()
        self._direct: dict[Insert | Update, Direct] = {}

    def __repr__(self) -> str:
        return f"Database({shown(self.url)})"

    # --- opening and closing

    async def open(self) -> None:
        """Connect, and see that the database is ours, whole and migrated. Does nothing when it is open."""
        if self._pid != os.getpid():  # after a fork the connections belong to the parent
            if self._ways is not None:
                self._ways.together.sync_engine.dispose(close=False)
            self._ways, self._opening, self._pid = None, None, os.getpid()
        if self._ways is not None:
            return
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            if self._ways is None:
                await self._open()

    async def _open(self) -> None:
        if self.is_sqlite:
            path = sqlite_path(self.url)
            if not await asyncio.to_thread(path.exists):
                if not self._create:
                    raise ConfigurationError(f"{path} does not exist; create it with: {self._command}")
                await asyncio.to_thread(migrate.create_sqlite, path)
            await asyncio.to_thread(files.examine, path)
            self._file = files.FileIdentity.of(path)
        engine = make_engine(self._store, timeout=self.timeout, schema=self.schema)
        ways = _Ways.of(engine)
        try:
            self.uuid = await self._bounded(self._inspected, ways.reading, self.timeout)
            self._ways = ways
            return
        except (SQLAlchemyError, *LOST) as error:
            failure = described(error)
        finally:
            if self._ways is None:
                await dispose(engine)
        raise StoreUnavailable(f"The store {shown(self.url)} cannot be opened ({failure}).")

    async def _inspected(self, connection: AsyncConnection) -> str:
        """Return the database's uuid, or raise `ConfigurationError`."""
        revision, meta = await connection.run_sync(migrate.read_version, self.schema)
        if revision is None:
            raise ConfigurationError(f"{shown(self.url)} holds no agent_hedge tables; run: {self._command}")
        migrate.check_version(revision, meta, self._command)
        if not self.is_sqlite:
            durability = (await connection.execute(text("SHOW synchronous_commit"))).scalar_one()
            if durability == "off":
                raise ConfigurationError(
                    "synchronous_commit is off: a claim would not survive a crash of the database; run: "
                    "ALTER ROLE ... SET synchronous_commit = on"
                )
        return meta.get("uuid") or ""

    @property
    def _command(self) -> str:
        schema = f" --schema {self.schema}" if self.schema else ""
        return f"agent-hedge db upgrade --store {shown(self.url)}{schema}"

    async def close(self) -> None:
        """Close every connection, once what is under way has ended (at most `CLOSE_S`)."""
        if self._left_behind:
            await asyncio.wait(self._left_behind, timeout=CLOSE_S)
        ways, self._ways = self._ways, None
        if ways is not None:
            await dispose(ways.together)

    @property
    def engine(self) -> AsyncEngine:
        """The open engine."""
        return self._entered("together")

    def _entered(self, way: Way) -> AsyncEngine:
        if self._ways is None:
            raise StoreUnavailable("The store is not open.")
        entered: AsyncEngine = getattr(self._ways, way)
        return entered

    # --- statements

    def insert(self, table: Table) -> Any:
        """Return an INSERT of the database's own dialect (for ON CONFLICT)."""
        return sqlite.insert(table) if self.is_sqlite else postgresql.insert(table)

    async def read(self, work: Work[T]) -> T:
        """Run statements that change nothing."""
        return await self._run(work, "reading", again=True)

    async def one(self, work: Work[T]) -> T:
        """Run one writing statement that may be repeated (and reads after it): a transaction of its own."""
        return await self._run(work, "alone", again=True)

    async def at_once(self, statement: Insert | Update, parameters: Mapping[str, object]) -> Row | None:
        """Run one writing statement that may be repeated, by the shortest way; return its first row."""

        async def work(connection: AsyncConnection) -> Row | None:
            if connection.in_transaction():  # the greeting's
                await connection.rollback()
            try:
                return await self._directly(statement, parameters).run(driver_of(connection), parameters)
            except (SQLAlchemyError, *LOST) as error:
                if not self.is_sqlite and passing(error):
                    await connection.invalidate()  # the pool has not seen it
                raise

        return await self._run(work, "alone", again=True)

    def _directly(self, statement: Insert | Update, names: Iterable[str]) -> Direct:
        found = self._direct.get(statement)
        if found is None:
            dialect = self.engine.dialect
            found = self._direct[statement] = Direct(statement, list(names), dialect, self.schema)
        return found

    async def write(self, work: Work[T], *, again: bool = False) -> T:
        """Run statements in one transaction. `again`: it may be repeated after a lost reply."""
        return await self._run(work, "together", again=again)

    async def _run(self, work: Work[T], way: Way, *, again: bool) -> T:
        started = time.monotonic()
        delay = 0.02
        while True:
            await self.open()
            if self._file is not None:
                self._file.check()
            left = self.timeout - (time.monotonic() - started)
            try:
                return await self._bounded(work, self._entered(way), left)
            except (SQLAlchemyError, *LOST) as error:
                failure = described(error)
                waited = time.monotonic() - started
                patience = min(PATIENCE_S, self.timeout)
                repeat = again and not self.is_sqlite and passing(error) and waited + delay < patience
            if not repeat:
                raise StoreUnavailable(f"The store did not answer ({failure}); nothing was dispatched.")
            await asyncio.sleep(delay)
            delay *= 2

    async def _bounded(self, work: Work[T], engine: AsyncEngine, seconds: float) -> T:
        held: list[AsyncConnection] = []

        async def operation() -> T:
            async with engine.connect() as connection:
                held.append(connection)
                await self._greet(connection)
                result = await work(connection)
                if connection.in_transaction():
                    await connection.commit()
                return result

        task = asyncio.ensure_future(operation())
        self._left_behind.add(task)
        task.add_done_callback(self._forget)
        done, _ = await asyncio.wait({task}, timeout=max(0.001, seconds))
        if done:
            return task.result()
        # A call whose socket is gone ends by itself; to cancel it as well would make psycopg ask the silent server, on
        # another connection, to cancel the query, for 5 s.
        if self.is_sqlite or not held or not sever(held[0]):
            task.cancel()
        raise TimeoutError

    def _forget(self, task: asyncio.Future[Any]) -> None:
        self._left_behind.discard(task)
        if not task.cancelled():
            task.exception()  # retrieved, or the loop would log it with its arguments

    async def _greet(self, connection: AsyncConnection) -> None:
        """See once per connection that the same ledger still answers there."""
        info = checked_out(connection).info
        if not self.uuid or info.get(_GREETED):
            return
        found = (await connection.execute(select(store_meta.c.text).where(store_meta.c.name == "uuid"))).scalar()
        if found != self.uuid:
            raise StoreUnavailable("Another database answers at the store's address: its ledger is not the one opened.")
        info[_GREETED] = True
