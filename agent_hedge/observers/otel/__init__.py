"""OpenTelemetry, API only (R19; extra ``otel``): spans and metrics for whatever SDK the application has set up.

Without an SDK nothing is done at all: whether there is one is looked up once a second, and until then no event is even
made. Set the SDK up before the first step; what begins before it is noticed is not seen.
"""

from __future__ import annotations

import atexit
import time
import weakref
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress

from opentelemetry.metrics import MeterProvider, get_meter_provider
from opentelemetry.trace import TracerProvider, get_tracer_provider

from agent_hedge.core.events import Event
from agent_hedge.core.ports import Portal
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Attempt
from agent_hedge.observers.described import Describe, Described, describe_nothing
from agent_hedge.observers.otel import names
from agent_hedge.observers.otel.metrics import Metrics, Reading, Readings, metrics_of
from agent_hedge.observers.otel.tracing import Tracing
from agent_hedge.observers.tails import Survival

__all__ = ["Described", "Metrics", "OpenTelemetry", "Reading", "Tracing"]

LOOK_S = 1.0
"""How often an SDK is looked for while there is none."""
NOTHING: Mapping[str, str] = {}


class OpenTelemetry:
    """The observer for both signals; asleep (`idle`) while no SDK is there. Arguments as in `Tracing`, `Metrics`."""

    def __init__(
        self,
        survival: Callable[[], Survival],
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        describe: Describe = describe_nothing,
        winner_usage: bool | None = None,
        content: bool | None = None,
        run_here: Callable[[], Run | None] | None = None,
        portal: Portal | None = None,
        readings: Readings = lambda: (),
    ) -> None:
        self._survival = survival
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self._describe = describe
        self._winner_usage = winner_usage
        self.content = names.captures_content() if content is None else content
        """Whether spans show what was said: prompts and answers."""
        self._run_here = run_here
        self._portal = portal
        self._readings = readings
        self._tracing: Tracing | None = None
        self._metrics: Metrics | None = None
        self._look_at = 0.0

    @property
    def idle(self) -> bool:
        """Whether nobody would get what is observed."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look(now)
        return self._tracing is None and self._metrics is None

    def on_event(self, event: Event) -> AbstractContextManager[object] | None:
        if (self._tracing is None or self._metrics is None) and self.idle:  # other observers may be awake
            return None
        if self._metrics is not None:
            self._metrics.on_event(event)
        return None if self._tracing is None else self._tracing.on_event(event)

    def headers(self, attempt: Attempt, /) -> Mapping[str, str]:
        """Return the trace headers of the attempt that runs here, nothing without a trace."""
        return NOTHING if self._tracing is None else self._tracing.headers(attempt)

    def close(self) -> None:
        """End the spans of runs that nobody else will end."""
        if self._tracing is not None:
            self._tracing.close()

    def look_again(self) -> None:
        """Look for an SDK whenever it is asked next, though it was asked a moment ago."""
        self._look_at = 0.0

    def _look(self, now: float) -> None:
        self._look_at = now + LOOK_S
        if self._tracing is None:
            tracers = self._tracer_provider or get_tracer_provider()
            if _is_sdk(tracers):
                self._tracing = Tracing(
                    tracers,
                    describe=self._describe,
                    winner_usage=self._winner_usage,
                    content=self.content,
                    run_here=self._run_here,
                    portal=self._portal,
                )
                atexit.register(_close_at_exit, weakref.ref(self))  # the SDK's own was registered before, and is later
        if self._metrics is None:
            meters = self._meter_provider or get_meter_provider()
            if _is_sdk(meters):
                self._metrics = metrics_of(self._survival, meters)
                self._metrics.show(self._readings)


def _close_at_exit(telemetry: weakref.ref[OpenTelemetry]) -> None:
    if (alive := telemetry()) is not None:
        with suppress(Exception):  # the interpreter is going down
            alive.close()


def _is_sdk(provider: object) -> bool:
    """Whether a provider is more than the API's own placeholder."""
    return not type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))
