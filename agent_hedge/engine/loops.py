"""What belongs to one run loop: its spawner and its reaper. Found by the running loop, forgotten when it is closed."""

from __future__ import annotations

import asyncio

from agent_hedge.engine.reaper import GRACE_S, Reaper
from agent_hedge.engine.spawn import AsyncioSpawner, TrioSpawner, asyncio_spawner


class LoopState:
    """The spawner and the reaper of one loop."""

    __slots__ = ("reaper", "spawner")

    def __init__(self, spawner: AsyncioSpawner | TrioSpawner, grace: float) -> None:
        self.spawner = spawner
        self.reaper = Reaper(spawner, grace=grace)


class Loops:
    """The loops a hedger has been used on. Each loop sees only its own state, so no lock is needed."""

    def __init__(self, grace: float = GRACE_S) -> None:
        self._grace = grace
        self._by_loop: dict[asyncio.AbstractEventLoop, LoopState] = {}
        self._trio: dict[int, LoopState] = {}

    def current(self) -> LoopState:
        """Return the state of the running loop.

        Raises:
            HedgeError: no loop runs here, or it is trio's and the hedger was not opened with ``async with``.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return self._of_trio()
        return self._by_loop.get(loop) or self._meet(loop)

    def _meet(self, loop: asyncio.AbstractEventLoop) -> LoopState:
        for closed in [known for known in list(self._by_loop) if known.is_closed()]:
            self._by_loop.pop(closed, None)
        state = self._by_loop[loop] = LoopState(AsyncioSpawner(loop), self._grace)
        return state

    @property
    def abandoned(self) -> int:
        """Attempts given up on all loops that are still known."""
        states = [*self._by_loop.values(), *self._trio.values()]
        return sum(state.reaper.abandoned for state in states)

    def owe(self, run: object) -> bool:
        """Whether losers of this run are still to be joined on any loop. Callable in any thread."""
        return any(state.reaper.owes(run) for state in list(self._by_loop.values()))

    def open_trio(self, spawner: TrioSpawner) -> LoopState:
        """Serve the running trio run through this spawner's nursery."""
        state = self._trio[_trio_run()] = LoopState(spawner, self._grace)
        return state

    def close_trio(self) -> None:
        del self._trio[_trio_run()]

    def _of_trio(self) -> LoopState:
        if self._trio and (state := self._trio.get(_trio_run())):
            return state
        return LoopState(asyncio_spawner(), self._grace)  # raises, naming what is missing


def _trio_run() -> int:
    """Name the running trio run (0 outside any)."""
    import trio

    try:
        return id(trio.lowlevel.current_trio_token())
    except RuntimeError:
        return 0
