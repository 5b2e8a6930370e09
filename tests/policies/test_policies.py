"""Never, Fixed and the baselines: exact instants, and every bad argument named."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy

import pytest

from agent_hedge.core.ports import HedgePolicy
from agent_hedge.core.step import Role
from agent_hedge.errors import ConfigurationError
from agent_hedge.policies import Fixed, Never, Quantile
from agent_hedge.testing.baselines import Blind, RetryAfterTimeout
from agent_hedge.testing.fakes import View


def launched(*instants: float) -> View:
    view = View()
    for number, at in enumerate(instants):
        view.launch("a", role=Role.HEDGE if number else Role.PRIMARY, at=at)
    return view


def test_never_launches_nothing() -> None:
    assert Never().next_launch_at(launched(0.0)) is None


def test_fixed_counts_from_the_newest_launch() -> None:
    policy = Fixed(0.25, attempts=3)
    assert policy.next_launch_at(launched(10.0)) == 10.25
    assert policy.next_launch_at(launched(10.0, 10.25)) == 10.5
    assert policy.next_launch_at(launched(10.0, 10.25, 10.5)) is None


def test_fixed_stops_at_two_attempts_by_default() -> None:
    assert Fixed(1.0).next_launch_at(launched(0.0, 1.0)) is None


def test_fixed_of_one_attempt_hedges_nothing() -> None:
    assert Fixed(1.0, attempts=1).next_launch_at(launched(0.0)) is None


def test_fixed_zero_is_due_at_once() -> None:
    assert Fixed(0).next_launch_at(launched(3.0)) == 3.0


@pytest.mark.parametrize("delay", [-1, -0.001, math.nan, math.inf, -math.inf, True, "1", None])
def test_r20_a_delay_that_cannot_be_meant(delay: float) -> None:
    with pytest.raises(ConfigurationError, match="delay must be a finite number") as error:
        Fixed(delay)
    assert repr(delay) in str(error.value)


@pytest.mark.parametrize("attempts", [0, -1, 4, 2.0, True, "2", None, math.nan])
@pytest.mark.parametrize("policy", [lambda n: Fixed(1.0, attempts=n), lambda n: Quantile(0.9, attempts=n)])
def test_r20_attempts_out_of_range(policy, attempts) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ConfigurationError, match="attempts must be a whole number from 1 to 3") as error:
        policy(attempts)
    assert repr(attempts) in str(error.value)


@pytest.mark.parametrize("policy", [Never(), Fixed(1.0), Quantile(), Quantile(0.9, cold=Fixed(2.0)), Blind()])
def test_policies_are_frozen_values(policy: HedgePolicy) -> None:
    assert policy == deepcopy(policy) == pickle.loads(pickle.dumps(policy))
    assert hash(policy) == hash(deepcopy(policy))
    with pytest.raises((AttributeError, TypeError)):
        policy.attempts = 3  # type: ignore[attr-defined]


def test_blind_launches_all_in_one_instant() -> None:
    assert Blind().next_launch_at(launched(5.0)) == 5.0
    assert Blind().next_launch_at(launched(5.0, 5.0)) is None
    assert Blind(attempts=3).next_launch_at(launched(5.0, 5.0)) == 5.0


def test_retry_after_timeout_is_due_when_the_newest_times_out() -> None:
    policy = RetryAfterTimeout(0.8)
    assert policy.next_launch_at(launched(1.0)) == 1.8
    assert policy.next_launch_at(launched(1.0, 1.8)) is None


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf])
def test_r20_baseline_arguments(timeout: float) -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        RetryAfterTimeout(timeout)
    with pytest.raises(ConfigurationError, match="attempts"):
        Blind(attempts=4)
