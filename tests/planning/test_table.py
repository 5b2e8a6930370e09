"""The table d*(k, s), against a dynamic programme written out in full, and the shape that theory gives it."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from agent_hedge.errors import ConfigurationError
from agent_hedge.planning.distribution import Distribution
from agent_hedge.planning.table import build

FAST, SLOW, CHANCE = 1.0, 9.0, 0.2
"""A step takes 1 s, or with probability 20 % nine: nothing else can happen, so every expectation is a short sum."""


def two_points(samples: int = 1000) -> Distribution:
    slow = int(samples * CHANCE)
    return Distribution.of_samples([FAST] * (samples - slow) + [SLOW] * slow)


def expected_value(steps: int, slack: float, price: float) -> float:
    """Return the best expected (negative) lateness minus price, hedging at 0, just after 1 s, or never."""
    if steps == 0:
        return min(slack, 0.0)
    never = (1 - CHANCE) * expected_value(steps - 1, slack - FAST, price) + CHANCE * expected_value(
        steps - 1, slack - SLOW, price
    )
    both_slow = CHANCE * CHANCE
    at_once = (1 - both_slow) * expected_value(steps - 1, slack - FAST, price)
    at_once += both_slow * expected_value(steps - 1, slack - SLOW, price) - price
    late = (1 - CHANCE) * expected_value(steps - 1, slack - FAST, price)
    late += CHANCE * (1 - CHANCE) * expected_value(steps - 1, slack - FAST - FAST, price)
    late += CHANCE * CHANCE * expected_value(steps - 1, slack - SLOW, price) - price * CHANCE
    return max(never, at_once, late)


def test_the_delay_is_the_one_that_a_full_enumeration_chooses() -> None:
    table = build(two_points(), None, steps=3, price=0.5)
    for steps, slack in itertools.product((1, 2, 3), (2.5, 4.5, 6.5, 12.5)):
        never = (1 - CHANCE) * expected_value(steps - 1, slack - FAST, 0.5)
        never += CHANCE * expected_value(steps - 1, slack - SLOW, 0.5)
        worth_it = expected_value(steps, slack, 0.5) > never + 1e-6
        assert math.isfinite(table.delay(steps - 1, slack, 0.5)) == worth_it, (steps, slack)


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
    tables = [build(first, None, steps=3, price=2000.0) for first in (short, hours)]
    assert tables[0].delays.nbytes == tables[1].delays.nbytes
    assert [table.delay(2, 5.0, 2000.0) for table in tables] == [math.inf, FAST]  # 1 s late on average; 36 s


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
