"""Numbers from outside: what passes comes back, what cannot be meant is named (R20)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from agent_hedge.core import checks
from agent_hedge.errors import ConfigurationError

NO_NUMBERS = [None, "1", True, False, math.nan, 1j]


@pytest.mark.parametrize("value", [0, 0.5, 1])
def test_r20_a_ratio_comes_back_as_a_float(value: float) -> None:
    assert checks.ratio("share", value) == value
    assert isinstance(checks.ratio("share", value), float)


@pytest.mark.parametrize("value", [-0.01, 1.01, math.inf, *NO_NUMBERS])
def test_r20_a_ratio_lies_between_0_and_1(value: object) -> None:
    with pytest.raises(ConfigurationError, match="share must be a ratio from 0 to 1, got") as refused:
        checks.ratio("share", value)
    assert repr(value) in str(refused.value)


@pytest.mark.parametrize(("check", "what"), [(checks.seconds, "number of seconds"), (checks.amount, "amount")])
@pytest.mark.parametrize("value", [-1e-9, math.inf, *NO_NUMBERS])
def test_r20_seconds_and_money_are_finite_and_not_negative(
    check: Callable[[str, object], float], what: str, value: object
) -> None:
    assert check("limit", 0) == 0.0
    assert check("limit", 2.5) == 2.5
    with pytest.raises(ConfigurationError, match=f"limit must be a finite {what} >= 0, got"):
        check("limit", value)


@pytest.mark.parametrize("value", [1e12, 10**400])
def test_r20_a_hundred_years_are_long_enough(value: float) -> None:
    assert checks.seconds("deadline", 3e9) == 3e9
    with pytest.raises(ConfigurationError, match="deadline must be at most a hundred years, in seconds, got 10000"):
        checks.seconds("deadline", value)


def test_r20_money_fits_into_a_float() -> None:
    assert checks.amount("cost", 1e300) == 1e300
    with pytest.raises(ConfigurationError, match="cost must be a finite amount >= 0, got 10000"):
        checks.amount("cost", 10**400)


def test_r20_seconds_may_have_a_least_value() -> None:
    assert checks.seconds("window", 60, least=60) == 60.0
    with pytest.raises(ConfigurationError, match=r"window must be a finite number of seconds >= 60, got 59\.9"):
        checks.seconds("window", 59.9, least=60)


@pytest.mark.parametrize("value", [-1, 1.0, 1.5, *NO_NUMBERS])
def test_r20_a_count_is_whole_and_not_negative(value: object) -> None:
    assert checks.count("steps", 0) == 0
    assert checks.count("steps", 10**9) == 10**9
    with pytest.raises(ConfigurationError, match="steps must be a whole number >= 0, got"):
        checks.count("steps", value)


@pytest.mark.parametrize("value", [2**31, 10**400])
def test_r20_a_count_fits_into_every_store(value: int) -> None:
    assert checks.count("steps", 2**31 - 1) == 2**31 - 1
    with pytest.raises(ConfigurationError, match="steps must be a whole number from 0 to 2147483647, got"):
        checks.count("steps", value)


@pytest.mark.parametrize("value", [0, 4, 2.0, True])
def test_r20_attempts_are_1_to_3(value: object) -> None:
    assert [checks.attempts(number) for number in (1, 2, 3)] == [1, 2, 3]
    with pytest.raises(ConfigurationError, match="attempts must be a whole number from 1 to 3, got"):
        checks.attempts(value)
