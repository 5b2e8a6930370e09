"""A store that is gone stops hedging and never a call (R14): what nobody can count or switch off is not duplicated."""

from __future__ import annotations

from collections.abc import Callable

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, RaceView, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Attempt, Role

LOST_S = 10.0
"""Silence after which a store counts as lost; what a process was granted is worth nothing after it (DESIGN 5.10)."""
_HEDGE = Role.HEDGE


class StoreGate:
    """Refuses hedges while the store is silent. `silence` returns for how many seconds it has been."""

    extras_only = True

    def __init__(self, silence: Callable[[], float]) -> None:
        self._silence = silence

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        if attempt.role is _HEDGE and (seconds := self._silence()) > LOST_S:
            return Refused(Reason.STORE_LOST, f"silent for {seconds:.0f} s")
        return PASS
