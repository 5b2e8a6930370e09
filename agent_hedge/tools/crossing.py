"""The way from a caller's loop to the loop that owns the store.

Work that has crossed is not cancelled with its caller: whatever it has written must be followed to its end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio.to_thread

from agent_hedge.core.ports import Portal

T = TypeVar("T")
Work = Callable[[], Awaitable[T]]

_here: set[asyncio.Task[object]] = set()


def start(portal: Portal | None, work: Work[object]) -> None:
    """Run `work` on the portal's loop (without a portal: on this one) and go on."""
    if portal is not None:
        portal.start(work)
        return

    async def run() -> object:
        return await work()

    task = asyncio.get_running_loop().create_task(run())
    _here.add(task)
    task.add_done_callback(_here.discard)


async def cross(portal: Portal | None, work: Work[T], *, undo: Callable[[T], Awaitable[object]] | None = None) -> T:
    """Run `work` there and return its result. Where nobody waits for that any more, `undo` gets it."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:  # trio; a thread waits for it
        assert portal is not None, "without asyncio a portal is needed"
        return await anyio.to_thread.run_sync(portal.call, work)
    arrived: asyncio.Future[T] = loop.create_future()

    def deliver(value: T) -> None:
        if not arrived.done():
            arrived.set_result(value)
        elif undo is not None:
            start(portal, lambda: undo(value))

    def fail(error: BaseException) -> None:
        if not arrived.done():
            arrived.set_exception(error)

    async def run() -> None:
        try:
            value = await work()
        except BaseException as error:
            failure = error  # the name of an `except` is gone when the callback runs
            if isinstance(error, asyncio.CancelledError):
                failure = ConnectionAbortedError("the background loop was stopped")
            _post(loop, lambda: fail(failure))
            if failure is not error:
                raise
            return
        if not _post(loop, lambda: deliver(value)) and undo is not None:
            await undo(value)

    start(portal, run)
    try:
        return await arrived
    except asyncio.CancelledError:
        if undo is not None and arrived.done() and not arrived.cancelled() and arrived.exception() is None:
            unused = arrived.result()
            start(portal, lambda: undo(unused))
        raise


def _post(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> bool:
    """Call back on the caller's loop; False when that is closed."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return False
    return True
