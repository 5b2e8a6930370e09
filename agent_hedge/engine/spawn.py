"""The `Spawner` port on asyncio and on trio: tasks of their own, timers, and one-shot waiters.

No task group is used for races: a loser may outlive the step that started it for as long as the reaper grants, and
a task group costs four times a task (15.8 against 70 us a call, measured).
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Generator
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, cast

from agent_hedge.core.ports import Spawner, TaskHandle, TimerHandle
from agent_hedge.engine.timers import Timers
from agent_hedge.errors import HedgeError

if TYPE_CHECKING:
    import trio

Work = Coroutine[Any, Any, None]


def clock_of(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """Return the loop's clock, spared a call where it is the usual one."""
    return time.monotonic if type(loop).time is asyncio.BaseEventLoop.time else loop.time


class AsyncioSpawner:
    """One asyncio loop (uvloop and eager task factories included)."""

    cancelled: type[BaseException] = asyncio.CancelledError

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.now = clock_of(loop)
        self.call_soon = loop.call_soon
        self.call_soon_threadsafe = loop.call_soon_threadsafe
        self.call_at = Timers(loop).call_at
        self.spawn = loop.create_task
        self.waiter = loop.create_future  # a task waits faster for a plain future than for any class of our own

    def is_cancelled(self) -> bool:
        task = asyncio.current_task(self.loop)
        return task is not None and task.cancelling() > 0

    async def join(self, tasks: Collection[TaskHandle]) -> None:
        pending = [cast("asyncio.Task[None]", task) for task in tasks if not task.done()]
        if pending:
            await asyncio.wait(pending)

    def wake(self, waiter: Awaitable[None]) -> None:
        flag = cast("asyncio.Future[None]", waiter)
        if not flag.done():
            flag.set_result(None)


class TrioTask:
    """A coroutine in a nursery task with a cancel scope of its own."""

    __slots__ = ("_callbacks", "_finished", "_scope")

    def __init__(self) -> None:
        import trio

        self._scope = trio.CancelScope()
        self._finished = trio.Event()
        self._callbacks: list[Callable[[Any], object]] = []

    async def run(self, work: Work) -> None:
        try:
            with self._scope:
                await work
        finally:
            self._finished.set()
            for callback in self._callbacks:
                callback(self)

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        self._callbacks.append(callback)

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> None:
        self._callbacks.remove(callback)

    def cancel(self) -> None:
        self._scope.cancel()

    def done(self) -> bool:
        return self._finished.is_set()

    async def wait(self) -> None:
        await self._finished.wait()


class TrioTimer:
    __slots__ = ("_scope",)

    def __init__(self) -> None:
        import trio

        self._scope = trio.CancelScope()

    async def run(self, when: float, callback: Callable[[], object]) -> None:
        import trio

        with self._scope:
            await trio.sleep_until(when)
            callback()

    def cancel(self) -> None:
        self._scope.cancel()


class TrioWaiter:
    __slots__ = ("_event",)

    def __init__(self) -> None:
        import trio

        self._event = trio.Event()

    def set(self) -> None:
        self._event.set()

    def __await__(self) -> Generator[Any, Any, None]:
        return self._event.wait().__await__()


class TrioSpawner:
    """One trio run; its tasks live in a nursery that `async with Hedger(...)` holds open."""

    def __init__(self, nursery: trio.Nursery) -> None:
        import trio

        self.cancelled: type[BaseException] = trio.Cancelled
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self.now = trio.lowlevel.current_clock().current_time  # unlike `trio.current_time`, for any thread
        self.call_soon_threadsafe = self.call_soon

    def is_cancelled(self) -> bool:
        return True

    def spawn(self, work: Work, *, name: str) -> TaskHandle:
        task = TrioTask()
        self._nursery.start_soon(task.run, work, name=name)
        return task

    async def join(self, tasks: Collection[TaskHandle]) -> None:
        for task in tasks:
            await cast("TrioTask", task).wait()

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._token.run_sync_soon(copy_context().run, callback)  # trio would run it in a context of its own

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle:
        timer = TrioTimer()
        self._nursery.start_soon(timer.run, when, callback)
        return timer

    def waiter(self) -> Awaitable[None]:
        return TrioWaiter()

    def wake(self, waiter: Awaitable[None]) -> None:
        cast("TrioWaiter", waiter).set()


def in_trio() -> bool:
    """Whether the calling task is run by trio (without importing it)."""
    trio = sys.modules.get("trio")
    return trio is not None and trio.lowlevel.in_trio_run()


def asyncio_spawner() -> AsyncioSpawner:
    """Return a spawner for the running asyncio loop.

    Raises:
        HedgeError: no asyncio loop runs in this thread (under trio, open the hedger with ``async with``).
    """
    try:
        return AsyncioSpawner(asyncio.get_running_loop())
    except RuntimeError:
        hint = " Under trio, open it first: `async with Hedger(...) as hedger:`." if in_trio() else ""
        raise HedgeError(f"An async hedger was called where no asyncio loop runs.{hint}") from None


if TYPE_CHECKING:
    _ports: tuple[type[Spawner], ...] = (AsyncioSpawner, TrioSpawner)
