"""The waits of the last hour or two: as callers saw them, and as the primaries alone would have given them.

Two generations are kept and the younger one is filled, so what is said is never older than two hours and never rests on
less than one, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

GENERATION_S = 3600.0
Q = 0.99


class Estimate(Protocol):
    @property
    def seconds(self) -> float: ...
    @property
    def identified(self) -> bool: ...


class Survival(Protocol):
    """Completed and censored waits, and their quantiles (R16); `agent_hedge.latency.Sketch` is one."""

    @property
    def count(self) -> int: ...
    def add(self, seconds: float) -> None: ...
    def add_censored(self, seconds: float) -> None: ...
    def merge(self, other: Any, /) -> None: ...
    def quantile(self, q: float) -> Estimate: ...


class Tail:
    """The waits of one kind. Not locked: its owner locks."""

    __slots__ = ("_born_at", "_older", "_survival", "_younger")

    def __init__(self, survival: Callable[[], Survival]) -> None:
        self._survival = survival
        self._younger, self._older = survival(), survival()
        self._born_at: float | None = None

    def add(self, seconds: float, at: float) -> None:
        """Count a wait that ended with a first token."""
        self._turn(at)
        self._younger.add(seconds)

    def add_censored(self, seconds: float, at: float) -> None:
        """Count a wait that was cut short."""
        self._turn(at)
        self._younger.add_censored(seconds)

    def p99(self) -> float | None:
        """Return the p99 in seconds, None where the data cannot say."""
        both = self._survival()
        both.merge(self._older)
        both.merge(self._younger)
        if not both.count:
            return None
        estimate = both.quantile(Q)
        return estimate.seconds if estimate.identified else None

    def _turn(self, at: float) -> None:
        if self._born_at is None:
            self._born_at = at
        elif at - self._born_at >= GENERATION_S:
            stale = at - self._born_at >= 2 * GENERATION_S
            self._older = self._survival() if stale else self._younger
            self._younger = self._survival()
            self._born_at = at
