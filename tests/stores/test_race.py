"""C4: eight processes claim the same keys. One winner each, nobody starved, no error."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from random import Random

import pytest

from agent_hedge.stores.sql import sql_stores, sqlite
from agent_hedge.testing.postgres import PostgresServer
from agent_hedge.testing.suites.claims import a_claim

PROCESSES = 8
STARVED_S = 60.0
"""Real seconds after which a claim counts as starved: it is an error then. No slow machine takes that long."""


def racer(url: str, number: int, keys: int, name: str, gate: Callable[[], None]) -> dict[str, object]:
    """The body of one process: claim every key; return who won each and how long the longest claim took."""

    async def body() -> dict[str, object]:
        sqlite.BUSY_S = STARVED_S  # (this process is ours)
        stores = sql_stores(url, timeout=STARVED_S)
        await stores.open()
        gate()
        winners, errors, longest = {}, 0, 0.0
        # Each goes its own way through every block of 16 keys: in one common order the leader would win them all.
        order = sorted(range(keys), key=lambda key: (key // 16, Random(f"{number}/{key}").random()))
        for key in order:
            began = time.perf_counter()
            claim = a_claim(f"{name}-{key}", f"{number}-{key}", owner=str(number))
            try:
                winners[key] = (await stores.claims.claim(claim, lease=60)).attempt_id
            except Exception:
                errors += 1
            longest = max(longest, time.perf_counter() - began)
        await stores.close()
        return {"winners": winners, "errors": errors, "longest": longest}

    return asyncio.run(body())


def fork(url: str, keys: int) -> None:
    """The body of the parent of all racers (it runs no thread yet, so it may fork): print their findings."""
    name = f"race-{time.monotonic_ns()}"
    ready, say_ready = os.pipe()
    go, say_go = os.pipe()

    def gate() -> None:
        os.write(say_ready, b"r")
        os.read(go, 1)  # the end of the file, for all at once

    children = []
    for number in range(PROCESSES):
        reading, writing = os.pipe()
        if os.fork() == 0:
            os.close(say_go)
            with os.fdopen(writing, "w") as out:
                json.dump(racer(url, number, keys, name, gate), out)
            os._exit(0)
        os.close(writing)
        children.append(reading)
    for _ in children:
        os.read(ready, 1)
    os.close(say_go)
    found = []
    for reading in children:
        with os.fdopen(reading) as out:
            found.append(json.load(out))
    for _ in children:
        os.wait()
    print(json.dumps(found))


def race(url: str, keys: int) -> tuple[list[set[str]], int, float]:
    command = [sys.executable, "-c", "import sys; from tests.stores.test_race import fork; fork(*eval(sys.argv[1]))"]
    done = subprocess.run([*command, repr((url, keys))], stdout=subprocess.PIPE, text=True, timeout=1800, check=True)
    found = json.loads(done.stdout)
    winners = [{one["winners"].get(str(key), "") for one in found} for key in range(keys)]
    return winners, sum(one["errors"] for one in found), max(one["longest"] for one in found)


def check(url: str, keys: int) -> None:
    winners, errors, longest = race(url, keys)
    assert errors == 0
    assert {len(found) for found in winners} == {1}
    shares = Counter(attempt.partition("-")[0] for found in winners for attempt in found)
    print(f"{keys} keys, longest claim {longest:.2f} s, wins {dict(shares)}")


def test_r11_one_winner_over_processes_on_postgresql(postgres: PostgresServer) -> None:
    check(postgres.url("psycopg"), 80)


def test_r11_one_winner_over_processes_on_sqlite(sqlite_url: str) -> None:
    check(sqlite_url, 80)


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_r11_c4_full_on_postgresql(postgres: PostgresServer, driver: str) -> None:
    check(postgres.url(driver), 2000)


@pytest.mark.slow
def test_r11_c4_full_on_sqlite(sqlite_url: str) -> None:
    check(sqlite_url, 2000)
