"""Where does the next attempt go? To a place that does not share the fate of those already asked, and is well.

primary    the run's sticky target, else the first candidate in order that is well; never refused for health
hedge      a place not in flight, as far as possible from those that are: another provider before another region,
           another region before another cluster, another cluster before another replica or copy
recovery   another healthy place at once; when none is left, the one that asked for the shortest wait, not before
           that; at last even one that is out of health: its purse bounds that, and the step may still succeed
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Choice, HealthView, RaceView, Refused
from agent_hedge.core.step import Place, Role

_PRIMARY, _HEDGE = Role.PRIMARY, Role.HEDGE
_BADNESS = {Reason.PUSHBACK: 1, Reason.UNHEALTHY: 2}
"""Where a primary goes when no candidate is well: rather to a busy target than to a failing or a drained one."""


class Independent:
    """Chooses independent, healthy places.

    `health` says who must be left alone; `sticky` names the target a run should start at (None or an unknown name:
    no preference).
    """

    def __init__(self, health: HealthView, *, sticky: Callable[[RaceView], str | None] | None = None) -> None:
        self._health = health
        self._sticky = sticky

    def choose(self, role: Role, view: RaceView) -> Choice | Refused:
        """Return the place for the next attempt of `role`, or why there is none."""
        if role is _PRIMARY:
            return self._primary(view)
        return self._hedge(view) if role is _HEDGE else self._recovery(view)

    def _primary(self, view: RaceView) -> Choice | Refused:
        candidates = view.candidates
        if not candidates:
            return Refused(Reason.NO_TARGET, "no candidate")
        if self._sticky is not None and (name := self._sticky(view)):
            candidates = sorted(candidates, key=lambda place: place.name != name)
        for place in candidates:
            if self._health.refusal(place.name, view.now) is None:
                return Choice(place)
        return Choice(min(candidates, key=lambda place: self._badness(place, view)))

    def _hedge(self, view: RaceView) -> Choice | Refused:
        running, tried = _domains(view)
        free = [place for place in view.candidates if _independent(place, running) and place.name not in view.excluded]
        free.sort(key=lambda place: (place.domain in tried, _shared(place, running)))
        refused = None
        for place in free:
            no = self._health.refusal(place.name, view.now)
            if no is None:
                return Choice(place)
            refused = refused or no
        return refused or Refused(Reason.NO_TARGET, "no independent target")

    def _recovery(self, view: RaceView) -> Choice | Refused:
        running, tried = _domains(view)
        best: tuple[tuple[int, float, bool, int], Place, float] | None = None
        refused = None
        for place in view.candidates:
            if place.name in view.excluded or (running and not _independent(place, running)):
                continue
            no = self._health.refusal(place.name, view.now)
            wait_until = self._health.not_before(place.name, view.now)
            if no is None:  # ranks: well, asks to wait, out of health, asks to wait beyond the deadline
                rank, wait_until = 0, 0.0
            elif no.reason is Reason.PUSHBACK:
                rank = 1 if wait_until < view.deadline else 3
            elif no.reason is Reason.UNHEALTHY:
                rank = 2
            else:
                refused = refused or no
                continue
            key = (rank, wait_until, place.domain in tried, _shared(place, tried))
            if best is None or key < best[0]:
                best = key, place, wait_until
        if best is None:
            return refused or Refused(Reason.NO_TARGET, "no target left")
        return Choice(best[1], best[2])

    def _badness(self, place: Place, view: RaceView) -> int:
        no = self._health.refusal(place.name, view.now)
        return 0 if no is None else _BADNESS.get(no.reason, len(_BADNESS) + 1)


def _domains(view: RaceView) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the domains of the attempts in flight, and of all attempts."""
    attempts = view.attempts
    running = [attempt.target.domain for attempt in attempts if view.is_running(attempt.number)]
    return running, [attempt.target.domain for attempt in attempts]


def common(one: tuple[str, ...], other: tuple[str, ...]) -> int:
    """Return how many levels, from the widest on, two paths of failure domains share."""
    for level, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return level
    return min(len(one), len(other))


def _independent(place: Place, others: Iterable[tuple[str, ...]]) -> bool:
    """Whether the paths differ before either ends: a path that is the beginning of another contains it."""
    domain = place.domain
    return all(common(domain, other) < min(len(domain), len(other)) for other in others)


def _shared(place: Place, others: Iterable[tuple[str, ...]]) -> int:
    """Return the number of levels shared with the nearest of the others: the fewer, the more independent."""
    return max((common(place.domain, other) for other in others), default=0)
