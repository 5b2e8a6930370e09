"""Behind a proxy that pools transactions: no statement may count on the server connection of the one before."""

from __future__ import annotations

import asyncio
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agent_hedge.core.ports import Block
from agent_hedge.core.step import Effect
from agent_hedge.core.stores import ClaimState, EffectRow, RunRow
from agent_hedge.stores.sql import sql_stores
from agent_hedge.testing.postgres import PostgresServer, free_port, unprivileged_user
from agent_hedge.testing.suites.claims import a_claim

pytestmark = pytest.mark.anyio
DRIVERS = ["psycopg", "asyncpg"]
START_S = 60.0
"""Real seconds that PgBouncer may take to start or to end, on any machine."""


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def pooled_port(postgres: PostgresServer) -> Iterator[int]:
    """PgBouncer with two server connections for everybody."""
    program = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if program is None:
        pytest.skip("needs pgbouncer (apt install pgbouncer)")
    root = Path(tempfile.mkdtemp(prefix="agent-hedge-pgbouncer-"))
    port = free_port()
    config = root / "pgbouncer.ini"
    config.write_text(
        f"[databases]\npostgres = host=127.0.0.1 port={postgres.port} user=postgres\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        "pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 100\n"
    )
    identity: dict[str, Any] = {}
    if os.geteuid() == 0:
        user = unprivileged_user()
        os.chown(root, user.pw_uid, user.pw_gid)
        identity = {"user": user.pw_uid, "group": user.pw_gid}
    running = subprocess.Popen(
        [program, "-q", str(config)], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **identity
    )
    try:
        end = time.monotonic() + START_S
        while not _listens(port):
            assert running.poll() is None, "PgBouncer has ended"
            assert time.monotonic() < end
            time.sleep(0.02)  # another process's start cannot be awaited
        yield port
    finally:
        running.terminate()
        running.wait(START_S)
        shutil.rmtree(root, ignore_errors=True)


@pytest.mark.parametrize("driver", DRIVERS)
async def test_every_store_works_behind_it(postgres: PostgresServer, pooled_port: int, driver: str) -> None:
    clients = [sql_stores(postgres.url(driver, port=pooled_port)) for _ in range(4)]
    name = f"pooled-{driver}-{time.monotonic_ns()}"

    async def work(number: int) -> set[str]:
        stores, winners = clients[number], set()
        for n in range(15):
            row = await stores.claims.claim(a_claim(f"{name}{n}", f"{number}-{n}", run_key=name), lease=60)
            if row.attempt_id == f"{number}-{n}":
                winners.add(row.attempt_id)
                assert await stores.claims.settle(row.effect_key, row.attempt_id, ClaimState.DONE, result=b"r")
            await stores.claims.of_thread("nobody")
            await stores.effects.write(
                [EffectRow(namespace=name, name=f"t{number}", effect=Effect.ONCE, source="code")], by="x"
            )
            await stores.effects.read()
        await stores.runs.save(RunRow(run_key=name, extra_attempts=4))
        await stores.runs.grant(name, 0, Block(hedges=2))
        await stores.steps.add_steps([{"step_id": f"{name}{number}", "run_key": name, "started_at": 1.0}])
        await stores.slices.put(f"w{number}", [(name, 1, b"x")])
        return winners

    won = await asyncio.gather(*map(work, range(4)))
    assert sum(map(len, won)) == 15
    assert {claim.state for claim in await clients[0].claims.of_run(name)} == {ClaimState.DONE}
    run = await clients[0].runs.load(name)
    assert run is not None
    assert run.hedges_granted == 4
    for stores in clients:
        await stores.close()


@pytest.mark.parametrize("driver", DRIVERS)
async def test_no_statement_stays_prepared(postgres: PostgresServer, driver: str) -> None:
    stores = sql_stores(postgres.url(driver))
    for n in range(20):
        await stores.claims.claim(a_claim(f"prepared-{driver}-{n}", "a"), lease=60)
    async with stores.database.engine.connect() as connection:
        found = await connection.execute(text("SELECT statement FROM pg_prepared_statements WHERE name <> ''"))
        assert [row for row in found if "pg_prepared_statements" not in row.statement] == []
    await stores.close()
