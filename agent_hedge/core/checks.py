"""What people pass in, refused with its name where it cannot be meant or stored (R20). All raise `ConfigurationError`.

Those of numbers return what they were given; True and False are no numbers here, and NaN never passes.
"""

from __future__ import annotations

import math
import re
from typing import TypeGuard

from agent_hedge.core.step import MAX_ATTEMPTS
from agent_hedge.errors import ConfigurationError

NAME_LIMIT = 255
"""Longest name of a tool, namespace, target or principal, in characters."""
KEY_LIMIT = 512
"""Longest run key, thread id, step key or scope, in characters."""
WORKER_LIMIT = 64
"""Longest id of a worker process, in characters."""
NOTE_LIMIT = 2000
"""Longest free text of a person (notes, reasons), in characters."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


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


def check_text(value: object, what: str, limit: int, *, empty: bool = True) -> None:
    """Refuse text that not every store can hold as it is. The error never quotes the text."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} must be a string, not {type(value).__name__}")
    if not value and not empty:
        raise ConfigurationError(f"{what} must not be empty")
    if len(value) > limit:
        raise ConfigurationError(f"{what} is {len(value)} characters long; at most {limit} are allowed")
    if "\0" in value or (not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)):
        raise ConfigurationError(f"{what} holds a NUL or a lone surrogate")


def check_digest(value: str, what: str) -> None:
    """Refuse anything but SHA-256 hex: nothing readable goes into a key column."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ConfigurationError(f"{what} must be SHA-256 hex")
