"""The two statements that go straight to the driver: in a schema of its own, and through an engine of the user's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from agent_hedge.core.stores import ClaimState
from agent_hedge.stores.sql import SqlStores, Store, migrate, sql_stores
from agent_hedge.testing.postgres import PostgresServer
from agent_hedge.testing.suites.claims import a_claim, digest

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
@pytest.mark.parametrize("given", [str, create_async_engine], ids=["url", "engine"])
@pytest.mark.parametrize("schema", [None, "crm"])
async def test_r11_claim_and_settlement_where_the_tables_are(
    postgres: PostgresServer, driver: str, given: Callable[[str], Store], schema: str | None
) -> None:
    if schema:
        migrate.upgrade(postgres.url(), schema=schema)
    stores = sql_stores(given(postgres.url(driver)), schema=schema)
    name = f"{driver}-{given.__name__}-{schema}"
    assert (await stores.claims.claim(a_claim(name, "mine"), lease=60)).attempt_id == "mine"
    assert (await stores.claims.claim(a_claim(name, "other"), lease=60)).attempt_id == "mine"
    assert not await stores.claims.settle(digest(name), "other", ClaimState.DONE)
    assert await stores.claims.settle(digest(name), "mine", ClaimState.DONE, result=b"result")
    found = await stores.claims.get(digest(name))
    assert found is not None
    assert (found.state, found.result) == (ClaimState.DONE, b"result")
    await stores.close()


@pytest.mark.parametrize("sql", ["sqlite", "psycopg", "asyncpg"], indirect=True)
async def test_c10_sqlalchemy_does_not_word_them_again_for_every_call(sql: SqlStores) -> None:
    worded = []
    event.listen(sql.database.engine.sync_engine, "before_cursor_execute", lambda *said: worded.append(said[2]))
    for n in range(3):
        name = f"direct-{n}"
        await sql.claims.claim(a_claim(name, "mine"), lease=60)
        await sql.claims.settle(digest(name), "mine", ClaimState.DONE)
    assert not [statement for statement in worded if "effect_claims" in statement]
    assert len(sql.database._direct) == 2
