"""Where a run's next step starts: routing beats tuning.

While slowness comes in spells that cover a place, the place that has just answered fast is the one to stay at: after
a hedge win the run goes on at the winner, which alone took the p99 of 20 steps from 105 to 83 s under spells of 60 s.
A step that was slow and not hedged moves the run too (that costs nothing extra: 134 to 108 s), to the place that shares
the fewest failure domains with the slow one. After a hedge win the run stays for as long as a spell lasts, whatever it
meets: the place it has left is slow still, and only another hedge win moves it. (After a move by a slow step nothing is
known of the new place, so the next slow step moves it again: to stay there cost 5 s of p99.)

The prompt cache stays warm with the run, and a move gives it up: the prompt has to be read again. So a step moves the
run only where it was slow for its place, and slower by more than that takes.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent_hedge.core.ports import Permit, RaceView, Refused, RunView
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Attempt, Ended, Place, Role, StepKey
from agent_hedge.targets.choose import common

SLOW_Q = 0.90
"""A step slower than this quantile of its place..."""
SLOW_FACTOR = 1.5
"""...and than this many medians makes the run move."""
SPELL_S = 60.0
"""Seconds that a spell of slowness lasts: that of the model this was measured on. Observed ones last minutes to hours,
and leaving too late costs less than going back too early."""
READS_TOKENS_S = 10_000.0
"""Prompt tokens a second that a place reads which has not seen them before (an assumption; engines differ by ten)."""
_PRIMARY = Role.PRIMARY


class Stay:
    """Keeps a run at the place that answers. The chooser's `sticky`, and a gate that refuses nothing.

    `spell_s`: seconds that it stays at the winner of a hedge at least.
    """

    extras_only = True

    def __init__(self, spell_s: float = SPELL_S) -> None:
        self._spell_s = spell_s

    def __call__(self, view: RaceView) -> str | None:
        """Return the name of the target at which the step in `view` should start."""
        run = view.run
        if run is None:
            return None
        last, run.last_step = run.last_step, None
        if last is not None:
            key, target, latency, launched = last
            if launched == 1 and view.now >= run.stays_until and _is_slow(key, target, latency, view):
                run.sticky_target = _farthest_from(target, view.candidates) or run.sticky_target
        return run.sticky_target or None

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        if view.run is None or attempt.role is _PRIMARY:
            return PASS
        return _Ride(attempt, view.run, self._spell_s)


class _Ride:
    """The permit of an extra attempt: where it wins, the run stays."""

    __slots__ = ("_attempt", "_run", "_spell_s")

    def __init__(self, attempt: Attempt, run: RunView, spell_s: float) -> None:
        self._attempt = attempt
        self._run = run
        self._spell_s = spell_s

    def committed(self, *, at: float) -> None:
        self._run.sticky_target = self._attempt.target.name
        self._run.stays_until = at + self._spell_s

    def settle(self, end: Ended, *, at: float) -> None: ...


def _farthest_from(target: str, candidates: Sequence[Place]) -> str:
    """Return the name of the place that shares the fewest failure domains with `target`; none: there is no other."""
    here = next((place.domain for place in candidates if place.name == target), ())
    others = [place for place in candidates if place.name != target]
    return min(others, key=lambda place: common(place.domain, here)).name if others else ""


def _is_slow(key: StepKey, target: str, latency: float, view: RaceView) -> bool:
    """Whether a step was slow for its place, as far as that is known now, and by more than a move takes."""
    median = view.latency.quantile(key, target, 0.5, view.now)
    if median is None or latency <= SLOW_FACTOR * median or latency <= median + view.prompt_tokens / READS_TOKENS_S:
        return False
    slow = view.latency.quantile(key, target, SLOW_Q, view.now)
    return slow is not None and latency > slow
