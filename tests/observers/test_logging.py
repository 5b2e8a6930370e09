"""Log records: one tree, facts as attributes, nothing unless somebody asked."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest

from agent_hedge.core.events import AttemptRefused, Claimed, Fenced, Reason
from agent_hedge.core.step import Role, StepKey
from agent_hedge.observers.logging import Logging
from tests.conftest import HUNG_S

from .kit import play

QUIET = """
import asyncio
from agent_hedge import Effect, Fixed, Hedger

async def work():
    await asyncio.sleep(0.05)

async def main():
    async with Hedger(policy=Fixed(0.01)) as hedger, hedger.run():
        await hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])()

asyncio.run(main())
"""


@pytest.fixture
def all_of_it(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "agent_hedge")
    return caplog


def facts(record: logging.LogRecord, *names: str) -> tuple[Any, ...]:
    return tuple(getattr(record, name) for name in names)


def test_a_hedged_step_as_log_records(all_of_it: pytest.LogCaptureFixture) -> None:
    play(Logging(), ("a", 9.0), ("b", 0.25), policy=1.0)
    records = all_of_it.records
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("DEBUG", "scenario: primary dispatched to a"),
        ("INFO", "scenario: hedge dispatched to b"),
        ("DEBUG", "scenario: b#1 won"),
        ("DEBUG", "scenario: answered after 1.250 s, attempts: 2"),
        ("DEBUG", "scenario: a#0 ended: superseded"),
        ("DEBUG", "scenario: b#1 ended: won"),
    ]
    assert {record.name for record in records} == {"agent_hedge.events"}
    hedge = records[1]
    assert facts(hedge, "event", "node", "target", "role", "attempt") == ("AttemptStarted", "scenario", "b", "hedge", 1)
    assert facts(records[3], "outcome", "elapsed_s", "attempts", "error") == ("answered", 1.25, 2, "")
    assert len({record.step_id for record in records}) == 1  # type: ignore[attr-defined]


def test_what_costs_or_hurts_is_info(all_of_it: pytest.LogCaptureFixture) -> None:
    heard: list[Any] = []

    class Ear:
        def on_event(self, event: Any) -> None:
            heard.append(event)

    play(Ear(), ("a", 1.0))
    attempt = heard[1].attempt
    where: dict[str, Any] = {"step_id": "s", "key": StepKey(node="n"), "at": 0.0}
    for event in (
        AttemptRefused(**where, role=Role.HEDGE, reason=Reason.COLD, detail="37 of 200"),
        Fenced(**where, attempt=attempt, passed=True, tool="pay"),
        Fenced(**where, attempt=attempt, passed=False, tool="pay"),
        Claimed(at=0.0, tool="pay", answer="run"),
        Claimed(at=0.0, tool="pay", answer="in_doubt"),
    ):
        Logging().on_event(event)
    records = all_of_it.records
    assert [(record.levelname, record.getMessage()) for record in records] == [
        ("DEBUG", "n: hedge refused: cold 37 of 200"),
        ("DEBUG", "n: pay of a#0 passed the fence: True"),
        ("INFO", "n: pay of a#0 passed the fence: False"),
        ("DEBUG", "claim of pay: run"),
        ("INFO", "claim of pay: in_doubt"),
    ]
    assert type(records[0].reason) is str  # type: ignore[attr-defined]


def test_braces_in_names_are_only_names(all_of_it: pytest.LogCaptureFixture) -> None:
    play(Logging(), ("a", 1.0), key=StepKey(node="{oops} %s"))
    assert all_of_it.records[0].getMessage() == "{oops} %s: primary dispatched to a"


def test_by_default_nothing_is_heard_and_nothing_is_made(caplog: pytest.LogCaptureFixture) -> None:
    assert Logging().idle, "the root logger lets warnings through, and no more"
    caplog.set_level(logging.INFO, "agent_hedge.events")
    assert not Logging().idle


def test_a_program_that_sets_up_no_logging_sees_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-c", QUIET], capture_output=True, text=True, timeout=10 * HUNG_S, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")
