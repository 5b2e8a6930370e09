"""What others do, as policies to compare with. For tests and the lab only: none of them learns, none spares load."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agent_hedge.core import checks
from agent_hedge.core.ports import RaceView
from agent_hedge.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Blind:
    """Launch all attempts at once, as "send two, take the first" does."""

    attempts: int = 2

    def __post_init__(self) -> None:
        checks.attempts(self.attempts)

    def next_launch_at(self, view: RaceView) -> float | None:
        """Return the newest launch itself: the next is due in the same instant."""
        return view.last_launch_at if view.launched < self.attempts else None


@dataclass(frozen=True, slots=True)
class RetryAfterTimeout:
    """Launch the next attempt when the newest one has run for `timeout` seconds, as a retry with a time-out does.

    A policy says when the next attempt is *due*; it cannot end the one before. A real client-side time-out also drops
    what the slow attempt was about to say. So a faithful baseline has two halves: this policy, and a call (or script)
    that raises `TimeoutError` after the same `timeout`. The race then sees a failure and the trigger in one instant,
    takes the failure first, and launches the next attempt as a recovery. With this policy alone the slow attempt
    stays in the race, which flatters the baseline.
    """

    timeout: float
    attempts: int = 2

    def __post_init__(self) -> None:
        if not 0 < self.timeout < math.inf:
            raise ConfigurationError(f"timeout must be a finite number of seconds > 0, got {self.timeout!r}")
        checks.attempts(self.attempts)

    def next_launch_at(self, view: RaceView) -> float | None:
        """Return the instant at which the newest attempt times out."""
        return view.last_launch_at + self.timeout if view.launched < self.attempts else None
