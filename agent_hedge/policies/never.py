"""No hedge at all. Failures are still recovered from: that is the race's business, not the policy's."""

from __future__ import annotations

from dataclasses import dataclass

from agent_hedge.core.ports import RaceView


@dataclass(frozen=True, slots=True)
class Never:
    """Launch no hedge."""

    def next_launch_at(self, view: RaceView) -> float | None:
        """Return None: nothing is ever due on the timer."""
        return None
