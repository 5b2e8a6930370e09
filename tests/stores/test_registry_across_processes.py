"""What an operator says in one process counts in every other within 2 s: on SQLite and on PostgreSQL (R9)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from agent_hedge import Effect, Hedger
from agent_hedge.engine.rounds import EVERY_S
from agent_hedge.testing.postgres import PostgresServer
from tests.conftest import HUNG_S

WITHIN_S = 2.0


@pytest.fixture(params=["sqlite", "psycopg", "asyncpg"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "sqlite":
        file: str = request.getfixturevalue("sqlite_url")
        return file
    server: PostgresServer = request.getfixturevalue("postgres")
    return server.url(request.param)


@pytest.fixture
def hedger(url: str) -> Iterator[Hedger]:
    opened = Hedger(url, accounting="off")
    yield opened
    opened.close()


def test_r09_another_process_is_heard_in_the_round_after_it(url: str, hedger: Hedger) -> None:
    """A round begins every second and reads one revision: what stands before it begins is known when it ends."""
    assert 2 * EVERY_S <= WITHIN_S
    rounds, ended = [0], threading.Condition()
    read = hedger._shared.rounds._jobs["registry"]

    async def counted(now: float) -> None:
        await read(now)
        with ended:
            rounds[0] += 1
            ended.notify_all()

    hedger._shared.rounds._jobs["registry"] = counted
    name = f"search-{url.partition(':')[0]}"
    with ended:
        assert hedger.registry.effect(name) is Effect.ONCE, "nothing counts before the store was read"
        assert ended.wait_for(lambda: rounds[0] > 0, timeout=HUNG_S)
    for effect in (Effect.READ_ONLY, Effect.ONCE):
        said = [sys.executable, "-m", "agent_hedge.cli", "tools", "annotate", name, effect.value, "--store", url]
        subprocess.run(said, check=True, stdout=subprocess.DEVNULL, timeout=10 * HUNG_S)
        with ended:
            after = rounds[0] + 2  # one may have begun before
            assert ended.wait_for(lambda: rounds[0] >= after, timeout=HUNG_S)  # noqa: B023 - waited for right here
        assert hedger.registry.effect(name) is effect
