"""Members' rate limiters: a hedge never waits for one, every other attempt does, as a plain model would."""

from __future__ import annotations

from collections.abc import Sequence

from agent_hedge.adapters.langchain.members import Member
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, RaceView, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import ActiveAttempt
from agent_hedge.core.step import Attempt, Role


class RateLimitGate:
    """Refuses a hedge that would have to wait for its member's rate limiter; must be the last gate asked.

    A turn taken from a limiter cannot be given back, so nothing may refuse after it.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._limiters = {m.name: m.model.rate_limiter for m in members if m.model.rate_limiter is not None}

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        limiter = self._limiters.get(attempt.target.name) if attempt.role is Role.HEDGE else None
        return PASS if limiter is None or limiter.acquire(blocking=False) else Refused(Reason.RATE_LIMITED)


async def take_turn(member: Member, active: ActiveAttempt) -> None:
    """Wait for the member's rate limiter; a hedge has taken its turn at the gate."""
    limiter = member.model.rate_limiter
    if limiter is not None and active.role is not Role.HEDGE:
        await limiter.aacquire(blocking=True)
