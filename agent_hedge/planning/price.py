"""The price of a hedge, driven so that the fleet spends its budget and no more.

    price <- price * exp(gain * (hedges per eligible step / budget - 1))

One price for the whole fleet is what coordinates runs: a run with much slack leaves its hedges to one that needs
them. It is a soft control; the purses of R13 stay the hard one. A breaker that is open makes the price infinite.
"""

from __future__ import annotations

import math
import threading

from agent_hedge.errors import ConfigurationError

GAIN = 0.02
"""Per eligible step: the price settles over some hundreds of steps and wobbles by a few per cent."""
MEMORY = 400
"""Eligible steps over which the rate of hedges is averaged."""
LEAST, MOST = 1e-7, 1e3
"""Seconds of lateness per hedge."""


class Price:
    """Seconds of expected lateness that one hedge must save. Safe for threads."""

    def __init__(self, budget: float, start: float = 1e-3) -> None:
        if not 0 < budget <= 1:
            raise ConfigurationError(f"budget must be a ratio in (0, 1], got {budget!r}")
        self._budget = budget
        self._value = start
        self._rate = budget
        self._lock = threading.Lock()
        self.closed = False
        """Set where nothing may be hedged: the price is infinite."""

    @property
    def value(self) -> float:
        return math.inf if self.closed else self._value

    def observe(self, hedges: int) -> None:
        """Hear of one eligible step and how many hedges it took."""
        with self._lock:
            self._rate += (hedges - self._rate) / MEMORY
            self._value *= math.exp(GAIN * (self._rate / self._budget - 1))
            self._value = min(max(self._value, LEAST), MOST)
