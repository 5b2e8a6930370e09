"""No new work while the framework around the step winds down (R4)."""

from __future__ import annotations

from collections.abc import Callable

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, RaceView, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import StepContext
from agent_hedge.core.step import Attempt, Role

_HEDGE = Role.HEDGE
_DRAINING = Refused(Reason.DRAINING)


class DrainGate:
    """Refuses hedges while the graph around the step drains. Asked when the hedge is due, not when the step begins."""

    extras_only = True

    def __init__(self, context_of: Callable[[], StepContext | None]) -> None:
        self._context_of = context_of

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        if attempt.role is not _HEDGE:
            return PASS
        context = self._context_of()
        return _DRAINING if context is not None and context.draining() else PASS
