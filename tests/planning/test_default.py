"""What a hedger does by default: a run with a deadline is planned, any other step is hedged by its quantile."""

from __future__ import annotations

import math
import random

import pytest

from agent_hedge import Hedger
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Attempt, StepKey
from agent_hedge.planning.planner import NEEDED
from tests.benchmarks.simulated import Draw, Simulated

STUCK_S, COPY_S = 100.0, 0.1


def world() -> Simulated:
    """Return a hedger that has learnt, and builds its plans while it is asked for them."""
    hedger = Hedger()
    simulated = Simulated(hedger, ["a", "b"])
    draw = random.Random(1)
    for number in range(2 * NEEDED):
        stall = 2 * draw.paretovariate(1.3) if draw.random() < 0.04 else 0.0
        hedger.book.record(StepKey(node="step"), "a", draw.lognormvariate(-0.22, 0.35) + stall, number * 0.002)
    simulated.now = 2 * NEEDED * 0.002
    assert hedger.planner is not None
    hedger.planner._off_loop = lambda job: job()
    return simulated


def trigger(simulated: Simulated, run: Run | None) -> float:
    """Return after how many seconds a step that is stuck is hedged (infinity: never)."""

    def serve(attempt: Attempt) -> Draw:
        return Draw(COPY_S if attempt.number else STUCK_S)

    waited = simulated.step(serve, run=run)
    return math.inf if waited == pytest.approx(STUCK_S) else waited - COPY_S


def trigger_of_a_run(deadline_s: float) -> float:
    """Return the same for the first of 20 steps in a run."""
    simulated = world()
    run = simulated.run(deadline=simulated.now + deadline_s, declared_steps=20, extra_attempts=100)
    run.begin_step()
    return trigger(simulated, run)


def test_a_run_with_a_deadline_is_planned() -> None:
    static = trigger(world(), None)
    assert 1.2 < static < 4.0
    near, far = trigger_of_a_run(25.0), trigger_of_a_run(60.0)
    assert near < static / 2
    assert far > static


def test_a_run_without_a_deadline_is_hedged_as_any_step() -> None:
    simulated = world()
    assert trigger(simulated, simulated.run(declared_steps=20)) == pytest.approx(trigger(world(), None))


def test_a_run_that_cannot_be_in_time_is_hedged_still() -> None:
    """Its lateness counts by the second, so it is not given up."""
    assert trigger_of_a_run(1.0) <= trigger(world(), None)
