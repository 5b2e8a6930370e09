"""What the tests of runs share: a clock in hand, stores in memory that two "processes" share, a step that hedges."""

from __future__ import annotations

import asyncio
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from agent_hedge import Effect, Fixed, Hedger, current_attempt, current_run
from agent_hedge.core.events import AttemptRefused, AttemptStarted, Event
from agent_hedge.core.ports import RaceView
from agent_hedge.core.scope import Run
from agent_hedge.core.stores import RunRow
from agent_hedge.engine.runbook import AtOnce, Record, Runbook
from agent_hedge.stores.memory import MemoryRuns
from tests.engine.kit import hedger

CENT_PER_1000 = 0.01 / 1_000
"""Money for a prompt token."""


class World:
    """A store of runs, an epoch, and processes that share both; each process has its own monotonic clock."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.store = MemoryRuns(epoch=lambda: self.now)

    def process(self) -> Process:
        return Process(self)

    def row(self, key: str = "k") -> RunRow | None:
        found: list[RunRow | None] = []

        async def load() -> None:
            found.append(await self.store.load(key))

        AtOnce().start(load)
        return found[0]


class Process:
    def __init__(self, world: World) -> None:
        self.world = world
        self.offset = 7.0 * id(self) % 1000
        self.book = Runbook(world.store, AtOnce(), epoch=lambda: world.now, dearest=lambda: CENT_PER_1000)

    def clock(self) -> float:
        return self.world.now - self.offset

    def open(
        self,
        key: str = "k",
        *,
        deadline: float = 30.0,
        extra: int = 3,
        resume: bool | None = None,
        caps: Mapping[str, Any] = MappingProxyType({}),
    ) -> tuple[Run, Record]:
        run = Run(key, clock=self.clock, deadline=self.clock() + deadline, extra_attempts=extra, **caps)
        return run, self.book.open(run, resume=resume)

    def flush(self) -> None:
        AtOnce().start(self.book.flush)


class Yielding:
    """An observer, and what a primary waits for: that its step may not hedge. Where it may, the hedge wins.

    So what is hedged is decided by what a step may do, and not by how fast the machine is.
    """

    def __init__(self) -> None:
        self._steps: dict[str, str] = {}
        self._refused: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def on_event(self, event: Event) -> None:
        if isinstance(event, AttemptStarted):
            self._steps[event.attempt.id] = event.step_id
        elif isinstance(event, AttemptRefused):
            self._refused[event.step_id].set()

    async def __call__(self) -> None:
        active = current_attempt()
        assert active is not None
        await self._refused[self._steps[active.attempt.id]].wait()


class OnceGranted(Fixed):
    """Arms no trigger before the store has answered what the step has asked it for: in real time it answers soon, or
    late."""

    def next_launch_at(self, view: RaceView) -> float | None:
        run = current_run()
        assert run is not None
        assert isinstance(run.record, Record)
        while run.record._holding.asking:
            time.sleep(0.001)
        return super().next_launch_at(view)


def slow_once(
    opened: Hedger, seconds: float | Callable[[], Awaitable[None]] = 60.0, *, hedge: float = 0.5
) -> Callable[[], Coroutine[Any, Any, str]]:
    """Return a step whose primary takes so many seconds (or waits for something), and its hedges `hedge`."""

    async def call() -> str:
        active = current_attempt()
        assert active is not None
        if active.number == 0 and callable(seconds):
            await seconds()
        else:
            await asyncio.sleep(seconds if active.number == 0 else hedge)  # type: ignore[arg-type]
        return f"from {active.number}"

    wrapped: Callable[[], Coroutine[Any, Any, str]] = opened.wrap(
        call, key="step", effect=Effect.READ_ONLY, targets=["a", "b"]
    )
    return wrapped


async def until_heard(opened: Hedger) -> None:
    """Wait until the store has been heard: before that hedging is refused."""
    while opened._shared.rounds.silence() == math.inf:  # noqa: ASYNC110  # another thread's loop hears it
        await asyncio.sleep(0.005)


__all__ = ["OnceGranted", "Process", "World", "Yielding", "hedger", "slow_once", "until_heard"]
