"""Spans of runs that no scope opens: settings in a graph's configuration have, and nobody is told when it has ended.

A *visit* is the part of such a run that stands in one trace. Its span begins with its first step and ends with its
last, which is known when none has been open for `IDLE_S`, or the hedger is closed. Steps stand under it, unless they
stand under a span of the application's that was opened since.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

import anyio
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext, get_current_span, set_span_in_context

from agent_hedge.core.events import StepReopened, StepStarted
from agent_hedge.core.ports import Portal
from agent_hedge.core.scope import Run
from agent_hedge.observers.otel import names
from agent_hedge.observers.otel.attributes import of_left, of_run
from agent_hedge.observers.otel.opened import Opened

IDLE_S = 60.0
"""Tools between two steps rarely take longer; a span that has ended a minute ago is still worth having."""
LOOK_S = 10.0
"""How often it is looked for what is idle."""


class Visit(Opened):
    """A run's span in one trace; `around` is the span it was opened in, if any."""

    __slots__ = ("around", "context", "last_at", "open_steps", "run")

    def __init__(self, span: Any, said: dict[str, Any], around: SpanContext, run: Run, now: int) -> None:
        super().__init__(span, said)
        self.around = around
        self.context = set_span_in_context(span)
        self.run: Run | None = run
        """None: it has ended."""
        self.open_steps = 0
        self.last_at = now
        """Nanoseconds since the epoch."""


class Visits:
    """The visits of one `Tracing`. `run_here` gives the run around this code where configuration has opened it.

    Without a `portal` nothing looks for what is idle: somebody has to.
    """

    def __init__(
        self,
        start: Callable[..., Any],
        run_here: Callable[[], Run | None],
        wall_ns: Callable[[], int],
        portal: Portal | None = None,
    ) -> None:
        self._start = start
        self._run_here = run_here
        self._wall_ns = wall_ns
        self._portal = portal
        self._by_run: weakref.WeakKeyDictionary[Run, dict[int, Visit]] = weakref.WeakKeyDictionary()
        self._open: dict[Visit, None] = {}
        self._lock = threading.Lock()
        self._watching = False

    def begin(self, event: StepStarted | StepReopened) -> tuple[Visit | None, Context | None]:
        """Return the visit that a step belongs to, if any, and the context of its parent (None: what is current)."""
        run = self._run_here()
        if run is None:
            return None, None
        around = get_current_span().get_span_context()
        trace = around.trace_id if around.is_valid else 0
        with self._lock:
            known = self._by_run.setdefault(run, {})
            visit = known.get(trace)
            if visit is None:
                now = self._wall_ns()
                visit = known[trace] = Visit(self._start(names.RUN, start_time=now), of_run(event), around, run, now)
                self._open[visit] = None
                self._watch()
            visit.open_steps += 1
        inside = around.is_valid and around.span_id != visit.around.span_id
        return visit, None if inside else visit.context

    def over(self, visit: Visit) -> None:
        """Hear that a step of it has its answer."""
        with self._lock:
            visit.open_steps -= 1
            visit.last_at = self._wall_ns()

    def of(self, run: int) -> Opened | None:
        """Return an open visit of the run with this number."""
        with self._lock:
            return next((visit for visit in self._open if id(visit.run) == run), None)

    def end(self, idle: float = 0.0) -> None:
        """End those that have had no open step for `idle` seconds; 0: all."""
        now = self._wall_ns()
        with self._lock:
            quiet = [visit for visit in self._open if not visit.open_steps and now - visit.last_at >= idle * 1e9]
            over = quiet if idle else list(self._open)
            for visit in over:
                del self._open[visit]
        for visit in over:
            run, visit.run = visit.run, None  # its span's context is kept as long as the run lives, and not the run
            if run is not None:
                visit.said |= of_left(run)
            visit.end(None if visit.open_steps else visit.last_at / 1e9)

    def _watch(self) -> None:
        if self._portal is not None and not self._watching:
            self._watching = True
            self._portal.start(self._end_idle)

    async def _end_idle(self) -> None:
        try:
            while self._open:
                await anyio.sleep(LOOK_S)
                self.end(IDLE_S)
        finally:  # cancelled with the loop: the next visit starts another
            self._watching = False

    def after_fork(self) -> None:
        """What the parent has opened, the parent ends."""
        self._lock = threading.Lock()
        self._by_run.clear()
        self._open.clear()
        self._watching = False
