"""Targets that fail are left alone for a while; targets that ask for a rest get it.

    well ──5 failures in a row, or 3 fatal ones──► out ──30 s x outs (at most 300 s)──► half-open
      ▲                                             ▲                                       │ one trial
      └──────────────── the trial speaks ───────────┼───────────── the trial fails ◄────────┘

A *pushback* (429, 503, 529, any `Retry-After`) is a wish, not a failure: nothing extra goes to that target for that
long. Losers say nothing of a target's health. A primary is never refused: where no target is well it still goes, and
its success brings the target back at once. A recovery may go to a target that is out (only the choice of a target can
know whether another is left; its purse bounds it), but not to one under pushback or drained. A failure that is fatal
for the request (400, 422) says nothing of the target either.

Numbers: Envoy's outlier detection (consecutive_5xx 5, base_ejection_time 30 s, max_ejection_time 300 s). Fatal answers
(401, 403, 404, context too long) are rarely an accident, hence 3; a single one may be the request's own fault.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, RaceView, Refused
from agent_hedge.core.step import Attempt, Ended, Failure, Role, Verdict, instant

FAILURES = 5
FATAL_FAILURES = 3
OUT_S = 30.0
MAX_OUT_S = 300.0
PUSHBACK_S = 1.0
"""The least rest after a pushback, and its length where the server names none (or none that can be read)."""
MAX_PUSHBACK_S = 3600.0
"""The longest rest that is believed: the window of the budget."""

# An attribute of an enum costs 75 ns on Python 3.11; the end of every call passes here.
_PRIMARY, _HEDGE, _WON = Role.PRIMARY, Role.HEDGE, Verdict.WON


class _State:
    """What is known of a target that has failed or pushed back at least once. `out_until` is 0.0 while it is well."""

    __slots__ = ("failures", "fatal", "out_at", "out_until", "outs", "pushback_until", "trial")

    def __init__(self) -> None:
        self.failures = self.fatal = self.outs = 0
        self.out_at = self.out_until = self.pushback_until = 0.0
        self.trial: _Trial | None = None

    def recover(self) -> None:
        self.failures = self.fatal = self.outs = 0
        self.out_at = self.out_until = 0.0
        self.trial = None


class Health:
    """The health of targets, by name: a gate that hears how attempts end, and the `HealthView` that choosers read."""

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}
        self._well = _Well(self)
        self._drained: frozenset[str] = frozenset()
        self._lock = threading.Lock()

    # --- what choosers and people read --------------------------------------------------------------------------

    def refusal(self, target: str, now: float) -> Refused | None:
        """Return why nothing extra may go there now, or None."""
        if self._drained and target in self._drained:
            return Refused(Reason.DRAINING, "target drained")
        state = self._states.get(target)
        return None if state is None else _refusal(state, now)

    def not_before(self, target: str, now: float) -> float:
        """Return the instant at which the target's pushback ends; 0.0 when there is none."""
        state = self._states.get(target)
        return state.pushback_until if state is not None and now < state.pushback_until else 0.0

    @property
    def drained(self) -> frozenset[str]:
        """Targets that an operator has taken out."""
        return self._drained

    def drain(self, targets: Iterable[str]) -> None:
        """Take exactly these targets out, and bring back those that were out before."""
        self._drained = frozenset(targets)

    def status(self, now: float) -> dict[str, str]:
        """Return the targets that are not well, each with its reason."""
        names = self._drained.union(tuple(self._states))
        refusals = {name: self.refusal(name, now) for name in sorted(names)}
        return {name: f"{no.reason.value}: {no.detail}" for name, no in refusals.items() if no is not None}

    # --- the gate -----------------------------------------------------------------------------------------------

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        """Refuse extra attempts to targets that want rest; the permit hears of every end, and one is a trial."""
        target = attempt.target.name
        state = self._states.get(target)
        if state is None and not self._drained:
            return self._well
        role = attempt.role
        now = view.now
        with self._lock:
            if role is not _PRIMARY:
                refused = self.refusal(target, now)
                if refused is not None and (role is _HEDGE or refused.reason is not Reason.UNHEALTHY):
                    return refused
            if state is not None and state.trial is None and 0.0 < state.out_until <= now:
                state.trial = _Trial(self, state)
                return state.trial
        return self

    def committed(self, *, at: float) -> None:
        """Nothing yet: a stream may still break."""

    def settle(self, end: Ended, *, at: float) -> None:
        """Hear how an attempt of any target ended."""
        if end.verdict is _WON and end.attempt.target.name not in self._states:
            return
        with self._lock:
            self._learn(end, at)

    # --- learning -----------------------------------------------------------------------------------------------

    def _learn(self, end: Ended, at: float) -> None:
        target = end.attempt.target.name
        state = self._states.get(target)
        if end.verdict is _WON:
            if state is not None and end.attempt.started_at >= state.out_at:
                state.recover()
        elif end.retry_after is not None:
            state = state or self._states.setdefault(target, _State())
            state.pushback_until = max(state.pushback_until, instant(at + _rest(end.retry_after)))
        elif end.verdict is Verdict.FAILED and end.failure in (Failure.RECOVERABLE, Failure.TARGET):
            state = state or self._states.setdefault(target, _State())
            state.failures += 1
            state.fatal += end.failure is Failure.TARGET
            enough = state.failures >= FAILURES or state.fatal >= FATAL_FAILURES
            again = 0.0 < state.out_until <= at and end.attempt.started_at >= state.out_at
            if again or (enough and not state.out_until):
                state.outs += 1
                state.out_at = at
                state.out_until = at + min(OUT_S * state.outs, MAX_OUT_S)
                state.trial = None


class _Well:
    """The permit of attempts to a target of which nothing bad is known: a win would teach nothing."""

    losses_only = True

    def __init__(self, health: Health) -> None:
        self._health = health

    def committed(self, *, at: float) -> None: ...

    def settle(self, end: Ended, *, at: float) -> None:
        self._health.settle(end, at=at)


class _Trial:
    """The one attempt that may find out whether a target is back."""

    __slots__ = ("_health", "_state")

    def __init__(self, health: Health, state: _State) -> None:
        self._health = health
        self._state = state

    def committed(self, *, at: float) -> None:
        """It has spoken: the target is back, though a broken stream will count again."""
        with self._health._lock:
            if self._state.trial is self:
                self._state.recover()

    def settle(self, end: Ended, *, at: float) -> None:
        """Make room for the next trial if this one said neither yes nor no."""
        with self._health._lock:
            if end.launched:
                self._health._learn(end, at)
            if self._state.trial is self:
                self._state.trial = None


def _refusal(state: _State, now: float) -> Refused | None:
    if now < state.out_until:
        return Refused(Reason.UNHEALTHY, f"out for {state.out_until - now:.1f} s")
    if state.trial is not None:
        return Refused(Reason.UNHEALTHY, "on trial")
    if now < state.pushback_until:
        return Refused(Reason.PUSHBACK, f"for {state.pushback_until - now:.1f} s")
    return None


def _rest(wish: float) -> float:
    """Return for how many seconds a target is left alone that asked for `wish`."""
    return min(max(wish, PUSHBACK_S), MAX_PUSHBACK_S) if math.isfinite(wish) else PUSHBACK_S
