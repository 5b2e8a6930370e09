"""What people pass in, refused with its name where it cannot be meant or stored (R20). All raise `ConfigurationError`.

Those of numbers return what they were given; True and False are no numbers here, and NaN never passes.
"""

from __future__ import annotations

import math
import re
import sys
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
COUNT_LIMIT = 2**31 - 1
"""Largest count: what an integer column of any store holds."""
SECONDS_LIMIT = 100 * 365.25 * 86_400
"""A hundred years, in seconds: whoever waits longer meant something else, and no calendar has a date for it."""
_FLOAT_MAX = sys.float_info.max
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
    """Return a finite number of seconds >= `least`, of a hundred years at most."""
    if not is_number(value) or not least <= value <= SECONDS_LIMIT:
        too_long = is_number(value) and SECONDS_LIMIT < value < math.inf
        meant = "at most a hundred years, in seconds" if too_long else f"a finite number of seconds >= {least}"
        raise ConfigurationError(f"{name} must be {meant}, got {value!r:.80}")
    return float(value)


def amount(name: str, value: object) -> float:
    """Return a finite amount of money >= 0."""
    if not is_number(value) or not 0 <= value <= _FLOAT_MAX:
        raise ConfigurationError(f"{name} must be a finite amount >= 0, got {value!r}")
    return float(value)


def count(name: str, value: object, *, least: int = 0, most: int = COUNT_LIMIT) -> int:
    """Return a whole number from `least` to `most`."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        too_large = is_number(value) and value > most
        meant = f"from {least} to {most}" if too_large or most < COUNT_LIMIT else f">= {least}"
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
