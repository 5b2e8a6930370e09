"""Acceptance A2: simulator, asyncio driver and trio driver agree on winner, launches and instants."""

from __future__ import annotations

import random

import pytest

from agent_hedge.testing.scenario import Played, Scenario
from tests.scenarios.players import PLAYERS

FREE, GRID, BLOCK = 1500, 500, 100


class Denied(Exception):
    """Fatal for the target."""

    status_code = 401


def scenario(rng: random.Random, grid: float | None) -> Scenario:
    def seconds(most: float) -> float:
        value = rng.uniform(0.05, most)
        return value if grid is None else max(grid, round(round(value / grid) * grid, 9))

    def result() -> object:
        kind = rng.random()
        if kind < 0.7:
            return "ok"
        return [ConnectionError(), Denied(), ValueError()][int(kind * 100) % 3]

    lines = []
    for n in range(rng.randint(1, 4)):
        delay = seconds(2.0)
        token = seconds(delay) if rng.random() < 0.3 else None
        lines.append((f"t{n % 3}", delay, result(), token if token is None or token < delay else None))
    return Scenario(
        *lines,
        policy=seconds(1.0),
        deadline=seconds(3.0),
        commit_on_token=rng.random() < 0.5,
        accept=(lambda value: False) if rng.random() < 0.05 else None,
    )


def summary(played: Played) -> tuple[object, ...]:
    return (
        played.winner,
        played.value,
        type(played.error),
        played.elapsed,
        played.launches,
        played.refusals,
        sorted((ending.number, ending.verdict, ending.at) for ending in played.endings),
    )


@pytest.mark.parametrize("block", range((FREE + GRID) // BLOCK))
def test_r01_drivers_and_simulator_agree(block: int) -> None:
    grid = 0.1 if block * BLOCK >= FREE else None
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        results = {name: summary(play(scenario(random.Random(seed), grid))) for name, play in PLAYERS.items()}
        assert results["asyncio"] == results["simulator"], f"seed {seed}"
        assert results["trio"] == results["simulator"], f"seed {seed}"
