"""Events as log records of the standard library: logger ``agent_hedge.events``, no content, quiet by default.

Everything is DEBUG but what costs or hurts: a hedge, a recovery, a refused side effect and one in doubt are INFO.
Warnings come from the parts themselves (an abandoned attempt, a store that does not answer), each on its own logger of
the tree ``agent_hedge``. Each record carries its facts as attributes too (``extra``), for structured handlers.
"""

from __future__ import annotations

import logging
from typing import Any

from agent_hedge.core.events import (
    AttemptEnded,
    AttemptRefused,
    AttemptStarted,
    Claimed,
    Committed,
    Event,
    Fenced,
    StepEnded,
    TriggerLate,
)
from agent_hedge.core.step import Attempt, Role
from agent_hedge.observers.outcome import outcome_of

logger = logging.getLogger("agent_hedge.events")
DEBUG, INFO = logging.DEBUG, logging.INFO


class Logging:
    """The observer that logs. Idle while the logger would drop everything."""

    @property
    def idle(self) -> bool:
        return not logger.isEnabledFor(INFO) or not logger.hasHandlers()

    def on_event(self, event: Event) -> None:
        match event:
            case AttemptStarted(attempt=attempt):
                level = DEBUG if attempt.role is Role.PRIMARY else INFO
                self._say(level, event, "{role} dispatched to {target}", **_of(attempt))
            case AttemptRefused(role=role, reason=reason, detail=detail):
                self._say(DEBUG, event, "{role} refused: {reason} {detail}", role=role, reason=reason, detail=detail)
            case Committed(attempt=attempt, by_claim=by_claim):
                self._say(DEBUG, event, "{target}#{attempt} won", by_claim=by_claim, **_of(attempt))
            case AttemptEnded(attempt=attempt, verdict=verdict, error=error):
                message = "{target}#{attempt} ended: {outcome} {error}"
                self._say(DEBUG, event, message, outcome=verdict, error=error, **_of(attempt))
            case TriggerLate(late=late):
                self._say(DEBUG, event, "the run loop was late by {late_s:.3f} s", late_s=late)
            case Fenced(attempt=attempt, passed=passed, tool=tool):
                message = "{tool} of {target}#{attempt} passed the fence: {passed}"
                self._say(DEBUG if passed else INFO, event, message, tool=tool, passed=passed, **_of(attempt))
            case Claimed(tool=tool, answer=answer):
                level = INFO if answer in ("in_doubt", "barred") else DEBUG
                self._say(level, event, "claim of {tool}: {answer}", tool=tool, answer=answer)
            case StepEnded(launched=launched, elapsed=elapsed, error=error):
                message = "{outcome} after {elapsed_s:.3f} s, attempts: {attempts}"
                outcome = outcome_of(event)
                self._say(DEBUG, event, message, outcome=outcome, error=error, elapsed_s=elapsed, attempts=launched)

    @staticmethod
    def _say(level: int, event: Event, message: str, **facts: Any) -> None:
        if not logger.isEnabledFor(level):
            return
        plain = {name: str(fact) if isinstance(fact, str) else fact for name, fact in facts.items()}  # enums as words
        said = {"event": type(event).__name__, "step_id": event.step_id, "node": event.key.node, **plain}
        where = f"{event.key}: " if event.key.node else ""
        logger.log(level, "%s%s", where, message.format_map(said).rstrip(), extra=said)


def _of(attempt: Attempt) -> dict[str, Any]:
    return {"attempt": attempt.number, "attempt_id": attempt.id, "role": attempt.role, "target": attempt.target.name}
