"""All gates in one race, in the order in which a hedger asks them: what is counted, and what is given back."""

from __future__ import annotations

import pytest

from agent_hedge.core.race import Launch, Race
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Effect, Failure, Outcome, StepKey
from agent_hedge.gates import (
    ControlGate,
    DeadlineGate,
    EffectGate,
    Fleet,
    FleetBudget,
    Health,
    Meter,
    ModeGate,
    Modes,
)
from agent_hedge.policies import Fixed
from agent_hedge.targets import Independent, Target, as_targets, places
from agent_hedge.testing.fakes import FakeLatency


class House:
    def __init__(self, mode: str = "on", *, holdout: float = 0.0, floor: int = 2) -> None:
        self.modes = Modes(mode, holdout=holdout, environ={})
        self.health, self.fleet, self.budget = Health(), Fleet(), FleetBudget(floor=floor)
        self.gates = (
            DeadlineGate(),
            EffectGate(),
            ModeGate(self.modes),
            self.health,
            self.budget,
            ControlGate(self.modes),
            Meter(self.fleet),
        )
        self.candidates = places(as_targets([Target("a"), Target("b")]))
        self.run = Run("r", clock=lambda: 0.0)

    def race(self, *, effect: Effect = Effect.READ_ONLY) -> Race:
        return Race(
            StepKey(node="plan"),
            policy=Fixed(1.0),
            chooser=Independent(self.health),
            candidates=self.candidates,
            latency=FakeLatency(),
            fleet=self.fleet,
            gates=self.gates,
            run=self.run,
            effect=effect,
        )

    def counts(self) -> tuple[int, ...]:
        """Requests, hedges, recoveries as the budget has them; hedges and recoveries as fleet and run have them."""
        budget, fleet = self.budget.counts(9.0), self.fleet.counts(9.0)
        run = (self.run.extra_attempts_used, self.run.recoveries_used)
        return (*budget[:3], fleet.hedges, fleet.recoveries, *run)


def launches(commands: list[object]) -> list[str]:
    return [str(command.attempt) for command in commands if isinstance(command, Launch)]


def test_a_hedge_passes_all_gates_and_is_counted_once_everywhere() -> None:
    house = House()
    race = house.race()
    assert launches([*race.start(0.0)]) == ["a#0"]
    assert race.wake_at == 1.0
    assert launches([*race.on_timer(1.0)]) == ["b#1"]
    race.on_outcome(1, Outcome(value="answer"), 2.0)
    race.on_ended(1, 2.0)
    race.on_ended(0, 2.5)
    assert race.closed
    assert house.counts() == (1, 1, 0, 1, 0, 1, 0)
    assert house.fleet.counts(9.0).wins == 1


@pytest.mark.parametrize(
    ("house", "effect"),
    [
        (House("shadow"), Effect.READ_ONLY),
        (House(holdout=1.0), Effect.READ_ONLY),
        (House("off"), Effect.READ_ONLY),
        (House(floor=0), Effect.READ_ONLY),
        (House(), Effect.ONCE),
    ],
)
def test_r21_a_refused_hedge_is_silence_and_costs_nothing(house: House, effect: Effect) -> None:
    race = house.race(effect=effect)
    race.start(0.0)
    assert launches([*race.on_timer(1.0)]) == []
    race.on_outcome(0, Outcome(value="answer"), 2.0)
    race.on_ended(0, 2.0)
    assert house.counts() == (1, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("mode", ["on", "shadow", "off"])
def test_r21_a_recovery_goes_ahead_in_every_mode(mode: str) -> None:
    house = House(mode)
    race = house.race()
    race.start(0.0)
    failed = Outcome[str](error=ConnectionError(), accepted=False, failure=Failure.RECOVERABLE)
    assert launches([*race.on_outcome(0, failed, 0.5)]) == ["b#1"]
    race.on_ended(0, 0.5)
    assert house.counts() == (1, 0, 1, 0, 1, 0, 1)


def test_r09_an_effect_that_may_have_happened_is_not_tried_again() -> None:
    house = House()
    race = house.race(effect=Effect.ONCE)
    race.start(0.0)
    failed = Outcome[str](error=ConnectionError(), accepted=False, failure=Failure.RECOVERABLE)
    assert launches([*race.on_outcome(0, failed, 0.5)]) == []


def test_r15_the_next_step_avoids_a_target_under_pushback() -> None:
    house = House()
    race = house.race()
    race.start(0.0)
    failed = Outcome[str](error=ConnectionError(), accepted=False, failure=Failure.RECOVERABLE, retry_after=30.0)
    race.on_outcome(0, failed, 0.5)
    race.on_ended(0, 0.5)
    assert launches([*house.race().start(1.0)]) == ["b#0"]
    assert launches([*house.race().start(30.5)]) == ["a#0"]
