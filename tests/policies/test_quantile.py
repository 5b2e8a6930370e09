"""The adaptive trigger: the formula of d0 number by number, cold starts, and what is remembered of it."""

from __future__ import annotations

import math
import pickle
from copy import deepcopy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Refused
from agent_hedge.core.step import Role, StepKey
from agent_hedge.errors import ConfigurationError
from agent_hedge.policies import Fixed, Never, Quantile
from agent_hedge.policies.quantile import default_q, topology_q
from agent_hedge.testing.fakes import FakeFleet, FakeLatency, View, place

REGIONS = (place("a", "openai", "us", "a"), place("b", "openai", "eu", "b"))
REPLICAS = (place("a", "pool", "a"), place("b", "pool", "b"))
HEAVY = {0.5: 1.0, 0.99: 9.0}
LIGHT = {0.5: 1.0, 0.99: 2.4}


def view_of(
    quantiles: dict[float, float],
    long: dict[float, float] = HEAVY,
    *,
    fleet: FakeFleet | None = None,
    at: float = 100.0,
) -> View:
    view = View(latency=FakeLatency(quantiles, long=long), fleet=fleet or FakeFleet())
    view.launch("a", at=at)
    return view


# --- explicit q -------------------------------------------------------------------------------------------------------


def test_explicit_q_arms_at_exactly_that_quantile() -> None:
    view = view_of({0.5: 0.1, 0.9: 0.140, 0.95: 0.3}, at=7.0)
    assert Quantile(0.9).next_launch_at(view) == 7.140


def test_explicit_q_below_the_floors_is_obeyed() -> None:
    view = view_of({0.5: 1.0, 0.6: 1.01}, LIGHT)
    assert Quantile(0.6).next_launch_at(view) == 101.01


def test_the_next_attempt_counts_from_the_newest_and_its_target() -> None:
    view = View(latency=FakeLatency(by_target={"a": {0.9: 1.0}, "b": {0.9: 5.0}}))
    view.launch("a", at=0.0)
    assert Quantile(0.9).next_launch_at(view) == 1.0
    view.launch("b", role=Role.HEDGE, at=1.0)
    assert Quantile(0.9).next_launch_at(view) == 6.0
    view.launch("a", role=Role.HEDGE, at=6.0)
    assert Quantile(0.9).next_launch_at(view) is None


def test_attempts_bound_the_launches() -> None:
    view = view_of({0.9: 1.0})
    assert Quantile(0.9, attempts=1).next_launch_at(view) is None
    view.launch("b", role=Role.HEDGE, at=101.0)
    assert Quantile(0.9, attempts=2).next_launch_at(view) is None


# --- cold -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", [Quantile(), Quantile(0.9)])
def test_while_learning_nothing_is_hedged_and_the_count_is_said(policy: Quantile) -> None:
    view = View(latency=FakeLatency(samples=37))
    view.launch("a")
    assert policy.next_launch_at(view) == Refused(Reason.COLD, "37 of 200")


def test_the_count_is_at_most_a_second_old_and_never_another_books_or_targets() -> None:
    policy = Quantile()

    def said(latency: FakeLatency, target: str, now: float) -> object:
        view = View(latency=latency, now=now)
        view.launch(target, at=now)
        answer = policy.next_launch_at(view)
        return answer.detail if isinstance(answer, Refused) else answer

    latency = FakeLatency(samples=37)
    assert said(latency, "a", 10.0) == "37 of 200"
    latency.samples = 38
    assert said(latency, "a", 10.9) == "37 of 200"
    assert said(latency, "b", 10.9) == "38 of 200"
    assert said(latency, "a", 11.0) == "38 of 200"
    assert said(FakeLatency(samples=5), "a", 11.0) == "5 of 200"


def test_cold_may_be_a_fixed_delay() -> None:
    view = View(latency=FakeLatency(samples=37))
    view.launch("a", at=1.0)
    policy = Quantile(cold=Fixed(2.0))
    assert policy.next_launch_at(view) == 3.0
    view.launch("b", role=Role.HEDGE, at=3.0)
    assert policy.next_launch_at(view) is None


def test_cold_is_asked_again_until_the_book_knows() -> None:
    policy, latency = Quantile(), FakeLatency(samples=199)
    view = View(latency=latency)
    view.launch("a", at=0.0)
    assert policy.next_launch_at(view) == Refused(Reason.COLD, "199 of 200")
    latency.quantiles = {0.5: 1.0, 0.99: 6.0}
    assert policy.next_launch_at(view) == 6.0


# --- the default trigger ----------------------------------------------------------------------------------------------


def test_d0_is_the_quantile_that_spends_the_budget() -> None:
    # N = 2000, b = 0.05: b' = 0.05 - 0.005 = 0.045, q = 0.955
    view = view_of({0.5: 1.0, 0.95: 4.0, 0.956: 5.0, 0.99: 9.0}, fleet=FakeFleet(0.05, count=2000))
    assert Quantile().next_launch_at(view) == 105.0


def test_d0_is_at_least_1_75_medians() -> None:
    assert Quantile().next_launch_at(view_of({0.5: 1.0, 0.99: 1.2})) == 101.75


def test_d0_where_the_tail_is_light_is_two_and_a_half_medians_not_never() -> None:
    assert Quantile().next_launch_at(view_of({0.5: 1.0, 0.99: 2.0}, LIGHT)) == 102.5


def test_d0_where_the_tail_is_light_spends_less_than_half_a_per_cent() -> None:
    """Between 99 % and what is 2.5 medians slow may lie 0.9 % of a series whose p99 is below 2.5 medians."""
    assert Quantile().next_launch_at(view_of({0.5: 1.0, 0.99: 2.0}, {**LIGHT, 0.996: 4.0, 1.0: 9.0})) == 104.08


def test_d0_of_a_light_day_follows_a_slow_window() -> None:
    assert Quantile().next_launch_at(view_of({0.5: 1.0, 0.99: 7.0}, LIGHT)) == 107.0


@pytest.mark.parametrize(("p99", "due"), [(2.499, 102.5), (2.5, 101.75)])
def test_a_tail_is_light_below_a_ratio_of_two_and_a_half(p99: float, due: float) -> None:
    assert Quantile().next_launch_at(view_of({0.5: 1.0, 0.99: 1.2}, {0.5: 1.0, 0.99: p99})) == due


def test_without_a_long_book_no_tail_is_called_light() -> None:
    assert Quantile().next_launch_at(view_of({0.5: 1.0, 0.99: 1.2}, {})) == 101.75


@pytest.mark.parametrize(
    ("fleet", "q"),
    [
        (FakeFleet(0.05, count=0), 0.975),  # nothing known: half the budget
        (FakeFleet(0.05, count=20), 0.975),  # 0.05 - 0.05 < half
        (FakeFleet(0.05, count=500), 0.96),
        (FakeFleet(0.05, count=50_000), 0.951),
        (FakeFleet(0.05, count=50_000, second=0.005), 0.956),
        (FakeFleet(0.05, count=50_000, second=0.5), 0.975),
        (FakeFleet(0.05, count=500, eligible=0.8), 0.95),
        (FakeFleet(0.05, count=500, eligible=0.1), 0.95),  # never below the topology's
        (FakeFleet(0.10, count=10**9), 0.95),
        (FakeFleet(0.0, count=100), 0.9999),
    ],
)
def test_default_q(fleet: FakeFleet, q: float) -> None:
    assert default_q(fleet, REGIONS, 0.0) == pytest.approx(q, abs=1e-4)


def test_default_q_of_replicas_needs_the_budget_for_it() -> None:
    assert default_q(FakeFleet(0.10, count=10**9), REPLICAS, 0.0) == pytest.approx(0.90, abs=1e-4)
    assert default_q(FakeFleet(0.05, count=10**9), REPLICAS, 0.0) == pytest.approx(0.95, abs=1e-4)


@pytest.mark.parametrize(
    ("candidates", "q"),
    [
        (REGIONS, 0.95),
        (REPLICAS, 0.90),
        ((place("a"), place("b")), 0.95),
        ((place("a", "openai", "a"), place("b", "azure", "b")), 0.95),
        ((place("a", "openai", "us", "a"), place("b", "openai", "us", "b")), 0.90),
        ((*REPLICAS, place("c")), 0.95),
        ((), 0.95),
    ],
)
def test_topology(candidates: tuple[object, ...], q: float) -> None:
    assert topology_q(candidates) == q  # type: ignore[arg-type]


@given(
    budget=st.floats(0, 1),
    count=st.integers(0, 10**7),
    second=st.floats(0, 1),
    eligible=st.floats(0.001, 1),
)
def test_default_q_never_asks_for_more_than_the_budget(
    budget: float, count: int, second: float, eligible: float
) -> None:
    q = default_q(FakeFleet(budget, count, second, eligible), REPLICAS, 0.0)
    assert 0.90 <= q < 1
    assert (1 - q) * eligible <= max(budget, 1e-4) + 1e-9


# --- what is remembered -----------------------------------------------------------------------------------------------


def test_d0_is_computed_once_a_second() -> None:
    view, policy = view_of({0.5: 1.0, 0.99: 6.0}), Quantile()
    latency = view.latency
    assert policy.next_launch_at(view) == 106.0
    asked = latency.asked
    latency.quantiles = {0.5: 1.0, 0.99: 8.0}
    view.now = 100.999
    assert policy.next_launch_at(view) == 106.0
    assert latency.asked == asked
    view.now = 101.0
    assert policy.next_launch_at(view) == 108.0


def test_d0_is_not_shared_by_books_keys_targets_topologies_or_clocks() -> None:
    policy = Quantile()
    view = view_of({0.5: 1.0, 0.90: 3.0, 0.99: 6.0})
    assert policy.next_launch_at(view) == 106.0
    other_book = view_of({0.5: 1.0, 0.99: 7.0}, fleet=view.fleet)
    assert policy.next_launch_at(other_book) == 107.0
    other_book.fleet = FakeFleet(1.0, count=10**9)
    other_book.latency.quantiles = {0.5: 1.0, 0.99: 8.0}
    assert policy.next_launch_at(other_book) == 108.0
    assert policy.next_launch_at(view) == 106.0
    view.latency.quantiles = {0.5: 1.0, 0.90: 3.0, 0.99: 8.0}
    view.key = StepKey(node="other")
    assert policy.next_launch_at(view) == 108.0
    view.fleet = FakeFleet(0.2, count=10**9)
    view.candidates = REPLICAS
    assert policy.next_launch_at(view) == 103.0
    view.latency.quantiles = {0.5: 1.0, 0.99: 9.0}
    view.now = 0.0  # another loop, whose clock started later
    assert policy.next_launch_at(view) == 109.0


def test_what_is_remembered_is_bounded_and_does_not_travel() -> None:
    policy, view = Quantile(), view_of({0.5: 1.0, 0.99: 6.0})
    for number in range(5000):
        view.key = StepKey(node=f"node {number}")
        policy.next_launch_at(view)
    assert 0 < len(policy._memo.state[2]) <= 4096
    for twin in (deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert twin == policy
        assert not twin._memo.state[2]


# --- bad input --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("q", [0, 1, 0.0, 1.0, -0.1, 1.1, 95, math.nan, math.inf, True, "0.9"])
def test_r20_a_quantile_outside_0_1(q: float) -> None:
    with pytest.raises(ConfigurationError, match="q must be a number between 0 and 1") as error:
        Quantile(q)
    assert repr(q) in str(error.value)


@pytest.mark.parametrize("cold", [None, 2.0, "never", Never])
def test_r20_cold_must_be_a_policy(cold: object) -> None:
    with pytest.raises(ConfigurationError, match="cold must be a policy"):
        Quantile(cold=cold)  # type: ignore[arg-type]
