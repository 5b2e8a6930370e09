"""Every store on every backend: memory, an SQLite file, PostgreSQL by both drivers."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from agent_hedge.core.stores import Stores
from agent_hedge.stores.memory import memory_stores
from agent_hedge.stores.sql import SqlStores, migrate, sql_stores
from agent_hedge.stores.sql.schema import metadata
from agent_hedge.testing.postgres import PostgresServer, postgres_server

BACKENDS = ["memory", "sqlite", "psycopg", "asyncpg"]


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server(settings={"max_connections": "200", "fsync": "off"}) as server:
        migrate.upgrade(server.url())
        yield server


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "store.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(sqlite_template: Path, tmp_path: Path) -> str:
    """A migrated SQLite file of the test's own."""
    path = tmp_path / "store.db"
    shutil.copy(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
async def sql(request: pytest.FixtureRequest) -> AsyncIterator[SqlStores]:
    """The stores of the backend named by the test's parameter, with empty tables."""
    backend: str = request.param
    if backend == "sqlite":
        stores = sql_stores(request.getfixturevalue("sqlite_url"))
    else:
        stores = sql_stores(request.getfixturevalue("postgres").url(backend))
    await stores.database.open()
    if backend != "sqlite":
        await empty(stores)
    yield stores
    await stores.close()


async def empty(stores: SqlStores) -> None:
    names = ", ".join(sorted(set(metadata.tables) - {"store_meta"}))
    async with stores.database.engine.begin() as connection:
        await connection.execute(text(f"TRUNCATE {names}"))
        await connection.execute(text("DELETE FROM store_meta WHERE name LIKE 'fence%'"))


@pytest.fixture(params=BACKENDS)
async def stores(request: pytest.FixtureRequest) -> AsyncIterator[Stores]:
    """Fresh stores on each backend."""
    backend: str = request.param
    if backend == "memory":
        yield memory_stores()
        return
    url = request.getfixturevalue("sqlite_url" if backend == "sqlite" else "postgres")
    opened = sql_stores(url if isinstance(url, str) else url.url(backend))
    await opened.database.open()
    if backend != "sqlite":
        await empty(opened)
    yield opened
    await opened.close()
