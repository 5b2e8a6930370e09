"""The bar: a unit in which a side effect may happen is not duplicated (R9)."""

from __future__ import annotations

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, RaceView, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Attempt, Role

_PRIMARY, _HEDGE = Role.PRIMARY, Role.HEDGE


class EffectGate:
    """Refuses extra attempts of what must not run twice.

    Where the step's own `effect` is not repeatable, a recovery is refused as a hedge is: the attempt that failed may
    have done its work before it failed. `barred` is about the unit around the step (its tools, interrupts, memory):
    it stops hedges, whose loser would run beside the winner, and leaves a failed read-only step its second try.
    """

    extras_only = True

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        role = attempt.role
        if role is _PRIMARY:
            return PASS
        if role is _HEDGE and view.barred is not None:
            return view.barred
        if not view.effect.repeatable:
            return Refused(Reason.BARRED, f"effect {view.effect.value}")
        return PASS
