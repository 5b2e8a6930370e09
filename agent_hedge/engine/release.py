"""The engine's word that it has let go of a cancelled attempt: what nobody has seen is not told (R18).

Closing a connection says nothing of the scheduler behind it. A target with a `Canceller` is asked, when our side of the
attempt has closed; until it answers, at most `PATIENCE` of the reaper's grace, the attempt counts as not ended.
"""

from __future__ import annotations

import logging

import anyio

from agent_hedge.core.ports import Canceller
from agent_hedge.core.step import Attempt, Place

logger = logging.getLogger("agent_hedge.release")

PATIENCE = 0.4
"""Part of the reaper's grace: it cancels a second time at half of it."""
_complained: set[str] = set()


def canceller_of(place: Place) -> Canceller | None:
    """Return what ends attempts at this place's engine, if there is anything."""
    canceller: Canceller | None = getattr(place, "cancel", None)
    return canceller


async def confirmed(canceller: Canceller, attempt: Attempt, *, grace: float) -> bool:
    """Ask the engine to let go; return whether it said so in time. A canceller that raises is logged once a target."""
    try:
        with anyio.move_on_after(PATIENCE * grace, shield=True):
            return await canceller.cancel(attempt) is True
    except Exception:
        name = attempt.target.name
        if name not in _complained:
            _complained.add(name)
            logger.exception("the canceller of target %s raised; logged once", name)
    return False
