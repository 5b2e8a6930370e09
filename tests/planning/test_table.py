"""The table d*(k, s), against a dynamic programme written out in full, and the shape that theory gives it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from agent_hedge.errors import ConfigurationError
from agent_hedge.planning.distribution import Distribution
from agent_hedge.planning.table import ENOUGH, LATE, LATE_WEIGHT, build

FAST, SLOW, CHANCE = 1.0, 9.0, 0.2
"""A step takes 1 s, or with probability 20 % nine: nothing else can happen, so every expectation is a short sum."""


def two_points(samples: int = 1000) -> Distribution:
    slow = int(samples * CHANCE)
    return Distribution.of_samples([FAST] * (samples - slow) + [SLOW] * slow)


MEAN = (1 - CHANCE) * FAST + CHANCE * SLOW


def never(steps: int, slack: float, price: float, purse: int) -> float:
    """Return what a run is worth whose present step is not hedged."""
    after = (expected_value(steps - 1, slack - seconds, price, purse) for seconds in (FAST, SLOW))
    return (1 - CHANCE) * next(after) + CHANCE * next(after)


def expected_value(steps: int, slack: float, price: float, purse: int = ENOUGH) -> float:
    """Return the best expected (negative) lateness minus price, hedging at 0, just after 1 s, or never."""
    if steps == 0:
        late = max(-slack, 0.0)
        return -min(late, LATE * MEAN) - LATE_WEIGHT * max(late - LATE * MEAN, 0.0)
    alone = never(steps, slack, price, purse)
    if purse == 0:
        return alone
    less = purse if purse == ENOUGH else purse - 1
    fast, twice, slow = (expected_value(steps - 1, slack - s, price, less) for s in (FAST, FAST + FAST, SLOW))
    both_slow = CHANCE * CHANCE
    at_once = (1 - both_slow) * fast + both_slow * slow - price
    first = expected_value(steps - 1, slack - FAST, price, purse)
    later = (1 - CHANCE) * first + CHANCE * (1 - CHANCE) * twice + both_slow * slow - price * CHANCE
    return max(alone, at_once, later)


@pytest.mark.parametrize("purse", [1, 2, ENOUGH])
def test_the_delay_is_the_one_that_a_full_enumeration_chooses(purse: int) -> None:
    table = build(two_points(), None, steps=3, price=0.1, grid=1000)
    for steps, slack in itertools.product((1, 2, 3), (1.5, 4.5, 7.5, 10.75, 12.25, 16.25, 25.0)):
        worth_it = expected_value(steps, slack, 0.1, purse) > never(steps, slack, 0.1, purse) + 1e-6
        assert math.isfinite(table.delay(steps - 1, slack, 0.1, purse)) == worth_it, (steps, slack)


def test_a_run_with_slack_to_spare_is_never_hedged() -> None:
    table = build(two_points(), None, steps=3, price=0.1)
    assert table.delay(0, 9.6, 0.1) == math.inf  # even the slow answer is in time
    assert table.delay(0, 5.0, 0.1) < math.inf


def test_a_known_length_is_a_hazard_that_is_one_at_its_end() -> None:
    known = build(two_points(), None, steps=4, price=0.3)
    hazards = build(two_points(), None, steps=4, hazards=[0.0, 0.0, 0.0, 1.0], price=0.3)
    for done, slack in itertools.product(range(4), (1.0, 5.0, 9.0, 20.0)):
        assert hazards.delay(done, slack, 0.3) == known.delay(3 - done, slack, 0.3)


@pytest.fixture(scope="module")
def realistic() -> tuple[Distribution, Distribution]:
    rng = np.random.default_rng(1)
    tokens = 0.8 * np.exp(0.35 * rng.standard_normal(20_000))
    stalled = rng.random(20_000) < 0.04
    tokens[stalled] += np.minimum(2 * rng.random(int(stalled.sum())) ** (-1 / 1.3), 60)
    return Distribution.of_samples(tokens), Distribution.of_samples(2 * np.exp(0.5 * rng.standard_normal(20_000)))


def test_the_more_slack_the_later_the_hedge(realistic: tuple[Distribution, Distribution]) -> None:
    table = build(*realistic, steps=20)
    price = float(table.prices[3])
    delays = [table.delay(19, slack, price) for slack in (60.0, 70.0, 80.0, 90.0, 120.0)]
    assert delays == sorted(delays)
    assert delays[0] < 1.0
    assert delays[-1] > realistic[0].quantile(0.97)


def test_a_dearer_hedge_comes_later(realistic: tuple[Distribution, Distribution]) -> None:
    table = build(*realistic, steps=20)
    delays = [table.delay(19, 78.0, float(price)) for price in table.prices]
    assert delays == sorted(delays)
    between = table.delay(19, 78.0, float(np.sqrt(table.prices[2] * table.prices[3])))
    assert delays[2] <= between <= delays[3]


def test_prices_beyond_the_table_are_the_nearest_tabled_ones(realistic: tuple[Distribution, Distribution]) -> None:
    table = build(*realistic, steps=5)
    assert table.delay(4, 15.0, 0.0) == table.delay(4, 15.0, float(table.prices[0]))
    assert table.delay(4, 15.0, math.inf) == table.delay(4, 15.0, float(table.prices[-1]))


def test_the_smaller_the_purse_the_later_the_hedge(realistic: tuple[Distribution, Distribution]) -> None:
    table = build(*realistic, steps=20)
    for slack in (30.0, 60.0, 75.0):
        delays = [table.delay(19, slack, 0.01, purse) for purse in (1, 2, 3, 4, ENOUGH)]
        assert delays == sorted(delays, reverse=True)
        assert delays[0] > delays[-1]


def test_a_hopeless_run_is_hedged_as_by_a_static_trigger(realistic: tuple[Distribution, Distribution]) -> None:
    table = build(*realistic, steps=20)
    for price in (1e-3, 1e-2):
        assert table.delay(19, 5.0, price) <= realistic[0].quantile(0.96)  # twenty steps of 3 s are left
        assert table.delay(19, 5.0, price, purse=2) <= realistic[0].quantile(0.96)


@pytest.mark.parametrize(
    ("hedges", "left", "purse"), [(0, 50, 0), (4, 50, 4), (5, 26, 4), (5, 25, ENOUGH), (9, 50, 4), (10, 50, ENOUGH)]
)
def test_more_hedges_than_purses_are_enough_where_they_are_ample(hedges: int, left: int, purse: int) -> None:
    assert build(two_points(), None, steps=1).purse(hedges, left) == purse


def test_rows_and_slack_beyond_the_table_are_its_last(realistic: tuple[Distribution, Distribution]) -> None:
    table = build(*realistic, steps=5)
    assert table.delay(50, 15.0, 0.01) == table.delay(4, 15.0, 0.01)
    assert table.delay(-3, 15.0, 0.01) == table.delay(0, 15.0, 0.01)
    assert table.delay(2, 1e9, 0.01) == math.inf


@pytest.mark.parametrize(("slack", "price"), [(60.0, 0.003), (75.0, 0.01), (82.0, 0.03)])
def test_a_coarse_grid_chooses_what_a_fine_one_does(
    realistic: tuple[Distribution, Distribution], slack: float, price: float
) -> None:
    fine, coarse = (build(*realistic, steps=20, price=0.01, grid=grid) for grid in (4000, 400))
    assert coarse.cell > 0.3  # as long as the body of the first tokens
    assert coarse.delay(19, slack, price) == pytest.approx(fine.delay(19, slack, price), rel=0.1, abs=0.1)


def test_a_hang_of_an_hour_costs_neither_time_nor_memory_and_is_still_late() -> None:
    short = Distribution.of_samples([FAST] * 990 + [100.0] * 10)
    hours = Distribution.of_samples([FAST] * 990 + [3600.0] * 10)
    tables = [build(first, None, steps=3, price=200.0) for first in (short, hours)]
    assert tables[0].choices.nbytes == tables[1].choices.nbytes
    assert [table.delay(2, 5.0, 200.0) for table in tables] == [math.inf, FAST]  # 1 s late on average; 36 s


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"steps": 0}, "0"), ({"steps": 2, "hazards": [0.5]}, "2 ratios"), ({"steps": 1, "hazards": [1.5]}, "ratios")],
)
def test_r20_a_plan_that_cannot_be_meant(settings: dict[str, object], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        build(two_points(), None, **settings)  # type: ignore[arg-type]


def test_a_distribution_reads_as_its_samples() -> None:
    distribution = Distribution.of_samples([1.0, 2.0, 2.0, 4.0])
    assert distribution.exceeds(np.array([0.5, 1.0, 2.0, 3.9, 4.0])).tolist() == [1.0, 0.75, 0.25, 0.25, 0.0]
    assert [distribution.quantile(q) for q in (0.25, 0.5, 0.75, 1.0)] == [1.0, 2.0, 2.0, 4.0]
    assert distribution.mean == 2.25
