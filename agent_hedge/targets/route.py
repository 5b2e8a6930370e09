"""Where a run's next step starts: routing beats tuning.

While slowness comes in spells that cover a place, the place that has just answered fast is the one to stay at: after
a hedge win the run goes on at the winner, which alone took the p99 of 20 steps from 105 to 83 s under spells of 60 s.
A step that was slow and not hedged moves the run too (that costs nothing extra: 134 to 108 s), to another failure
domain. The run stays where it is until one of the two happens again, and its prompt cache stays warm with it: moving
after every step slower than some quantile would give the cache up for nothing, so a step must be slow for its place.
"""

from __future__ import annotations

from agent_hedge.core.ports import Permit, RaceView, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Attempt, Ended, Role

SLOW_Q = 0.90
"""A step slower than this quantile of its place..."""
SLOW_FACTOR = 1.5
"""...and than this many medians makes the run move."""


class Stay:
    """Keeps a run at the place that answers. A gate that refuses nothing, and the chooser's `sticky`."""

    def __call__(self, view: RaceView) -> str | None:
        """Return the name of the target at which the step in `view` should start."""
        run = view.run
        return run.sticky_target or None if run is not None else None

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        if view.run is None or len(view.candidates) < 2:
            return PASS
        return _Ride(attempt, view)


class _Ride:
    """Hears who won, and whether it was slow."""

    __slots__ = ("_attempt", "_view")

    def __init__(self, attempt: Attempt, view: RaceView) -> None:
        self._attempt = attempt
        self._view = view

    def committed(self, *, at: float) -> None:
        view, attempt = self._view, self._attempt
        run = view.run
        if run is None:
            return
        name = attempt.target.name
        if attempt.role is not Role.PRIMARY:
            run.sticky_target = name
        elif view.launched == 1 and self._is_slow(name, at - attempt.started_at):
            others = [place for place in view.candidates if place.name != name and place.name not in view.excluded]
            if others:
                run.sticky_target = others[0].name

    def _is_slow(self, target: str, seconds: float) -> bool:
        latency, key, now = self._view.latency, self._view.key, self._view.now
        slow = latency.quantile(key, target, SLOW_Q, now)
        if slow is None or seconds <= slow:
            return False
        median = latency.quantile(key, target, 0.5, now)
        return median is not None and seconds > SLOW_FACTOR * median

    def settle(self, end: Ended, *, at: float) -> None: ...
