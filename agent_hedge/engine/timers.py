"""Timers that are nearly all cancelled, as triggers are: most calls answer long before.

A loop keeps its timers in a heap, and cancelled ones too. Triggers are set nearly in the order in which they are due,
so here they stand in a queue, and the loop is asked for one timer at a time. A timer that is due before the newest of
the queue is the loop's own. (Measured: one that is set and cancelled takes 0.3 us, the loop's own 0.9.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context, copy_context
from itertools import takewhile
from math import inf

from agent_hedge.core.ports import TimerHandle

_Queue = dict["_Timer", tuple[Callable[[], object], Context]]


class _Timer:
    """The place of one timer in the queue; what it calls stands there, so that a cancelled one holds nothing."""

    __slots__ = ("_queue", "when")

    def __init__(self, queue: _Queue, when: float) -> None:
        self._queue = queue
        self.when = when

    def cancel(self) -> None:
        self._queue.pop(self, None)


class Timers:
    """The timers of one asyncio loop; used in its thread alone."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._queue: _Queue = {}
        """In the order in which they are due, which is that in which they were set."""
        self._newest = 0.0
        """When the one set last is due; counts while any is left."""
        self._alarm: asyncio.TimerHandle | None = None
        """The loop's timer, due when the first of the queue is, or before."""
        self._alarm_at = inf

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle:
        """Call `callback` at the instant `when` on the loop's clock, in the caller's context."""
        queue = self._queue
        if when < self._newest and queue:
            return self._loop.call_at(when, callback)
        timer = _Timer(queue, when)
        queue[timer] = callback, copy_context()
        self._newest = when
        if when < self._alarm_at:
            self._set_alarm(when)
        return timer

    def _set_alarm(self, when: float) -> None:
        """Ask the loop for `when`, in no context: the alarm outlives the call that was the first to need it."""
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_at(when, self._ring, context=Context())
        self._alarm_at = when

    def _ring(self) -> None:
        """Call what is due, and ask the loop for the next."""
        now = max(self._loop.time(), self._alarm_at)
        self._alarm, self._alarm_at = None, -inf  # what is set meanwhile is asked for at the end
        try:
            for timer in list(takewhile(lambda timer: timer.when <= now, self._queue)):
                found = self._queue.pop(timer, None)
                if found is not None:  # (one that is due as well may have cancelled it)
                    callback, context = found
                    context.run(callback)
        finally:  # one that raises is the loop's to report, and keeps nobody else waiting
            self._alarm_at = inf
            if self._queue:
                self._set_alarm(next(iter(self._queue)).when)
