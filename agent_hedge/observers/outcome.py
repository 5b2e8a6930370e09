"""How a step ended, in one word; shared by everything that counts steps."""

from __future__ import annotations

from agent_hedge.core.events import StepEnded

ANSWERED, FAILED, DEADLINE, CANCELLED = "answered", "failed", "deadline", "cancelled"


def outcome_of(event: StepEnded) -> str:
    """Return ``answered``, ``failed``, ``deadline`` (nothing came in time) or ``cancelled`` (the caller left)."""
    if not event.error:
        return ANSWERED
    if event.error == "DeadlineExceeded":
        return DEADLINE
    return CANCELLED if event.error == "Cancelled" else FAILED
