"""The deadline: the only gate that may refuse a primary (R4, R12)."""

from __future__ import annotations

import math

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, RaceView, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Attempt, Role

_PRIMARY = Role.PRIMARY


class DeadlineGate:
    """Refuses what starts at or after the deadline, and extra attempts that could not make it.

    An extra attempt could not make it when half of its target's requests take longer to the first token than is left:
    the median of the 5-minute window, else that of the long book; while neither is known it may try. What is left ends
    with the deadline, or sooner with a time-out of the framework around the step. A primary is refused by the race
    itself, which asks nobody at or after its deadline.
    """

    extras_only = True

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        deadline = view.deadline
        now = view.now
        if now >= deadline:
            return Refused(Reason.DEADLINE)
        if attempt.role is _PRIMARY:
            return PASS
        if view.time_left is not None:
            deadline = min(deadline, now + view.time_left())
        if deadline == math.inf:
            return PASS
        target = attempt.target.name
        median = view.latency.quantile(view.key, target, 0.5, now)
        if median is None:
            median = view.latency.long_quantile(view.key, target, 0.5, now)
        if median is not None and now + median > deadline:
            return Refused(Reason.TOO_LATE, f"median {median:.3f} s, {deadline - now:.3f} s left")
        return PASS
