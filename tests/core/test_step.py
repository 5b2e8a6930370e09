"""Instants: rounded to a nanosecond, the same to the last bit as through decimal digits."""

from __future__ import annotations

import math
import random

import pytest

from agent_hedge.core.step import instant


def test_an_instant_is_the_decimal_a_person_would_write() -> None:
    assert instant(0.1 + 0.2) == 0.3
    assert instant(1.1 + 2.2) == 3.3
    assert instant(-0.1 - 0.2) == -0.3
    assert instant(7) == 7.0


def test_facts_less_than_a_nanosecond_apart_are_of_one_instant() -> None:
    assert instant(1234.5 + 4e-10) == instant(1234.5 - 4e-10) == 1234.5
    assert instant(1234.5 + 1e-9) > 1234.5


def test_an_instant_is_what_rounding_through_digits_gives() -> None:
    rng = random.Random(9)
    for _ in range(20_000):
        at = round(rng.uniform(-1e6, 1e6), rng.randrange(1, 10)) + rng.uniform(-2e-10, 2e-10)
        assert instant(at) == round(at, 9), at


@pytest.mark.parametrize("at", [math.inf, -math.inf, 1e300, -1e300, 1.7e9 + 0.1234567, 2.0**23])
def test_what_is_coarser_than_a_nanosecond_stays_as_it_is(at: float) -> None:
    assert instant(at) == at


def test_what_is_no_number_stays_none() -> None:
    assert math.isnan(instant(math.nan))
