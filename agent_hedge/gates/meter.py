"""Counts logical requests and physical attempts, apart, into the fleet's window. Refuses nothing."""

from __future__ import annotations

from agent_hedge.core.ports import Permit, RaceView, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Attempt, Ended, Role
from agent_hedge.gates.fleet import Field, Fleet

_PRIMARY, _HEDGE = Role.PRIMARY, Role.HEDGE
_ELIGIBLE, _INELIGIBLE, _HEDGES = int(Field.ELIGIBLE), int(Field.INELIGIBLE), int(Field.HEDGES)


class Meter:
    """The last gate: what reaches it is dispatched.

    A request is eligible when a hedge of it is possible at all: its effect may be repeated, nothing bars it, it has a
    second place to go, and its run is not a batch.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        role = attempt.role
        now = view.now
        if role is _PRIMARY:
            run = view.run
            eligible = (
                view.barred is None
                and view.effect.repeatable
                and len(view.candidates) > 1
                and (run is None or run.priority != "batch")
            )
            self._fleet.count(_ELIGIBLE if eligible else _INELIGIBLE, now)
            return PASS
        if role is not _HEDGE:
            return _Counted(self._fleet, Field.RECOVERIES, self._fleet.count(Field.RECOVERIES, now))
        counted = _Counted(self._fleet, Field.HEDGES, self._fleet.count(_HEDGES, now))
        if view.hedges:
            self._fleet.count(Field.SECOND_HEDGES, now)
            counted.second = True
        return counted


class _Counted:
    """An extra attempt in the counts: its win is added, and it is taken out again if it was never sent."""

    __slots__ = ("_field", "_fleet", "_minute", "second")

    def __init__(self, fleet: Fleet, field: Field, minute: int) -> None:
        self._fleet = fleet
        self._field = field
        self._minute = minute
        self.second = False

    def committed(self, *, at: float) -> None:
        if self._field is Field.HEDGES:
            self._fleet.count(Field.WINS, at)

    def settle(self, end: Ended, *, at: float) -> None:
        if end.launched:
            return
        self._fleet.take_back(self._field, self._minute)
        if self.second:
            self._fleet.take_back(Field.SECOND_HEDGES, self._minute)
