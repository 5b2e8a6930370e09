"""E7: whatever the schedule, a run never passes its budget or its deadline, and its report adds up to the events."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agent_hedge import DeadlineExceeded, Effect, current_attempt
from agent_hedge.core.events import AttemptRefused, AttemptStarted, Reason, StepEnded, StepStarted
from agent_hedge.core.scope import RECOVERY_FLOOR, RECOVERY_SHARE, Run
from agent_hedge.core.step import Role
from agent_hedge.testing.clock import run_virtual
from tests.engine.kit import hedger
from tests.runs.kit import CENT_PER_1000, World
from tests.runs.test_langgraph import Listener


@dataclass(frozen=True)
class Attempt:
    seconds: float
    fails: bool


attempts = st.builds(Attempt, st.sampled_from([0.0, 0.3, 1.0, 1.5, 4.0, 9.0]), st.booleans())
steps = st.lists(attempts, min_size=3, max_size=3)
branches = st.lists(st.lists(steps, max_size=4), min_size=1, max_size=4)
"""Branches run side by side; the steps of one after another."""


async def work(call: Any, branch: list[list[Attempt]]) -> None:
    for plan in branch:
        try:
            await call(plan)
        except (ConnectionError, DeadlineExceeded):
            pass


@given(branches, st.integers(0, 4), st.sampled_from([0.0, 1.0, 3.0, 8.0, 60.0]), st.sampled_from(["", "k"]))
@settings(max_examples=120, deadline=None, suppress_health_check=list(HealthCheck))
def test_r12_r13_a_run_never_dispatches_more_than_its_budget_or_after_its_deadline(
    schedule: list[list[list[Attempt]]], extra: int, deadline: float, key: str
) -> None:
    heard = Listener()
    opened = hedger(1.0, observers=[heard])

    async def attempt(plan: list[Attempt]) -> None:
        active = current_attempt()
        assert active is not None
        mine = plan[active.number]
        await asyncio.sleep(mine.seconds)
        if mine.fails:
            raise ConnectionError

    call = opened.wrap(attempt, key="step", effect=Effect.READ_ONLY, targets=["a", "b", "c"])

    async def main() -> tuple[Run, float]:
        async with opened.run(key=key, deadline=deadline, extra_attempts=extra) as run:
            ends = run.deadline
            await asyncio.gather(*(work(call, branch) for branch in schedule))
        return run, ends

    run, ends = run_virtual(main)
    started = [one for one in heard.events if isinstance(one, AttemptStarted)]
    roles = [one.attempt.role for one in started]
    logical = sum(isinstance(one, StepStarted) for one in heard.events)
    refused = [one for one in heard.events if isinstance(one, AttemptRefused)]
    hedges, recoveries = roles.count(Role.HEDGE), roles.count(Role.RECOVERY)

    assert hedges <= extra
    assert recoveries <= RECOVERY_SHARE * logical + RECOVERY_FLOOR
    assert all(one.at < ends for one in started), "dispatched at or after the deadline"
    report = run.report()
    assert report["steps"] == logical == sum(len(branch) for branch in schedule)
    assert report["extra_attempts_used"] == hedges
    assert report["recoveries_used"] == recoveries
    answers = [one for one in heard.events if isinstance(one, StepEnded) and not one.error]
    assert report["answered"] == Counter(one.winner.target.name for one in answers if one.winner is not None)
    over = [one for one in refused if one.reason is Reason.RUN_BUDGET and one.role is Role.HEDGE]
    assert not over or hedges == extra, "refused for the budget while there was some left"


moves = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.sampled_from(["take"] * 5 + ["refused", "begin", "begin", "end", "flush", "die", "leave", "tick"]),
        st.sampled_from([100, 700, 1_000]),
    ),
    min_size=8,
    max_size=60,
)
token_caps = st.sampled_from([None, None, 0, 1_000, 2_500])
cost_caps = st.sampled_from([None, None, 0.0, 0.012])


@dataclass
class Spent:
    hedges: int = 0
    tokens: int = 0
    cost: float = 0.0


@given(moves, st.sampled_from([0, 2, 3, 4, 20]), token_caps, cost_caps)
@settings(max_examples=200, deadline=None)
def test_r13_any_processes_in_any_order_never_take_more_than_the_purse(
    schedule: list[tuple[int, str, int]], purse: int, tokens: int | None, cost: float | None
) -> None:
    world = World()
    runs: dict[int, tuple[Any, Run, Any]] = {}
    open_: dict[int, list[int]] = {}
    spent = Spent()

    def hedge(run: Run, size: int, *, sent: bool) -> None:
        money = size * CENT_PER_1000
        if run.take(Role.HEDGE, 0.0) is not None:
            return
        if run.spend(size, money) is not None:
            run.give_back(Role.HEDGE)
        elif sent:
            spent.hedges, spent.tokens, spent.cost = spent.hedges + 1, spent.tokens + size, spent.cost + money
        else:  # refused by a later gate
            run.unspend(size, money)
            run.give_back(Role.HEDGE)

    for who, what, size in schedule:
        if who not in runs:
            process = world.process()
            caps = {"tokens": tokens, "cost": cost}
            run, record = process.open(extra=purse, deadline=10_000.0, resume=True, caps=caps)
            runs[who], open_[who] = (process, run, record), []
        process, run, record = runs[who]
        if what in ("take", "refused"):
            hedge(run, size, sent=what == "take")
        elif what == "begin":
            run.begin_step(None, size)
            open_[who].append(size)
        elif what == "end" and open_[who]:
            run.end_step(open_[who].pop())
        elif what == "flush":
            process.flush()
        elif what == "die":
            del runs[who]
        elif what == "leave":
            record.close()
            del runs[who]
        elif what == "tick":
            world.now += 7.0
        assert run.generation == 0, "resume=True goes on with the one generation there is"
    assert spent.hedges <= purse
    assert tokens is None or spent.tokens <= tokens
    assert cost is None or spent.cost <= cost * (1 + 1e-9)
    for process, _, record in runs.values():
        record.close()
        process.flush()
    row = world.row()
    if row is not None and "die" not in {what for _, what, _ in schedule}:
        assert (row.hedges_used, row.hedges_granted) == (spent.hedges, spent.hedges)
        assert row.tokens_used == spent.tokens
        assert row.cost_used == pytest.approx(spent.cost)
