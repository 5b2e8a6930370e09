"""Runs across processes, on real stores: one budget for two, and a process that is killed in the middle (E4, E5)."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from agent_hedge.core.ports import RunRow
from agent_hedge.stores.sql import sql_stores


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
    settings = {"store": store_url, "key": key, "deadline": 60.0, "extra_attempts": 20}
    with working(**settings) as first, working(**settings) as second:
        begun = first.ask("enter")
        assert begun["generation"] == 0
        assert begun["remaining"] == pytest.approx(60.0, abs=0.5)
        assert first.ask("hedge 4")["hedges"] == 4
        first.kill()
        resumed = second.ask("enter")
        assert resumed["generation"] == 0
        truth = begun["remaining"] - (resumed["at"] - begun["at"])
        assert resumed["remaining"] == pytest.approx(truth, abs=0.050)  # E5
        assert second.ask("hedge 6")["hedges"] == 4, "16 were granted to the dead process, which forfeits its 12"
        second.ask("leave")
    row = stored(store_url, key)
    assert row.state == "paused"
    assert row.hedges_granted == 20


@pytest.mark.parametrize("store_url", ["psycopg"], indirect=True)
def test_r13_two_processes_share_one_budget(store_url: str, key: str) -> None:
    settings = {"store": store_url, "key": key, "deadline": 60.0, "extra_attempts": 20}
    with working(**settings) as first, working(**settings) as second:
        first.tell("enter")
        second.tell("enter")
        assert (first.hear()["generation"], second.hear()["generation"]) == (0, 0)
        first.tell("hedge 14")
        second.tell("hedge 14")
        hedges = first.hear()["hedges"] + second.hear()["hedges"]
        assert 14 <= hedges <= 20
        hedges += first.ask("hedge 14")["hedges"]
        first.ask("leave")
        assert hedges <= 20
        assert stored(store_url, key).hedges_granted <= 20


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_r12_what_was_left_when_a_scope_was_left_is_there_in_the_next_process(store_url: str, key: str) -> None:
    with (
        working(store=store_url, key=key, deadline=60.0, extra_attempts=2) as first,
        working(store=store_url, key=key, resume=True) as second,
    ):
        first.ask("enter")
        at_the_end = first.ask("hedge 1")
        first.ask("leave")
        row = stored(store_url, key)
        assert row.remaining == pytest.approx(at_the_end["remaining"], abs=0.5)
        assert (row.state, row.deadline_epoch, row.steps) == ("paused", None, 1)
        assert (row.hedges_used, row.hedges_granted) == (1, 1)
        assert second.ask("enter")["remaining"] == pytest.approx(row.remaining, abs=0.5)
        assert second.ask("hedge 3")["hedges"] == 1
        report = second.ask("look")
        assert (report["steps"], report["extra_attempts_used"], report["extra_attempts"]) == (4, 2, 2)
