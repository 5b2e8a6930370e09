"""Engines and connections of our own, whatever a store is given as."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

from sqlalchemy.engine import Engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import PoolProxiedConnection

from agent_hedge.stores.sql import sqlite as files
from agent_hedge.stores.sql.faults import LOST
from agent_hedge.stores.sql.url import Store, store_url

POOL = {"pool_size": 4, "max_overflow": 4, "pool_recycle": 1800}


def make_engine(store: Store, *, timeout: float, schema: str | None = None) -> AsyncEngine:
    """Return an engine of our own for a store: our pool (an engine's connections belong to its loop), no parameters
    in errors, no statement left prepared.

    Of an `AsyncEngine` the pool is built anew with the arguments it was given, so that custom creators and
    credentials count.
    """
    url = store_url(store)
    options: dict[str, Any] = {"schema_translate_map": {None: schema}} if schema else {}
    if isinstance(store, AsyncEngine):
        mine = store.sync_engine
        engine = AsyncEngine(Engine(mine.pool.recreate(), mine.dialect, mine.url, hide_parameters=True))
        if options:
            engine = engine.execution_options(**options)
        if url.get_backend_name() == "sqlite":
            files.tune(engine)
        return engine
    arguments: dict[str, Any]
    pool: dict[str, Any]
    if url.get_backend_name() == "sqlite":
        arguments, pool = {}, {"pool_size": 1, "max_overflow": 0}  # one writer a process: in turn, not in contention
    else:
        seconds = max(2, round(timeout))
        if url.drivername.endswith("asyncpg"):
            arguments = {"timeout": seconds, "statement_cache_size": 0}
            url = url.update_query_dict({"prepared_statement_cache_size": "0"})
        else:
            arguments = {"connect_timeout": seconds, "prepare_threshold": None}
        pool = dict(POOL)
    engine = create_async_engine(
        url, connect_args=arguments, hide_parameters=True, execution_options=options, pool_timeout=timeout, **pool
    )
    if url.get_backend_name() == "sqlite":
        files.tune(engine)
    return engine


def checked_out(connection: AsyncConnection) -> PoolProxiedConnection:
    """Return what the pool has handed out. (`get_raw_connection` would make a greenlet to look it up.)"""
    assert connection.sync_connection is not None, "not connected"
    return connection.sync_connection.connection


def driver_of(connection: AsyncConnection) -> Any:
    """Return the driver's own connection."""
    return checked_out(connection).driver_connection


def sever(connection: AsyncConnection) -> bool:
    """Shut the socket down under a call that hangs, so that it ends with an error instead of never."""
    with suppress(Exception):
        driver = driver_of(connection)
        if hasattr(driver, "terminate"):
            driver.terminate()
            return True
        if hasattr(driver, "fileno"):
            with socket.socket(fileno=os.dup(driver.fileno())) as wire:
                wire.shutdown(socket.SHUT_RDWR)
            return True
    return False


async def dispose(engine: AsyncEngine) -> None:
    """Close an engine's connections; a dead one is no error."""
    with suppress(SQLAlchemyError, *LOST):
        await engine.dispose()
