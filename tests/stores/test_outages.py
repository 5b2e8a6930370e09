"""PostgreSQL behind a proxy that fails (R14, C7): typed errors in bounded time, recovery without a restart, and no
claim lost with its reply."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import time
from collections.abc import Iterator

import pytest

from agent_hedge.core.stores import ClaimState
from agent_hedge.errors import StoreUnavailable
from agent_hedge.stores.sql import engine, sql_stores
from agent_hedge.testing.postgres import PostgresServer
from agent_hedge.testing.suites.claims import a_claim, digest
from agent_hedge.testing.tcp_proxy import FaultyProxy

pytestmark = pytest.mark.anyio
DRIVERS = ["psycopg", "asyncpg"]
HUNG_S = 60.0
"""Real seconds after which a call counts as hung: far above every time-out of the store, on any machine."""


@pytest.fixture
def proxy(postgres: PostgresServer) -> Iterator[FaultyProxy]:
    with FaultyProxy(postgres.port) as running:
        yield running


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that gives up only what hangs, however slow the machine is."""
    for wait in ("TIMEOUT_S", "PATIENCE_S", "CLOSE_S"):
        monkeypatch.setattr(engine, wait, HUNG_S)


def fresh(name: str) -> str:
    return f"{name}-{time.monotonic_ns()}"


@pytest.mark.parametrize("driver", DRIVERS)
async def test_r14_a_refused_store_is_a_typed_error_and_comes_back(
    postgres: PostgresServer, proxy: FaultyProxy, driver: str
) -> None:
    stores = sql_stores(postgres.url(driver, port=proxy.port))
    key = fresh("refused")
    await stores.claims.claim(a_claim(key, "a1"), lease=60)
    proxy.refuse()
    with pytest.raises(StoreUnavailable) as caught:
        async with asyncio.timeout(HUNG_S):
            await stores.claims.claim(a_claim(fresh("refused"), "a2"), lease=60)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None
    proxy.accept()
    assert (await stores.claims.claim(a_claim(key, "a3"), lease=60)).attempt_id == "a1"
    await stores.close()


@pytest.mark.parametrize("driver", DRIVERS)
async def test_r14_a_black_hole_is_a_typed_error_and_nothing_hangs(
    postgres: PostgresServer, proxy: FaultyProxy, driver: str
) -> None:
    # asyncpg leaves a future unretrieved when a connection dies in the negotiation of SSL, which we do not test here
    url = postgres.url(driver, port=proxy.port) + ("?ssl=disable" if driver == "asyncpg" else "")
    stores = sql_stores(url)
    await stores.open()
    patient, stores.database.timeout = stores.database.timeout, 0.5  # only where nothing can come
    key = fresh("hole")
    proxy.black_hole()
    async with asyncio.timeout(HUNG_S):
        results = await asyncio.gather(
            *(stores.claims.claim(a_claim(f"{key}{n}", f"a{n}"), lease=60) for n in range(10)), return_exceptions=True
        )
    assert {type(result) for result in results} == {StoreUnavailable}
    if stores.database._left_behind:
        _, hung = await asyncio.wait(stores.database._left_behind, timeout=HUNG_S)
        assert not hung
    proxy.accept()
    stores.database.timeout = patient
    won = await stores.claims.claim(a_claim(key, "mine"), lease=60)
    assert won.attempt_id == "mine"
    await stores.close()


@pytest.mark.parametrize("driver", DRIVERS)
async def test_r14_a_store_that_is_away_at_the_start_is_opened_later(
    postgres: PostgresServer, proxy: FaultyProxy, driver: str
) -> None:
    stores = sql_stores(postgres.url(driver, port=proxy.port))
    proxy.refuse()
    with pytest.raises(StoreUnavailable):
        await stores.open()
    with pytest.raises(StoreUnavailable):
        await stores.effects.read()
    proxy.accept()
    await stores.effects.read()
    await stores.close()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("driver", DRIVERS)
async def test_a_slow_store_is_only_slow(postgres: PostgresServer, proxy: FaultyProxy, driver: str) -> None:
    stores = sql_stores(postgres.url(driver, port=proxy.port))
    await stores.open()
    proxy.delay = 0.05
    assert (await stores.claims.claim(a_claim(fresh("slow"), "a1"), lease=60)).attempt_id == "a1"
    await stores.close()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("driver", "marker"), [("psycopg", b"INSERT INTO effect_claims"), ("asyncpg", b"COMMIT")])
async def test_r11_a_claim_whose_reply_was_lost_is_recognised(
    postgres: PostgresServer, proxy: FaultyProxy, driver: str, marker: bytes
) -> None:
    stores = sql_stores(postgres.url(driver, port=proxy.port))
    await stores.open()
    key = fresh("lost")
    own = 0
    for n in range(100):
        proxy.lose_reply_to(marker)
        own += (await stores.claims.claim(a_claim(f"{key}{n}", f"a{n}"), lease=60)).attempt_id == f"a{n}"
    assert own == 100
    assert proxy.lost_replies == 100
    await stores.close()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize(("driver", "marker"), [("psycopg", b"UPDATE effect_claims"), ("asyncpg", b"COMMIT")])
async def test_r11_settling_and_taking_over_survive_a_lost_reply(
    postgres: PostgresServer, proxy: FaultyProxy, driver: str, marker: bytes
) -> None:
    stores = sql_stores(postgres.url(driver, port=proxy.port))
    key = fresh("settle")
    await stores.claims.claim(a_claim(key, "a1"), lease=0)
    proxy.lose_reply_to(marker)
    taken = await stores.claims.take_over(a_claim(key, "a2"), previous_attempt="a1", lease=60)
    assert (taken.attempt_id, taken.executions) == ("a2", 2)
    proxy.lose_reply_to(marker)
    assert await stores.claims.settle(digest(key), "a2", ClaimState.DONE, result=b"r")
    assert proxy.lost_replies == 2
    await stores.close()


async def test_r11_claims_survive_restarts_of_the_server(postgres: PostgresServer) -> None:
    stores = [sql_stores(postgres.url(driver)) for driver in DRIVERS * 2]
    name = fresh("restart")
    keys = [f"{name}-{n}" for n in range(60)]
    winners: dict[str, set[str]] = {key: set() for key in keys}

    async def claimer(number: int) -> None:
        for key in keys:
            attempt = f"{key}-{number}"
            while True:
                try:
                    row = await stores[number].claims.claim(a_claim(key, attempt), lease=60)
                    break
                except StoreUnavailable:
                    await asyncio.sleep(0.02)
            winners[key].add(row.attempt_id)
            await asyncio.sleep(0.005)

    async def breaker() -> None:
        for how in (signal.SIGQUIT, signal.SIGKILL):
            await asyncio.sleep(0.15)
            await asyncio.to_thread(postgres.restart, how)

    async with asyncio.timeout(10 * HUNG_S):
        await asyncio.gather(breaker(), *map(claimer, range(4)))
    assert {len(found) for found in winners.values()} == {1}
    for store in stores:
        await store.close()


async def test_r14_what_a_lost_operation_leaves_behind_is_not_logged(
    postgres: PostgresServer, proxy: FaultyProxy, caplog: pytest.LogCaptureFixture
) -> None:
    stores = sql_stores(postgres.url("asyncpg", port=proxy.port))
    await stores.open()
    stores.database.timeout = 0.2  # only where nothing can come: a busy machine may take longer to open
    proxy.black_hole()
    with caplog.at_level(logging.DEBUG), pytest.raises(StoreUnavailable):
        await stores.claims.claim(a_claim(fresh("log"), "a1", tool="canary-tool"), lease=60)
    proxy.accept()
    if stores.database._left_behind:
        await asyncio.wait(stores.database._left_behind, timeout=HUNG_S)
    gc.collect()
    assert "canary" not in caplog.text
    assert "never retrieved" not in caplog.text
    await stores.close()


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("driver", DRIVERS)
async def test_closing_waits_for_what_is_under_way(
    postgres: PostgresServer, proxy: FaultyProxy, driver: str, caplog: pytest.LogCaptureFixture
) -> None:
    stores = sql_stores(postgres.url(driver, port=proxy.port))
    await stores.open()
    proxy.delay = 0.02
    key = fresh("closing")
    under_way = asyncio.ensure_future(stores.claims.claim(a_claim(key, "a1"), lease=60))
    await asyncio.sleep(0)
    await stores.close()
    assert not stores.database._left_behind
    assert (await under_way).attempt_id == "a1"
    assert "sqlalchemy" not in {record.name.partition(".")[0] for record in caplog.records}
    await stores.close()
