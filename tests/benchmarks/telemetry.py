"""Acceptance G6: what telemetry adds to a call, with and without an SDK, in one process run.

    python -m tests.benchmarks.telemetry [--json]

CPU time of the process, the smallest of interleaved repeats (this machine is shared). Exit code 1 when a bound is
missed: without an SDK at most 3 us a call; with an SDK and its batch exporter a hedged step (step, primary, hedge, with
attributes, events and a link) at most 2.5 times three plain spans, which are ``start_as_current_span`` and empty.

Three plain spans in a loop of their own are at their cheapest: everything is in the processor's caches. Beside them,
and without a bound, the same three opened and closed where a hedged step has its spans.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from collections.abc import Awaitable, Callable, Sequence

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from agent_hedge import Effect, Hedger, Never
from agent_hedge.core.events import AttemptStarted, StepEnded, StepStarted
from agent_hedge.observers.otel import Tracing
from agent_hedge.testing.scenario import Scenario
from agent_hedge.testing.simulator import simulate

CALLS, REPEATS, WARM = 3000, 15, 500
STEPS, ROUNDS = 100, 100
"""Short slices: on a busy machine some of them are left alone."""
NO_SDK_BOUND_US = 3.0
RATIO_BOUND = 2.5

Call = Callable[[], Awaitable[object]]


async def work() -> int:
    return 1


def wrapped(*, telemetry: bool) -> Call:
    hedger = Hedger(policy=Never(), telemetry=telemetry)
    return hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])


async def cpu_us(call: Call, calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        await call()
    return (time.process_time() - start) / calls * 1e6


async def without_sdk() -> dict[str, float]:
    calls = {"off": wrapped(telemetry=False), "on": wrapped(telemetry=True)}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        await cpu_us(call, WARM)
    for _ in range(REPEATS):
        for name, call in calls.items():
            times[name].append(await cpu_us(call, CALLS))
    return {name: min(values) for name, values in times.items()}


class Nowhere(SpanExporter):
    """An exporter that throws everything away."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        return SpanExportResult.SUCCESS


def with_sdk() -> dict[str, float]:
    """Spans of hedged steps (three each) beside three plain spans; the race without an observer is taken off."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere(), max_queue_size=1 << 16))
    tracer, tracing = provider.get_tracer("plain"), Tracing(provider)
    scenario = Scenario(("a", 9.0), ("b", 0.25), policy=1.0)

    def bare() -> None:
        for _ in range(3):
            tracer.start_span("plain").end()

    def plain() -> None:
        for _ in range(3):
            with tracer.start_as_current_span("plain"):
                pass

    def plain_there() -> Callable[[object], None]:
        open_ = contextlib.ExitStack()

        def hear(event: object) -> None:
            if isinstance(event, StepStarted | AttemptStarted):
                open_.enter_context(tracer.start_as_current_span("plain"))
            elif isinstance(event, StepEnded):
                open_.close()

        return hear

    def race(observe: Callable[..., object] | None) -> None:
        simulate(scenario.race(0.0), scenario.line, observe=observe)

    def observed(event: object) -> None:
        scope = tracing.on_event(event)  # type: ignore[arg-type]
        if scope is not None:
            with scope:
                pass

    jobs: dict[str, Callable[[], None]] = {
        "bare": bare,
        "plain": plain,
        "race": lambda: race(None),
        "there": lambda: race(plain_there()),
        "step": lambda: race(observed),
    }
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            start = time.thread_time()
            for _ in range(STEPS):
                job()
            times[name].append((time.thread_time() - start) / STEPS * 1e6)
        provider.force_flush()
    best = {name: min(values) for name, values in times.items()}
    provider.shutdown()
    return {
        "three_bare": best["bare"],
        "three_spans": best["plain"],
        "three_spans_there": best["there"] - best["race"],
        "hedged_step": best["step"] - best["race"],
    }


def main() -> int:
    plain = asyncio.run(without_sdk())
    sdk = with_sdk()
    added, ratio = plain["on"] - plain["off"], sdk["hedged_step"] / sdk["three_spans"]
    met = added <= NO_SDK_BOUND_US and ratio <= RATIO_BOUND
    if "--json" in sys.argv:
        print(json.dumps({"no_sdk_us": added, **sdk, "ratio": ratio, "met": met}))
    else:
        print(f"without an SDK  {added:6.2f} us a call added (bound {NO_SDK_BOUND_US})")
        loop = f"{sdk['three_spans']:6.2f} us in a loop ({sdk['three_bare']:.2f} bare and empty)"
        print(f"three spans     {loop}, {sdk['three_spans_there']:.2f} us in their place")
        there = sdk["hedged_step"] / sdk["three_spans_there"]
        step = f"{sdk['hedged_step']:6.2f} us: {ratio:.2f} times (bound {RATIO_BOUND})"
        print(f"a hedged step   {step}; {there:.2f} times those in their place")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
