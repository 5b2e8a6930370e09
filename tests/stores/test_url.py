"""Which store a setting means (R20), and that no message holds its password (C9)."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from agent_hedge.core.stores import ClaimState
from agent_hedge.errors import ConfigurationError, StoreUnavailable
from agent_hedge.stores.sql import Database, sql_stores
from agent_hedge.stores.sql.url import Store, shown, store_url
from agent_hedge.testing.postgres import PostgresServer
from agent_hedge.testing.suites.claims import a_claim, digest

SECRET = "canary-p4ssw0rd"


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:///a.db", "sqlite+aiosqlite"),
        ("sqlite+aiosqlite:////tmp/a.db", "sqlite+aiosqlite"),
        ("postgres://h/d", "postgresql+psycopg"),
        ("postgresql://h/d", "postgresql+psycopg"),
        ("postgresql+psycopg://h/d", "postgresql+psycopg"),
        ("postgresql+asyncpg://h/d", "postgresql+asyncpg"),
        (make_url("postgresql://h/d"), "postgresql+psycopg"),
        (create_engine("sqlite:///a.db"), "sqlite+aiosqlite"),
        (create_engine("postgresql+psycopg://h/d"), "postgresql+psycopg"),
        (create_async_engine("postgresql+asyncpg://h/d"), "postgresql+asyncpg"),
    ],
    ids=str,
)
def test_accepted_stores(given: Store, driver: str) -> None:
    assert store_url(given).drivername == driver


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (f"mysql+aiomysql://u:{SECRET}@h/d", "mysql"),
        (f"postgresql+psycopg2://u:{SECRET}@h/d", "psycopg2"),
        (f"redis://:{SECRET}@h", "redis"),
        (f"u:{SECRET}@h/d", "a store is a URL"),
        (f"://u:{SECRET}@h/d", "a store is a URL"),
        (f"postgresql://u:{SECRET}@h:{SECRET}/d", "cannot be parsed"),
        ("", "a store is a URL"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
        (17, "not int"),
    ],
)
def test_r20_other_stores_are_refused_by_name_and_without_the_password(given: Store, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named) as caught:
        store_url(given)
    error: BaseException | None = caught.value
    while error is not None:
        assert SECRET not in repr(error)
        error = error.__cause__ or error.__context__


@pytest.mark.parametrize("schema", ["Ops", "a b", 'x";drop table y;--', "", "a" * 64])
def test_r20_a_schema_that_would_need_quoting_is_refused(schema: str) -> None:
    with pytest.raises(ConfigurationError):
        sql_stores("postgresql://h/d", schema=schema)


def test_r20_settings_that_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="SQLite"):
        sql_stores(f"sqlite:///{tmp_path}/a.db", schema="ops")
    with pytest.raises(ConfigurationError, match="timeout"):
        sql_stores(f"sqlite:///{tmp_path}/a.db", timeout=-1)


def test_names_of_stores_hide_password_and_query() -> None:
    url = f"postgresql://u:{SECRET}@h/d?sslpassword={SECRET}"
    assert SECRET not in shown(store_url(url))
    assert SECRET not in repr(Database(url))


@pytest.mark.anyio
async def test_a_wrong_password_is_not_printed(postgres: PostgresServer) -> None:
    for driver in ("psycopg", "asyncpg"):
        url = make_url(postgres.url(driver)).set(password=SECRET, database="nowhere")
        with pytest.raises(StoreUnavailable) as caught:
            await sql_stores(url).open()
        assert SECRET not in f"{caught.value!r} {caught.value.__cause__!r} {caught.value.__context__!r}"


@pytest.mark.anyio
async def test_an_engine_is_used_by_its_arguments_not_by_its_connections(
    postgres: PostgresServer, sqlite_url: str
) -> None:
    given: list[Store] = [
        create_async_engine(postgres.url("asyncpg"), connect_args={"server_settings": {"application_name": "mine"}}),
        create_async_engine(postgres.url("psycopg")),
        create_engine(postgres.url("psycopg")),
        create_engine(sqlite_url),
        create_async_engine(sqlite_url.replace("sqlite:", "sqlite+aiosqlite:")),
    ]
    for number, engine in enumerate(given):
        stores = sql_stores(engine)
        claim = a_claim(f"engine-{number}-{id(engine)}", f"a{number}")
        assert (await stores.claims.claim(claim, lease=60)).attempt_id == f"a{number}"
        assert await stores.claims.settle(claim.effect_key, f"a{number}", ClaimState.DONE)
        await stores.close()
    assert digest("x") != digest("y")
