"""C2: a real SIGKILL at seven points, on SQLite and PostgreSQL. Before and after the effect look the same (P2, P3)."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from agent_hedge.testing.postgres import PostgresServer
from tests.faults.agents import LEASE_S, in_a_process
from tests.faults.crashpoints import POINTS, pay_once, recover

ONCE = {
    "P0": (1, "paid"),
    "P1": (1, "paid"),
    "P2": (0, "in doubt"),
    "P3": (1, "in doubt"),
    "P4": (1, "in doubt"),
    "P5": (1, "in doubt"),
    "P6": (1, "paid"),
}
"""Payments after two recoveries, and what each recovery was told."""


@pytest.mark.parametrize("backend", ["sqlite", "psycopg", pytest.param("asyncpg", marks=pytest.mark.slow)])
@pytest.mark.parametrize("effect", ["once", "keyed"])
def test_r11_the_seven_crash_points(backend: str, effect: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if backend == "sqlite":
        url: str = request.getfixturevalue("sqlite_url")
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(backend)

    def crash(point: str) -> tuple[str, int, str]:
        world, run = tmp_path / point[:2], f"{tmp_path.name}-{backend}-{point[:2]}"
        asynchronous = point[:2] in ("P0", "P3", "P5")
        first = in_a_process(pay_once, url, str(world), effect, point, run, asynchronous)
        time.sleep(1.5 * LEASE_S)
        again = in_a_process(recover, url, str(world), effect, "", run, asynchronous)
        lines = world.read_text().splitlines() if world.exists() else []
        payments = len(set(lines)) if effect == "keyed" else len(lines)
        return first, payments, again

    with ThreadPoolExecutor(3) as pool:
        found = dict(zip([point[:2] for point in POINTS], pool.map(crash, POINTS), strict=True))
    assert {point: seen[0] for point, seen in found.items()} == dict.fromkeys(found, "killed")
    told = {point: (payments, said) for point, (_, payments, said) in found.items()}
    expected = ONCE if effect == "once" else dict.fromkeys(ONCE, (1, "paid"))
    assert told == {point: (payments, f"{said}, {said}") for point, (payments, said) in expected.items()}
