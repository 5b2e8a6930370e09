"""Runs across processes, on real stores: one budget for two, and a process that is killed in the middle (E4, E5)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent_hedge.core.stores import RunRow
from agent_hedge.stores.sql import sql_stores

DEADLINE_S = 600.0
"""Far longer than a test takes on any machine."""


class Worker:
    """A process of `tests.runs.worker`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def hear(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the worker has died"
        heard: dict[str, Any] = json.loads(line)
        return heard

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def ask(self, line: str) -> dict[str, Any]:
        self.tell(line)
        return self.hear()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def working(**settings: Any) -> Iterator[Worker]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.runs.worker", json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Worker(process)
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def key() -> str:
    return f"run-{uuid.uuid4()}"


def stopwatch() -> Callable[[], float]:
    """Return what tells the seconds since now."""
    started = time.monotonic()
    return lambda: time.monotonic() - started


def stored(url: str, key: str) -> RunRow:
    async def load() -> RunRow | None:
        stores = sql_stores(url, create=False)
        try:
            return await stores.runs.load(key)
        finally:
            await stores.close()

    row = asyncio.run(load())
    assert row is not None
    return row


def test_r12_r13_killed_in_the_middle_and_gone_on_with_in_a_new_process(store_url: str, key: str) -> None:
    settings = {"store": store_url, "key": key, "deadline": DEADLINE_S, "extra_attempts": 10}
    with working(**settings) as first, working(**settings) as second:
        begun = first.ask("enter")
        assert begun["generation"] == 0
        assert DEADLINE_S / 2 < begun["remaining"] <= DEADLINE_S
        assert first.ask("hedge 4")["hedges"] == 4
        first.kill()
        resumed = second.ask("enter")
        assert resumed["generation"] == 0
        truth = begun["remaining"] - (resumed["at"] - begun["at"])
        assert resumed["remaining"] == pytest.approx(truth, abs=0.050)  # E5
        assert second.ask("hedge 7")["hedges"] in (5, 6), "of 10: 4 are used, and the dead process forfeits one at most"
        second.ask("leave")
    row = stored(store_url, key)
    assert row.state == "paused"
    assert row.hedges_granted in (9, 10)


def test_r13_two_processes_share_one_budget(store_url: str, key: str) -> None:
    """E4: all of it can be used, and each process gets some, however early the other one came."""
    settings = {"store": store_url, "key": key, "deadline": DEADLINE_S, "extra_attempts": 7}
    with working(**settings) as first, working(**settings) as second:
        assert first.ask("enter")["generation"] == 0
        assert first.ask("hedge 1")["hedges"] == 1
        assert second.ask("enter")["generation"] == 0
        first.tell("hedge 5")
        second.tell("hedge 5")
        hedges = [first.hear()["hedges"], second.hear()["hedges"]]
        assert all(hedges)
        assert 5 <= sum(hedges) <= 6, "each may hold one that it does not need any more"
        first.ask("leave")
        second.ask("leave")
    row = stored(store_url, key)
    assert row.hedges_used == row.hedges_granted == 1 + sum(hedges)
    assert row.steps == 11


@pytest.mark.parametrize("store_url", ["psycopg"], indirect=True)
def test_r13_ten_branches_of_one_process_get_three_and_the_other_process_none(store_url: str, key: str) -> None:
    settings = {"store": store_url, "key": key, "deadline": DEADLINE_S, "extra_attempts": 3}
    with working(**settings) as first, working(**settings) as second:
        first.ask("enter")
        assert first.ask("fan 10")["hedges"] == 3
        second.ask("enter")
        assert second.ask("hedge 1")["hedges"] == 0


@pytest.mark.parametrize(
    ("store_url", "cap", "unit"), [("sqlite", "tokens", 1_000), ("psycopg", "cost", 0.01)], indirect=["store_url"]
)
def test_r13_two_processes_share_the_caps_of_a_run(store_url: str, key: str, cap: str, unit: float) -> None:
    """E4: never exceeded, and what a killed process held is forfeited: at most the prompts of its open steps."""
    settings = {"store": store_url, "key": key, "deadline": DEADLINE_S, "extra_attempts": 50, cap: 5 * unit}
    with working(**settings) as first, working(**settings) as second:
        first.ask("enter")
        second.ask("enter")
        assert first.ask("ask 2")["hedges"] == 2
        assert second.ask("ask 2")["hedges"] == 2
        first.kill()
        assert second.ask("ask 3")["hedges"] == 1
        assert second.ask("look")[f"{cap}_used"] == pytest.approx(3 * unit)
        second.ask("leave")
    row = stored(store_url, key)
    assert (row.tokens_used if cap == "tokens" else row.cost_used) == pytest.approx(5 * unit)


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_r12_what_was_left_when_a_scope_was_left_is_there_in_the_next_process(store_url: str, key: str) -> None:
    with (
        working(store=store_url, key=key, deadline=DEADLINE_S, extra_attempts=2) as first,
        working(store=store_url, key=key, resume=True) as second,
    ):
        first.ask("enter")
        passed = stopwatch()
        at_the_end = first.ask("hedge 1")
        first.ask("leave")
        row = stored(store_url, key)
        assert row.remaining is not None
        assert at_the_end["remaining"] - passed() < row.remaining < at_the_end["remaining"]
        assert (row.state, row.deadline_epoch, row.steps) == ("paused", None, 1)
        assert (row.hedges_used, row.hedges_granted) == (1, 1)
        passed = stopwatch()
        remaining = second.ask("enter")["remaining"]
        assert row.remaining - passed() < remaining <= row.remaining
        assert second.ask("hedge 3")["hedges"] == 1
        report = second.ask("look")
        assert (report["steps"], report["extra_attempts_used"], report["extra_attempts"]) == (4, 2, 2)
