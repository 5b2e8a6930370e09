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


@pytest.mark.parametrize("backend", ["sqlite", "psycopg", "asyncpg"])
@pytest.mark.parametrize("effect", ["once", "keyed"])
def test_r11_the_seven_crash_points(backend: str, effect: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    if backend == "sqlite":
        url: str = request.getfixturevalue("sqlite_url")
    else:
        server: PostgresServer = request.getfixturevalue("postgres")
        url = server.url(backend)

    calls = [(str(tmp_path / p[:2]), f"{tmp_path.name}-{backend}-{p[:2]}", p[:2] in ("P0", "P3", "P5")) for p in POINTS]
    with ThreadPoolExecutor(3) as pool:
        first = list(
            pool.map(lambda p, call: in_a_process(pay_once, url, call[0], effect, p, *call[1:]), POINTS, calls)
        )
    assert first == ["killed"] * len(POINTS)
    time.sleep(1.2 * LEASE_S)
    said = in_a_process(recover, url, effect, calls).split("|")
    told = {}
    for number, point in enumerate(POINTS):
        world = tmp_path / point[:2]
        lines = world.read_text().splitlines() if world.exists() else []
        payments = len(set(lines)) if effect == "keyed" else len(lines)
        told[point[:2]] = (payments, *said[2 * number : 2 * number + 2])
    expected = ONCE if effect == "once" else dict.fromkeys(ONCE, (1, "paid"))
    assert told == {point: (payments, said, said) for point, (payments, said) in expected.items()}
