"""What this process knows of the fleet's last 60 minutes: written by the meter, read by policies and people."""

from __future__ import annotations

import threading
from enum import IntEnum
from typing import NamedTuple

from agent_hedge.gates.slices import Slices

MINUTES = 60
"""The window, in buckets of one minute."""


class Field(IntEnum):
    """What is counted. A logical request is one of the first two."""

    ELIGIBLE = 0
    INELIGIBLE = 1
    HEDGES = 2
    SECOND_HEDGES = 3
    RECOVERIES = 4
    WINS = 5


class FleetCounts(NamedTuple):
    """Logical requests (and how many of them may be hedged at all) and physical extra attempts of 60 minutes.

    `second_hedges` are the second and later hedges of a step, counted among `hedges` too; `wins` are hedges that won.
    """

    requests: int
    eligible: int
    hedges: int
    second_hedges: int
    recoveries: int
    wins: int


class Fleet:
    """Counts in 60 one-minute buckets; implements `FleetView`. `budget` is the allowed ratio of hedges to requests."""

    def __init__(self, budget: float = 0.05) -> None:
        self.budget = budget
        self._slices = Slices(len(Field), width=60.0, keep=MINUTES)
        self._lock = threading.Lock()

    def count(self, field: int, now: float) -> int:
        """Count one; return the minute, to be able to `take_back` it."""
        with self._lock:
            return self._slices.add(field, now)

    def take_back(self, field: int, minute: int) -> None:
        """Undo one `count`: the attempt was never sent."""
        with self._lock:
            self._slices.take_back(field, minute)

    def counts(self, now: float) -> FleetCounts:
        """Return all counts at one instant."""
        with self._lock:
            eligible, ineligible, hedges, second, recoveries, wins = (self._slices.total(f, now) for f in Field)
        return FleetCounts(eligible + ineligible, eligible, hedges, second, recoveries, wins)

    def requests(self, now: float) -> int:
        return self.counts(now).requests

    def second_hedge_rate(self, now: float) -> float:
        """Return second and later hedges of a step per logical request; 0 before the first request."""
        counts = self.counts(now)
        return counts.second_hedges / counts.requests if counts.requests else 0.0

    def eligible_share(self, now: float) -> float:
        """Return the share of requests that may be hedged, never 0: 1 before the first request."""
        counts = self.counts(now)
        return max(counts.eligible, 1) / counts.requests if counts.requests else 1.0
