"""A constant delay, for who knows their latencies better than two hundred samples would."""

from __future__ import annotations

from dataclasses import dataclass

from agent_hedge.core import checks
from agent_hedge.core.ports import RaceView


@dataclass(frozen=True, slots=True)
class Fixed:
    """Launch the next attempt `delay` seconds after the newest one, up to `attempts` in all (1 to 3).

    Raises `ConfigurationError` for a delay that is negative, infinite or NaN, and for attempts out of range.
    """

    delay: float
    attempts: int = 2

    def __post_init__(self) -> None:
        checks.seconds("delay", self.delay)
        checks.attempts(self.attempts)

    def next_launch_at(self, view: RaceView) -> float | None:
        """Return the instant `delay` after the newest launch, or None once `attempts` have been launched."""
        if view.launched >= self.attempts:
            return None
        return view.last_launch_at + self.delay
