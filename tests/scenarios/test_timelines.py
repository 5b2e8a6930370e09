"""The three classic timelines, to the millisecond, on every driver: when does a straggler's caller get its answer?"""

from __future__ import annotations

import pytest

from agent_hedge.core.step import Role, Verdict
from agent_hedge.testing.scenario import Scenario
from tests.scenarios.players import PLAYERS, Player

STRAGGLER = 5.0

TIMELINES = {
    # what the caller does: (when the second attempt starts, how long it takes, when the answer is there)
    "retry after a time-out": (0.800, 0.300, 1.100),
    "blind, both at once": (0.0, 0.180, 0.180),
    "adaptive hedge": (0.150, 0.160, 0.310),
}


@pytest.mark.parametrize("play", PLAYERS.values(), ids=PLAYERS)
@pytest.mark.parametrize(("launch", "takes", "done"), TIMELINES.values(), ids=TIMELINES)
def test_r01_classic_timeline(play: Player, launch: float, takes: float, done: float) -> None:
    played = play(Scenario(("a", STRAGGLER), ("b", takes, "answer"), policy=launch))

    assert played.launches == [(0, Role.PRIMARY, "a", 0.0), (1, Role.HEDGE, "b", launch)]
    assert (played.winner, played.value, played.elapsed) == (1, "answer", done)
    assert {ending.number: (ending.verdict, ending.at) for ending in played.endings} == {
        0: (Verdict.SUPERSEDED, done),
        1: (Verdict.WON, done),
    }
