"""The arguments that policies share, checked once and with the offending value in the message (R20)."""

from __future__ import annotations

import math

from agent_hedge.errors import ConfigurationError

MAX_ATTEMPTS = 3
"""Attempts of one step in all, the primary included (DESIGN 5.7)."""


def is_number(value: object) -> bool:
    """Whether `value` is a real number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def check_attempts(attempts: object) -> None:
    """Raise `ConfigurationError` unless `attempts` (the primary included) is 1, 2 or 3."""
    if not isinstance(attempts, int) or isinstance(attempts, bool) or not 1 <= attempts <= MAX_ATTEMPTS:
        raise ConfigurationError(f"attempts must be a whole number from 1 to {MAX_ATTEMPTS}, got {attempts!r}")


def check_seconds(name: str, value: object) -> None:
    """Raise `ConfigurationError` unless `value` is a finite number of seconds that is not negative."""
    if not is_number(value) or not 0 <= value < math.inf:  # type: ignore[operator]
        raise ConfigurationError(f"{name} must be a finite number of seconds >= 0, got {value!r}")
