"""`Retry-After` on the same target, another healthy domain at once (R13): health is told before it is asked again."""

from __future__ import annotations

from typing import Any

from agent_hedge.core.race import Launch, Race
from agent_hedge.core.step import Effect, Failure, Outcome, StepKey
from agent_hedge.gates import Health
from agent_hedge.targets import Independent, as_targets, places
from agent_hedge.testing.empty import EmptyBook, QuietFleet
from agent_hedge.testing.scenario import After


def race(*targets: str) -> Race:
    health = Health()
    return Race(
        StepKey(node="n"),
        policy=After(),
        chooser=Independent(health),
        candidates=places(as_targets(targets)),
        latency=EmptyBook(),
        fleet=QuietFleet(),
        gates=[health],
        effect=Effect.READ_ONLY,
    )


def pushback(seconds: float) -> Outcome[Any]:
    return Outcome(None, ConnectionError("429"), False, Failure.RECOVERABLE, False, seconds)


def test_r13_the_only_target_is_tried_again_when_it_asked_to_be() -> None:
    alone = race("a")
    alone.start(0.0)
    assert alone.on_outcome(0, pushback(30.0), 0.1) == []
    assert alone.wake_at == 30.1
    (launch,) = alone.on_timer(30.1)
    assert isinstance(launch, Launch)
    assert launch.attempt.target.name == "a"


def test_r13_another_target_is_tried_at_once() -> None:
    two = race("a", "b")
    two.start(0.0)
    (launch,) = two.on_outcome(0, pushback(30.0), 0.1)
    assert isinstance(launch, Launch)
    assert launch.attempt.target.name == "b"


def test_r13_no_time_named_is_a_short_rest() -> None:
    alone = race("a")
    alone.start(0.0)
    alone.on_outcome(0, pushback(0.0), 0.1)
    assert alone.wake_at == 1.1
