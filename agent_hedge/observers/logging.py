"""Events as log records of the standard library: logger ``agent_hedge.events``, no content, quiet by default.

Everything is DEBUG but what costs or hurts: a hedge and a recovery are INFO, an abandoned attempt is a WARNING of the
reaper's own. Each record carries its facts as attributes too (``extra``), for structured handlers.
"""

from __future__ import annotations

import logging
from typing import Any

from agent_hedge.core.events import (
    AttemptEnded,
    AttemptRefused,
    AttemptStarted,
    Committed,
    Event,
    StepEnded,
    TriggerLate,
)
from agent_hedge.core.step import Role
from agent_hedge.observers.outcome import outcome_of

logger = logging.getLogger("agent_hedge.events")


class Logging:
    """The observer that logs. Idle while the logger would drop everything."""

    @property
    def idle(self) -> bool:
        return not logger.isEnabledFor(logging.INFO) or not logger.hasHandlers()

    def on_event(self, event: Event) -> None:
        match event:
            case AttemptStarted(attempt=attempt) if attempt.role is not Role.PRIMARY:
                self._say(logging.INFO, event, "%s dispatched to %s", str(attempt.role), attempt.target.name)
            case AttemptRefused(role=role, reason=reason, detail=detail):
                self._say(logging.DEBUG, event, "%s refused: %s %s", str(role), str(reason), detail)
            case Committed(attempt=attempt):
                self._say(logging.DEBUG, event, "%s won", str(attempt))
            case AttemptEnded(attempt=attempt, verdict=verdict, error=error):
                self._say(logging.DEBUG, event, "%s ended: %s %s", str(attempt), str(verdict), error)
            case TriggerLate(late=late):
                self._say(logging.DEBUG, event, "the run loop was late by %.3f s", late)
            case StepEnded(launched=launched, elapsed=elapsed):
                self._say(logging.DEBUG, event, "%s after %.3f s, attempts: %d", outcome_of(event), elapsed, launched)

    @staticmethod
    def _say(level: int, event: Event, message: str, *facts: Any) -> None:
        if logger.isEnabledFor(level):
            extra = {"step_id": event.step_id, "node": event.key.node, "event": type(event).__name__}
            logger.log(level, f"%s: {message}", str(event.key), *facts, extra=extra)
