"""The deadline gate and the bar."""

from __future__ import annotations

import math

import pytest

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Effect, Role
from agent_hedge.gates import DeadlineGate, EffectGate
from agent_hedge.testing.fakes import FakeLatency, View

EXTRA = [Role.HEDGE, Role.RECOVERY]


def deadline(view: View, role: Role, target: str = "b") -> object:
    answer = DeadlineGate().admit(view.attempt(role, target), view)
    return answer.reason if isinstance(answer, Refused) else answer


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("now", [10.0, 10.5])
def test_r12_nothing_starts_at_or_after_the_deadline(role: Role, now: float) -> None:
    assert deadline(View(now=now, deadline=10.0), role) is Reason.DEADLINE


@pytest.mark.parametrize("role", Role)
def test_without_a_deadline_everything_may_start(role: Role) -> None:
    view = View(now=1e9, latency=FakeLatency({0.5: 100.0}))
    assert view.deadline == math.inf
    assert deadline(view, role) is PASS


@pytest.mark.parametrize("role", EXTRA)
@pytest.mark.parametrize(("now", "answer"), [(7.9, PASS), (8.0, PASS), (8.001, Reason.TOO_LATE)])
def test_r04_an_extra_attempt_must_be_able_to_finish(role: Role, now: float, answer: object) -> None:
    assert deadline(View(now=now, deadline=10.0, latency=FakeLatency({0.5: 2.0})), role) is answer


@pytest.mark.parametrize("role", EXTRA)
@pytest.mark.parametrize(
    ("deadline_at", "left", "answer"),
    [(math.inf, 2.0, PASS), (math.inf, 1.9, Reason.TOO_LATE), (9.0, 5.0, Reason.TOO_LATE), (99.0, math.inf, PASS)],
)
def test_r04_what_is_left_ends_with_the_sooner_of_deadline_and_time_out(
    role: Role, deadline_at: float, left: float, answer: object
) -> None:
    view = View(now=8.0, deadline=deadline_at, latency=FakeLatency({0.5: 2.0}), time_left=lambda: left)
    assert deadline(view, role) is answer
    assert deadline(view, Role.PRIMARY) is PASS


def test_r04_a_primary_that_may_be_late_still_goes() -> None:
    assert deadline(View(now=9.9, deadline=10.0, latency=FakeLatency({0.5: 2.0})), Role.PRIMARY) is PASS


def test_the_median_is_that_of_the_chosen_target() -> None:
    latency = FakeLatency(by_target={"a": {0.5: 5.0}, "b": {0.5: 1.0}})
    view = View(now=8.0, deadline=10.0, latency=latency)
    assert deadline(view, Role.HEDGE, "a") is Reason.TOO_LATE
    assert deadline(view, Role.HEDGE, "b") is PASS


def test_the_long_book_answers_where_the_window_is_empty() -> None:
    assert deadline(View(now=8.0, deadline=10.0, latency=FakeLatency(long={0.5: 3.0})), Role.HEDGE) is Reason.TOO_LATE
    assert deadline(View(now=8.0, deadline=10.0, latency=FakeLatency({0.5: 1.0}, long={0.5: 3.0})), Role.HEDGE) is PASS
    assert deadline(View(now=8.0, deadline=10.0), Role.HEDGE) is PASS


def effect(view: View, role: Role) -> object:
    return EffectGate().admit(view.attempt(role), view)


@pytest.mark.parametrize("kind", [Effect.READ_ONLY, Effect.IDEMPOTENT, Effect.KEYED])
@pytest.mark.parametrize("role", Role)
def test_r09_what_may_run_twice_may_be_hedged(kind: Effect, role: Role) -> None:
    assert effect(View(effect=kind), role) is PASS


@pytest.mark.parametrize("kind", [Effect.ONCE, Effect.UNKNOWN])
@pytest.mark.parametrize("role", EXTRA)
def test_r09_what_may_not_run_twice_is_neither_hedged_nor_retried(kind: Effect, role: Role) -> None:
    assert effect(View(effect=kind), role) == Refused(Reason.BARRED, f"effect {kind.value}")
    assert effect(View(effect=kind), Role.PRIMARY) is PASS


@pytest.mark.parametrize("reason", [Reason.BARRED, Reason.GRAPH_UNSEEN])
def test_r09_a_barred_unit_keeps_its_reason_and_its_recovery(reason: Reason) -> None:
    view = View(barred=Refused(reason, "send_email"))
    assert effect(view, Role.HEDGE) == Refused(reason, "send_email")
    assert effect(view, Role.PRIMARY) is PASS
    assert effect(view, Role.RECOVERY) is PASS
