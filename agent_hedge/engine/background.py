"""The background loop: one daemon thread with one asyncio loop per hedger and process (DESIGN 5.5).

Sync callers run their race on it, so that their losers stay cancellable; later parts keep their store connections,
refills and polls there. It is started at first need, made anew after a fork, and stopped at close or at exit.
"""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextvars
import logging
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TypeVar

from agent_hedge.errors import HedgeError

T = TypeVar("T")

logger = logging.getLogger("agent_hedge.background")

LOOK_UP_S = 0.5
"""The longest a thread that waits for a call is deaf to an interrupt."""
STOP_S = 2.0
"""How long open work may take to end when the loop is stopped."""


class Background:
    """Implements the `Portal` port. Usable from any thread but its own."""

    def __init__(self, name: str = "agent_hedge") -> None:
        self._name = name
        self._lock = threading.Lock()
        self._pid = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._exiting = False
        self._unwatched: set[asyncio.Task[None]] = set()
        atexit.register(_close, weakref.ref(self))

    @property
    def running(self) -> bool:
        return self._loop is not None and self._pid == os.getpid()

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run `work()` on the loop, in a copy of this thread's context, and block until it is done.

        An interrupt of this thread (Ctrl-C) cancels it, waits for it, and goes on.
        """
        if threading.current_thread() is self._thread and self.running:
            raise HedgeError("A sync hedged call was made on the background loop itself; it would wait for itself.")
        result: concurrent.futures.Future[T] = concurrent.futures.Future()
        tasks: list[asyncio.Task[None]] = []
        context = contextvars.copy_context()

        async def run() -> None:
            try:
                value = await work()
            except asyncio.CancelledError:
                raise
            except BaseException as error:  # an exit too: it ends the caller's thread, not the loop
                result.set_exception(error)
            else:
                result.set_result(value)

        def stopped(_: object) -> None:
            if not result.done() and not self._exiting:  # cancelled, perhaps before its first step
                result.cancel()
                result.set_running_or_notify_cancel()

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(run(), context=context)
            task.add_done_callback(stopped)
            tasks.append(task)

        loop = self._schedule(begin)
        try:
            return _outcome(result)
        except concurrent.futures.CancelledError:
            raise HedgeError("The background loop was stopped while this call was open.") from None
        except BaseException:
            if not result.done():
                loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
                concurrent.futures.wait([result], timeout=STOP_S)
            raise

    def iterate(self, generate: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Iterate an async generator on the loop, one item at a time; closing the iterator closes it there."""
        stream: AsyncIterator[T] | None = None

        async def following() -> tuple[T] | None:
            nonlocal stream
            stream = stream or generate()
            async for item in stream:
                return (item,)
            return None

        async def close() -> None:
            aclose = getattr(stream, "aclose", None)
            if aclose is not None:
                await aclose()

        try:
            while (item := self.call(following)) is not None:
                yield item[0]
        finally:
            self.call(close)

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        """Run `work()` on the loop and go on; its error is logged."""

        async def run() -> None:
            try:
                await work()
            except Exception:
                logger.exception("background work failed")

        def begin() -> None:
            task = asyncio.get_running_loop().create_task(run())
            self._unwatched.add(task)
            task.add_done_callback(self._unwatched.discard)

        self._schedule(begin)

    def close(self) -> None:
        """Cancel what is open, wait for it (at most `STOP_S`), and stop the thread."""
        with self._lock:
            loop, thread, pid = self._loop, self._thread, self._pid
            self._loop = self._thread = None
        if loop is None or thread is None or pid != os.getpid() or not thread.is_alive():
            return
        loop.call_soon_threadsafe(loop.stop)
        if thread is not threading.current_thread():
            thread.join(STOP_S)

    def _schedule(self, callback: Callable[[], None]) -> asyncio.AbstractEventLoop:
        """Run `callback` on the loop, started if need be. Under the lock, so that a `close` comes before or after."""
        if self._pid != os.getpid():  # first use, or the child of a fork: the old thread does not exist here
            self._lock = threading.Lock()
            self._loop = None
            self._pid = os.getpid()
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_serve, args=(self._loop,), name=self._name, daemon=True)
                self._thread.start()
            self._loop.call_soon_threadsafe(callback)
            return self._loop


def _outcome(result: concurrent.futures.Future[T]) -> T:
    """Wait for it, looking up now and then: a Ctrl-C just before a wait begins is only seen when that wait ends."""
    while True:
        try:
            return result.result(LOOK_UP_S)
        except TimeoutError:
            if result.done():  # its own
                return result.result()


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        pending = asyncio.all_tasks(loop)
        for task in pending:
            task.cancel()
        if pending:
            loop.run_until_complete(asyncio.wait(pending, timeout=STOP_S / 2))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _close(background: weakref.ref[Background]) -> None:
    if (alive := background()) is not None:
        alive._exiting = True  # who still waits is a daemon thread: it ends as all do now, without a word
        alive.close()
