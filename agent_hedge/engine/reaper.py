"""Losers that have been told to stop: joined within a grace, then given up loudly (R6).

The winner never waits here. A loser that swallows its cancellation (a lost cancel on Python 3.11, a slow TLS
teardown, a worker thread) is cancelled again at half the grace; after the grace it is reported `ABANDONED`, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import anyio

from agent_hedge.core.ports import Spawner, TaskHandle, TimerHandle

logger = logging.getLogger("agent_hedge.reaper")

GRACE_S = 1.0
"""How long a cancelled attempt may take to end; closing an HTTP stream takes 7 to 40 ms (measured)."""
LIMIT = 1000
"""Losers waited for at one time; beyond it the oldest are given up at once, so that memory stays bounded."""


class _Loser:
    __slots__ = ("give_up", "name", "owner", "task", "timer")

    def __init__(self, task: TaskHandle, name: str, give_up: Callable[[], None], owner: object) -> None:
        self.task = task
        self.owner = owner
        self.name = name
        self.give_up = give_up
        self.timer: TimerHandle | None = None


class Reaper:
    """The losers of one run loop."""

    def __init__(self, spawner: Spawner, *, grace: float = GRACE_S, limit: int = LIMIT) -> None:
        self._spawner = spawner
        self.grace = grace
        self.limit = limit
        self.abandoned = 0
        """Attempts given up since the start."""
        self._losers: dict[TaskHandle, _Loser] = {}

    def __len__(self) -> int:
        return len(self._losers)

    def owes(self, owner: object) -> bool:
        """Whether a loser of this owner is still to be joined. Callable in any thread."""
        return any(loser.owner is owner for loser in list(self._losers.values()))

    def take(self, task: TaskHandle, name: str, give_up: Callable[[], None], owner: object = None) -> None:
        """Watch a task that has been cancelled; call `give_up` unless it is done within the grace."""
        loser = self._losers[task] = _Loser(task, name, give_up, owner)
        half = self.grace / 2

        def again() -> None:
            task.cancel()
            loser.timer = self._spawner.call_at(self._spawner.now() + half, lambda: self._abandon(loser))

        loser.timer = self._spawner.call_at(self._spawner.now() + half, again)
        if len(self._losers) > self.limit:
            self._abandon(next(iter(self._losers.values())))

    def forget(self, task: TaskHandle) -> None:
        """The task has ended by itself: nothing to wait for."""
        loser = self._losers.pop(task, None)
        if loser is not None and loser.timer is not None:
            loser.timer.cancel()

    async def join(self, owner: object = None) -> None:
        """Wait for the losers of now (of one run, or all), at most the grace; what is left then is given up."""
        losers = [loser for loser in self._losers.values() if owner is None or loser.owner is owner]
        with anyio.move_on_after(self.grace, shield=True):
            await self._spawner.join([loser.task for loser in losers])
        for loser in losers:
            self._abandon(loser)

    def _abandon(self, loser: _Loser) -> None:
        if loser.task not in self._losers:
            return
        self.forget(loser.task)
        if loser.task.done():
            return
        self.abandoned += 1
        logger.warning("attempt %s ignores its cancellation; abandoned after %.1f s", loser.name, self.grace)
        loser.give_up()
