"""What is done again and again in the background: reading the registry, the switches, writing runs (R14, R21).

Each job has a task of its own on the background loop, so that one that waits for the store keeps no other waiting. A
store that does not answer is said once, tried again every second, and said again when it is back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Awaitable, Callable
from contextvars import Context
from functools import partial

from agent_hedge.core.ports import Portal
from agent_hedge.errors import HedgeError

logger = logging.getLogger("agent_hedge.background")

EVERY_S = 1.0
"""Between two rounds: what one process writes, another knows within 2 s (R21)."""


class Rounds:
    """The jobs of one hedger. `clock` gives seconds; jobs get its reading. Usable from any thread."""

    def __init__(self, portal: Portal, *, every: float = EVERY_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._portal = portal
        self._every = every
        self._clock = clock
        self._jobs: dict[str, Callable[[float], Awaitable[object]]] = {}
        self._heard: dict[str, float] = {}
        self._lost: set[str] = set()
        self._turn: object | None = None
        self._pid = 0

    def add(self, name: str, job: Callable[[float], Awaitable[object]]) -> None:
        """Have `job(now)` run in every round from the next start on."""
        self._jobs[name] = job

    def ensure(self) -> None:
        """Start the rounds where there are jobs and none run here; also in the child of a fork."""
        if not self._jobs or (self._turn is not None and self._pid == os.getpid()):
            return
        turn = self._turn = object()
        self._pid = os.getpid()
        self._heard = {}
        for name in self._jobs:  # in a context of its own, or the rounds would keep the first caller's run for ever
            Context().run(self._portal.start, partial(self._go_round, name, turn))

    def stop(self) -> None:
        """Let the rounds end; the next `ensure` starts them again."""
        self._turn = None

    def silence(self) -> float:
        """Return for how many seconds the store has not been heard (infinite: never yet; 0.0 without jobs)."""
        if not self._jobs:
            return 0.0
        self.ensure()
        if len(self._heard) < len(self._jobs):
            return math.inf
        return self._clock() - min(self._heard.values())

    async def _go_round(self, name: str, turn: object) -> None:
        while self._turn is turn:
            now = self._clock()
            try:
                await self._jobs[name](now)
            except HedgeError as error:
                if name not in self._lost:
                    self._lost.add(name)
                    logger.warning("%s: %s Tried again every %.0f s.", name, error, self._every)
            except Exception:
                logger.exception("%s failed", name)
            else:
                self._heard[name] = now
                if name in self._lost:
                    self._lost.discard(name)
                    logger.warning("%s: the store answers again", name)
            await asyncio.sleep(self._every)
