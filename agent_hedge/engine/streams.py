"""Hedged streams: the first meaningful item elects the winner, whose items then flow to the caller.

Never a `yield` inside a task group or cancel scope. Each attempt's generator is opened, iterated and closed by one
task of its own (closing it from another task fails while it is being iterated); its items cross a bounded hand-off.
The iteration looks at a stop flag after every item: on Python 3.11 a cancel of a chat model's stream is swallowed
in 1 to 30 % of the cases (`asyncio.wait_for` inside the client), so a cancel alone is never trusted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from types import AsyncGeneratorType
from typing import Any, Generic, TypeVar

import anyio

from agent_hedge.core.ports import Spawner
from agent_hedge.core.race import Race
from agent_hedge.core.scope import ActiveAttempt
from agent_hedge.core.step import Effect, Failure, Outcome, StepKey
from agent_hedge.engine.driver import Call
from agent_hedge.engine.lane import Lane

T = TypeVar("T")

WINDOW = 64
"""Items a winner may be ahead of its caller before it waits (back pressure reaches the engine's socket)."""

Source = Callable[[ActiveAttempt], AsyncIterator[T]]

EMPTY: Outcome[Any] = Outcome(None, None, False, Failure.RECOVERABLE, True)
"""A stream that ended cleanly with nothing meaningful: an answer only if nothing else can answer (R2)."""


class Pipe(Generic[T]):
    """A bounded hand-off from one attempt to the caller; both live on one loop."""

    __slots__ = ("_closed", "_full", "_new", "_spawner", "items")

    def __init__(self, spawner: Spawner) -> None:
        self._spawner = spawner
        self.items: deque[T] = deque()
        """What has been handed over and not been taken."""
        self._new: Awaitable[None] | None = None
        self._full: Awaitable[None] | None = None
        self._closed = False

    def put(self, item: T) -> bool:
        """Hand an item over; return whether the caller is so far behind that the attempt should wait for `room`."""
        items = self.items
        items.append(item)
        if self._new is not None:
            self._spawner.wake(self._new)
        return len(items) >= WINDOW

    async def room(self) -> None:
        """Wait until the caller has caught up."""
        while len(self.items) >= WINDOW and not self._closed:
            self._full = self._spawner.waiter()
            await self._full

    def close(self) -> None:
        """No more items come; or none are wanted."""
        self._closed = True
        for waiter in (self._new, self._full):
            if waiter is not None:
                self._spawner.wake(waiter)

    async def ready(self) -> bool:
        """Wait for an item; False when the attempt has ended and all is taken."""
        while not self.items:
            if self._closed:
                return False
            self._new = self._spawner.waiter()
            await self._new
            self._new = None
        return True

    def take(self) -> T:
        item = self.items.popleft()
        if self._full is not None and len(self.items) < WINDOW // 2:
            self._spawner.wake(self._full)
            self._full = None
        return item


async def iterate(
    active: ActiveAttempt,
    source: Source[T],
    first: Callable[[T], bool],
    put: Callable[[T], object],
    room: Callable[[], Any] | None = None,
) -> bool:
    """Open, iterate and close one attempt's stream in the task that calls this.

    Says `first_token` at the first meaningful item; stops at the attempt's flag after any item; waits for `room` where
    `put` says that it should. Returns whether anything meaningful came.
    """
    stream = source(active)
    ended = False
    try:
        async for item in stream:
            if active.cancelled:
                break
            full = put(item)
            if not active.spoken and first(item):
                active.first_token()
            if full and active.spoken and room is not None:
                await room()
        else:
            ended = True
    finally:
        close = None if ended and type(stream) is AsyncGeneratorType else getattr(stream, "aclose", None)
        if close is not None:  # (a generator that has ended is closed)
            with anyio.CancelScope(shield=True):
                await close()
    return active.spoken


def stream_call(
    source: Source[T], first: Callable[[T], bool], pipes: dict[int, Pipe[T]], spawner: Spawner
) -> Call[Any]:
    """Return what one attempt of a hedged stream does."""

    async def call(active: ActiveAttempt) -> Any:
        pipe = pipes[active.number] = Pipe(spawner)
        try:
            spoken = await iterate(active, source, first, pipe.put, pipe.room)
        finally:
            pipe.close()
        return None if spoken else EMPTY

    return call


async def hedged_stream(
    lane: Lane,
    source: Source[T],
    first: Callable[[T], bool],
    key: StepKey | None = None,
    *,
    effect: Effect | None = None,
    prompt_tokens: int = 0,
    told: Callable[[T, Race], object] | None = None,
) -> AsyncGenerator[T, None]:
    """Race `source` and yield the winner's items, its prelude included, as they come.

    `effect` is this step's, where it differs from the lane's; `prompt_tokens` its estimated size; `told` is
    shown the first item before the caller is, with the race it came from.

    An error of the winner after its first meaningful item is raised where it stands: nothing is spliced in (R3).
    Closing this generator cancels and joins every attempt.
    """
    spawner = lane.loops.current().spawner
    pipes: dict[int, Pipe[T]] = {}
    call = stream_call(source, first, pipes, spawner)
    driver = lane.driver(call, key=key, effect=effect, prompt_tokens=prompt_tokens)
    try:
        await driver.until_committed()
        if driver.committed is not None:
            pipe = pipes[driver.committed]
            driver.on_answer = pipe.close
            items = pipe.items
            while items or await pipe.ready():  # what is there is taken without a coroutine
                item = pipe.take()
                if told is not None:
                    told(item, driver.race)
                    told = None
                yield item
        if driver.answer is None:
            await driver.until_answered()
        else:
            driver.unwrap()
    finally:
        if driver.answer is None:
            await driver.leave()
