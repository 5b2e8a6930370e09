"""Timers that are nearly all cancelled, as triggers are: most calls answer long before.

A loop keeps its timers in a heap, and cancelled ones too. Triggers are set nearly in the order in which they are due,
so here they stand in a queue, and the loop is asked for one timer at a time. A timer that is due before the last of
the queue is the loop's own. (Measured: 1 of the 25 us that an unhedged call costs.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context, copy_context

from agent_hedge.core.ports import TimerHandle

_SWEEP = 64
"""So many cancelled timers may stand between live ones, and as many as those are, before they are swept out."""


class _Timer:
    """One timer of the queue; without a callback it is cancelled, or has had its turn."""

    __slots__ = ("_timers", "callback", "context", "when")

    def __init__(self, timers: Timers, when: float, callback: Callable[[], object], context: Context) -> None:
        self._timers = timers
        self.when = when
        self.callback: Callable[[], object] | None = callback
        self.context: Context | None = context

    def cancel(self) -> None:
        if self.callback is not None:
            self.callback = self.context = None  # it may stand in the queue for a while, and holds nothing there
            self._timers.forget()


class Timers:
    """The timers of one asyncio loop; used in its thread alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: deque[_Timer] = deque()
        """In the order in which they are due; neither the first nor the last is cancelled."""
        self._cancelled = 0
        self._alarm: asyncio.TimerHandle | None = None
        """The loop's timer, due when the first of the queue is, or before."""

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` at the instant `when` on the loop's clock, in the caller's context."""
        queue = self._queue
        if queue and when < queue[-1].when:
            return self._loop.call_at(when, callback)
        timer = _Timer(self, when, callback, copy_context())
        queue.append(timer)
        if self._alarm is None:
            self._set_alarm(when)
        elif len(queue) == 1 and when < self._alarm.when():
            self._alarm.cancel()
            self._set_alarm(when)
        return timer

    def forget(self) -> None:
        """One of the queue was cancelled: take out what may be."""
        queue = self._queue
        self._cancelled += 1
        while queue and queue[-1].callback is None:
            queue.pop()
            self._cancelled -= 1
        while queue and queue[0].callback is None:
            queue.popleft()
            self._cancelled -= 1
        if self._cancelled > _SWEEP and self._cancelled * 2 > len(queue):
            self._queue = deque(timer for timer in queue if timer.callback is not None)
            self._cancelled = 0

    def _set_alarm(self, when: float) -> None:
        """Ask the loop for `when`, in no context: the alarm outlives the call that was the first to need it."""
        self._alarm = self._loop.call_at(when, self._ring, context=Context())

    def _ring(self) -> None:
        """Call what is due, and ask the loop for the next."""
        assert self._alarm is not None
        now = max(self._loop.time(), self._alarm.when())
        try:
            while self._queue and self._queue[0].when <= now:
                timer = self._queue.popleft()
                callback, context = timer.callback, timer.context
                if callback is None or context is None:
                    self._cancelled -= 1
                    continue
                timer.callback = timer.context = None
                context.run(callback)
        finally:  # one that raises is the loop's to report, and keeps nobody else waiting
            self._alarm = None
            if self._queue:
                self._set_alarm(self._queue[0].when)
