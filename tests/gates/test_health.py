"""Targets that fail are left alone for a while; pushback is obeyed; losers say nothing."""

from __future__ import annotations

import math

import pytest

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import HealthView, Permit, Refused
from agent_hedge.core.step import Ended, Failure, Role, Verdict
from agent_hedge.gates import Health
from agent_hedge.testing.fakes import View


class Caller:
    """Attempts on targets ``a`` and ``b``, through one health gate."""

    def __init__(self) -> None:
        self.health = Health()
        self.now = 1000.0

    def admit(self, role: Role = Role.PRIMARY, target: str = "a") -> Permit | Refused:
        view = View(now=self.now)
        return self.health.admit(view.attempt(role, target), view)

    def end(
        self,
        verdict: Verdict,
        failure: Failure | None = None,
        *,
        permit: Permit | Refused | None = None,
        retry_after: float | None = None,
        launched: bool = True,
        started: float | None = None,
    ) -> None:
        permit = permit or self.admit()
        assert not isinstance(permit, Refused)
        view = View(now=self.now if started is None else started)
        ended = Ended(view.attempt(), verdict, failure, launched=launched, retry_after=retry_after)
        permit.settle(ended, at=self.now)

    def fail(self, times: int = 1, failure: Failure = Failure.RECOVERABLE) -> None:
        for _ in range(times):
            self.end(Verdict.FAILED, failure)

    def reason(self, role: Role = Role.HEDGE, target: str = "a") -> Reason | None:
        answer = self.admit(role, target)
        return answer.reason if isinstance(answer, Refused) else None

    def is_out(self) -> bool:
        return self.health.refusal("a", self.now) is not None


def test_health_is_what_choosers_read() -> None:
    view: HealthView = Health()
    assert view.refusal("a", 0.0) is None
    assert view.not_before("a", 0.0) == 0.0


# --- failures in a row ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("failure", "needed"), [(Failure.RECOVERABLE, 5), (Failure.TARGET, 3)])
def test_failures_in_a_row_put_a_target_out(failure: Failure, needed: int) -> None:
    caller = Caller()
    caller.fail(needed - 1, failure)
    assert not caller.is_out()
    caller.fail(1, failure)
    assert caller.health.refusal("a", caller.now) == Refused(Reason.UNHEALTHY, "out for 30.0 s")
    assert caller.reason() is Reason.UNHEALTHY
    assert caller.reason(target="b") is None


def test_a_success_ends_the_row() -> None:
    caller = Caller()
    for _ in range(5):
        caller.fail(4)
        caller.end(Verdict.WON)
    assert not caller.is_out()


@pytest.mark.parametrize("verdict", [Verdict.SUPERSEDED, Verdict.CANCELLED, Verdict.ABANDONED, Verdict.UNKNOWN])
def test_r15_losers_are_neutral(verdict: Verdict) -> None:
    caller = Caller()
    for _ in range(20):
        caller.end(verdict)
    assert not caller.is_out()
    caller.fail(4)
    caller.end(verdict)
    caller.fail(1)
    assert caller.is_out()


@pytest.mark.parametrize("failure", [Failure.REQUEST, None])
def test_a_failure_of_the_request_says_nothing_of_the_target(failure: Failure | None) -> None:
    caller = Caller()
    for _ in range(20):
        caller.end(Verdict.FAILED, failure)
    assert not caller.is_out()


def test_what_was_never_sent_is_no_evidence() -> None:
    caller = Caller()
    for _ in range(20):
        caller.end(Verdict.UNKNOWN, launched=False)
    assert not caller.is_out()


# --- out, half-open, back ---------------------------------------------------------------------------------------------


def test_after_thirty_seconds_one_trial_is_let_through() -> None:
    caller = Caller()
    caller.fail(5)
    caller.now += 29.9
    assert caller.reason() is Reason.UNHEALTHY
    caller.now += 0.1
    assert not caller.is_out()
    trial = caller.admit(Role.HEDGE)
    assert not isinstance(trial, Refused)
    assert caller.admit(Role.HEDGE) == Refused(Reason.UNHEALTHY, "on trial")
    trial.committed(at=caller.now)
    assert caller.reason() is None
    caller.fail(4)
    assert not caller.is_out()


@pytest.mark.parametrize("outs", [2, 3, 10, 11])
def test_a_trial_that_fails_puts_it_out_for_longer_up_to_five_minutes(outs: int) -> None:
    caller = Caller()
    caller.fail(5)
    for out in range(1, outs):
        caller.now += min(30.0 * out, 300.0)
        assert not caller.is_out()
        caller.fail(1)
        assert caller.is_out()
    caller.now += min(30.0 * outs, 300.0) - 0.001
    assert caller.is_out()
    caller.now += 0.001
    assert not caller.is_out()


@pytest.mark.parametrize(
    ("verdict", "launched"), [(Verdict.SUPERSEDED, True), (Verdict.CANCELLED, True), (Verdict.UNKNOWN, False)]
)
def test_a_trial_that_says_nothing_makes_room_for_the_next(verdict: Verdict, launched: bool) -> None:
    caller = Caller()
    caller.fail(5)
    caller.now += 30
    trial = caller.admit(Role.HEDGE)
    assert caller.is_out()
    caller.end(verdict, permit=trial, launched=launched)
    assert not caller.is_out()
    assert not isinstance(caller.admit(Role.HEDGE), Refused)
    assert caller.is_out()


def test_a_success_brings_a_target_back_at_once() -> None:
    caller = Caller()
    caller.fail(5)
    caller.now += 5
    assert caller.is_out()
    caller.end(Verdict.WON)  # a primary that had nowhere else to go
    assert not caller.is_out()


def test_an_old_stream_that_ends_well_is_no_news() -> None:
    caller = Caller()
    caller.fail(5)
    caller.now += 5
    caller.end(Verdict.WON, started=990.0)
    assert caller.is_out()


def test_an_old_attempt_that_fails_late_does_not_prolong() -> None:
    caller = Caller()
    caller.fail(5)
    caller.now += 31
    caller.end(Verdict.FAILED, Failure.RECOVERABLE, permit=caller.health, started=990.0)
    assert not caller.is_out()


def test_a_primary_is_never_refused_and_a_recovery_may_go_where_nothing_else_is_left() -> None:
    caller = Caller()
    caller.fail(5)
    assert caller.reason(Role.PRIMARY) is None
    assert caller.reason(Role.RECOVERY) is None
    assert caller.reason(Role.HEDGE) is Reason.UNHEALTHY


# --- pushback ---------------------------------------------------------------------------------------------------------


def test_r15_pushback_stops_extra_attempts_for_as_long_as_it_says() -> None:
    caller = Caller()
    caller.end(Verdict.FAILED, Failure.RECOVERABLE, retry_after=7.0)
    assert caller.health.not_before("a", caller.now) == 1007.0
    assert caller.health.refusal("a", caller.now) == Refused(Reason.PUSHBACK, "for 7.0 s")
    assert caller.reason(Role.HEDGE) is Reason.PUSHBACK
    assert caller.reason(Role.RECOVERY) is Reason.PUSHBACK
    assert caller.reason(Role.PRIMARY) is None
    assert caller.reason(Role.HEDGE, "b") is None
    caller.now += 7.0
    assert caller.reason(Role.HEDGE) is None
    assert caller.health.not_before("a", caller.now) == 0.0


@pytest.mark.parametrize(
    ("wish", "rest"),
    [(0.0, 1.0), (-5.0, 1.0), (0.5, 1.0), (math.nan, 1.0), (math.inf, 1.0), (20.0, 20.0), (1e9, 3600.0)],
)
def test_r20_a_wish_that_cannot_be_meant_is_a_second(wish: float, rest: float) -> None:
    caller = Caller()
    caller.end(Verdict.FAILED, Failure.RECOVERABLE, retry_after=wish)
    assert caller.health.not_before("a", caller.now) == 1000.0 + rest


def test_pushback_is_a_wish_and_no_failure() -> None:
    caller = Caller()
    for _ in range(20):
        caller.end(Verdict.FAILED, Failure.RECOVERABLE, retry_after=1.0)
    caller.now += 1.0
    assert not caller.is_out()


def test_a_shorter_wish_does_not_shorten_a_longer_one_nor_does_a_success() -> None:
    caller = Caller()
    caller.end(Verdict.FAILED, Failure.RECOVERABLE, retry_after=30.0)
    caller.end(Verdict.FAILED, Failure.RECOVERABLE, retry_after=2.0)
    caller.end(Verdict.WON)
    caller.now += 29.0
    assert caller.reason() is Reason.PUSHBACK


# --- drained ----------------------------------------------------------------------------------------------------------


def test_r21_a_drained_target_gets_nothing_extra_until_it_is_restored() -> None:
    caller = Caller()
    caller.health.drain(["a"])
    assert caller.health.drained == {"a"}
    for role in (Role.HEDGE, Role.RECOVERY):
        assert caller.admit(role) == Refused(Reason.DRAINING, "target drained")
    assert caller.reason(Role.PRIMARY) is None
    assert caller.reason(Role.HEDGE, "b") is None
    caller.health.drain([])
    assert caller.reason() is None


def test_status_names_the_targets_that_are_not_well() -> None:
    caller = Caller()
    assert caller.health.status(caller.now) == {}
    caller.fail(5)
    caller.health.drain(["b"])
    assert caller.health.status(caller.now) == {"a": "unhealthy: out for 30.0 s", "b": "draining: target drained"}


def test_the_end_of_a_pushback_is_an_instant_a_race_can_wake_up_at() -> None:
    """A race keeps instants to the nanosecond; one that woke up too early by less would wait forever."""
    caller = Caller()
    caller.now = 1000.123456789123
    caller.end(Verdict.FAILED, Failure.RECOVERABLE, retry_after=1.0000000004)
    until = caller.health.not_before("a", caller.now)
    assert until == round(until, 9)
    assert caller.health.not_before("a", until) == 0.0
