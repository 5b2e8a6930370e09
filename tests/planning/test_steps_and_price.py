"""Lengths of runs as hazards, and the price that spends the budget."""

from __future__ import annotations

import math
import random

import pytest

from agent_hedge.errors import ConfigurationError
from agent_hedge.planning.price import Price
from agent_hedge.planning.steps import ENOUGH, LONGEST, Lengths, hazards_of


def test_hazards_of_a_uniform_length() -> None:
    assert hazards_of([0, 0, 1, 1]) == [0.0, 0.0, 0.5, 1.0]


def test_the_last_hazard_is_one() -> None:
    assert hazards_of([5.0, 3.0, 2.0, 0.0])[-1] == 1.0


@pytest.mark.parametrize("counts", [[], [0, 0], [1, -1]])
def test_r20_lengths_that_cannot_be_meant(counts: list[float]) -> None:
    with pytest.raises(ConfigurationError, match="lengths"):
        hazards_of(counts)


def test_lengths_are_believed_after_enough_runs() -> None:
    lengths = Lengths()
    for number in range(ENOUGH):
        assert not lengths.known
        lengths.add(10 + number % 3)
    assert lengths.known
    assert lengths.longest() == 12
    assert lengths.hazards()[:10] == [0.0] * 9 + [pytest.approx(1 / 3)]
    assert [lengths.quantile(q) for q in (0.1, 0.5, 0.9)] == [10, 11, 12]


def test_runs_without_a_step_do_not_count_and_long_ones_are_bounded() -> None:
    lengths = Lengths()
    lengths.add(0)
    assert (lengths.runs, lengths.longest(), lengths.quantile(0.5)) == (0, 0, 0)
    lengths.add(10_000)
    assert lengths.longest() == LONGEST


def test_the_price_settles_where_the_budget_is_spent() -> None:
    rng, price = random.Random(3), Price(0.05)

    def chance() -> float:
        return min(1.0, 0.05 * math.sqrt(0.02 / price.value))  # demand falls with the price; 5 % at 0.02

    spent = 0
    for step in range(40_000):
        hedged = rng.random() < chance()
        price.observe(int(hedged))
        spent += hedged and step >= 20_000
    assert spent / 20_000 == pytest.approx(0.05, rel=0.1)


def test_a_closed_price_is_infinite() -> None:
    price = Price(0.05)
    price.closed = True
    assert price.value == math.inf


def test_the_price_stays_in_bounds() -> None:
    price = Price(0.05)
    for _ in range(5000):
        price.observe(1)
    dear = price.value
    for _ in range(50_000):
        price.observe(0)
    assert 0 < price.value < dear < 1e4


@pytest.mark.parametrize("budget", [0.0, -0.1, 1.5, math.nan])
def test_r20_a_budget_that_cannot_be_meant(budget: float) -> None:
    with pytest.raises(ConfigurationError, match="budget"):
        Price(budget)
