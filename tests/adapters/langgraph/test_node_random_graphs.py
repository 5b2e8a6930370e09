"""500 random graphs in virtual time: hedged and unhedged end in the same state (issue 5, D4)."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from agent_hedge.core.events import AttemptEnded, AttemptStarted
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Kit, Unit, make_kit
from tests.adapters.langgraph.random_graphs import Seen, plan_of, run_of

SEEDS = 500
BLOCK = 25
EXTRA_ATTEMPTS = 5
SLACK_S = 1e-6


def run(seed: int, unit: Unit) -> tuple[Seen, Kit]:
    kit = make_kit(unit)

    async def main() -> Any:
        seen = await run_of(seed, kit, extra_attempts=EXTRA_ATTEMPTS)
        await kit.hedger.aclose()
        mine = asyncio.current_task()
        left = [task for task in asyncio.all_tasks() if task is not mine]
        assert not left, f"seed {seed}: tasks are left: {left}"
        return seen

    return run_virtual(main), kit


def check(seed: int, counts: Counter[str]) -> None:
    plan = plan_of(seed)
    unit: Unit = "node" if seed % 2 else "model"
    expected, _ = run(seed, "plain")
    seen, kit = run(seed, unit)
    where = f"seed {seed}, unit {unit}"
    started = [event for event in kit.events if isinstance(event, AttemptStarted)]
    assert kit.unended == 0, where
    hedged = {event.key.node for event in started if event.attempt.is_hedge}
    if unit == "node":
        assert not hedged & plan.barred, f"{where}: a barred unit was hedged"
    assert seen.hedges_used <= EXTRA_ATTEMPTS, where
    if plan.deadline is not None:
        ends = [event.at for event in kit.events if isinstance(event, AttemptStarted | AttemptEnded)]
        assert max(ends, default=0.0) <= plan.deadline + SLACK_S, f"{where}: the deadline was exceeded"
    counts["hedged"] += bool(hedged)
    counts[seen.error or "ended"] += 1
    if seen.error in ("DeadlineExceeded", "cancelled") or expected.error == "cancelled":
        return  # how far a run comes in a given time is what hedging changes
    assert seen.error == expected.error, where
    if not seen.error:  # what else was done when a node failed is a matter of time, unhedged as well
        assert seen.state == expected.state, where
        assert seen.custom == expected.custom, f"{where}: a loser has shown something, or the winner has not"
        assert sorted(seen.tokens.values()) == sorted(expected.tokens.values()), where


@pytest.mark.filterwarnings("ignore:the wrapped node")
@pytest.mark.parametrize("first", range(0, SEEDS, BLOCK))
def test_r05_random_graphs(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + BLOCK):
        check(seed, counts)
    assert counts["hedged"] >= 3, counts
    assert counts["ended"] >= 3, counts
