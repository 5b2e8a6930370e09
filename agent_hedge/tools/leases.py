"""Leases of the claims that this process runs: renewed at a third of their length, so that two renewals may be lost."""

from __future__ import annotations

import asyncio

from agent_hedge.core.stores import ClaimStore
from agent_hedge.errors import StoreUnavailable


class Leases:
    """Keeps claims alive while their tools run, on one loop. `seconds`: how long a silent owner counts as alive."""

    def __init__(self, claims: ClaimStore, seconds: float) -> None:
        self._claims = claims
        self._seconds = seconds
        self._held: dict[str, str] = {}
        self._renewer: asyncio.Task[None] | None = None

    def hold(self, key: str, attempt_id: str) -> None:
        """Renew the lease of this claim from now on."""
        self._held[key] = attempt_id
        if self._renewer is None or self._renewer.done():
            self._renewer = asyncio.get_running_loop().create_task(self._renew())

    def drop(self, key: str) -> None:
        """Renew it no longer."""
        self._held.pop(key, None)

    async def _renew(self) -> None:
        while self._held:
            await asyncio.sleep(self._seconds / 3)
            for key, attempt_id in list(self._held.items()):
                try:
                    await self._claims.renew(key, attempt_id, lease=self._seconds)
                except StoreUnavailable:
                    break  # the lease may run out; the owner still settles, late
