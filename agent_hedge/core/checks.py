"""Numbers that people pass in, refused with their name and value where they cannot be meant (R20).

Each returns what it was given and raises `ConfigurationError`. True and False are no numbers here; NaN never passes.
"""

from __future__ import annotations

import math
from typing import TypeGuard

from agent_hedge.core.step import MAX_ATTEMPTS
from agent_hedge.errors import ConfigurationError


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether `value` is a real number; True and False are not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def ratio(name: str, value: object) -> float:
    """Return a ratio from 0 to 1."""
    if not is_number(value) or not 0 <= value <= 1:
        raise ConfigurationError(f"{name} must be a ratio from 0 to 1, got {value!r}")
    return float(value)


def seconds(name: str, value: object, *, least: float = 0) -> float:
    """Return a finite number of seconds >= `least`."""
    if not is_number(value) or not least <= value < math.inf:
        raise ConfigurationError(f"{name} must be a finite number of seconds >= {least}, got {value!r}")
    return float(value)


def amount(name: str, value: object) -> float:
    """Return a finite amount of money >= 0."""
    if not is_number(value) or not 0 <= value < math.inf:
        raise ConfigurationError(f"{name} must be a finite amount >= 0, got {value!r}")
    return float(value)


def count(name: str, value: object, *, least: int = 0, most: int | None = None) -> int:
    """Return a whole number >= `least`, and at most `most` where that is given."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= (value if most is None else most):
        meant = f">= {least}" if most is None else f"from {least} to {most}"
        raise ConfigurationError(f"{name} must be a whole number {meant}, got {value!r}")
    return value


def attempts(value: object) -> int:
    """Return how many attempts a policy may make of one step, the primary included."""
    return count("attempts", value, least=1, most=MAX_ATTEMPTS)
