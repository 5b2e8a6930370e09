"""Acceptance A7: what an unhedged call costs, beside the bare call and the two adaptive peers, in one process run.

    python -m tests.benchmarks.overhead [--json]

CPU time of the process (this machine's wall clock is noisy), the least of many short interleaved repeats: what else
runs on the machine only ever adds (caches lost, clock rate), and adds most to whoever is longest. The peers come with
`pip install 'agent-hedge[bench]'`. Exit code 1 when a bound is missed.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable

from hedge import HedgeConfig as PythonConfig
from hedge.transport._base import HedgeScheduler as PythonScheduler
from httpx_hedged import HealthRegistry, StatsRegistry
from httpx_hedged import HedgeConfig as HttpxConfig
from httpx_hedged._config import resolve
from httpx_hedged._scheduler import HedgeScheduler as HttpxScheduler

from agent_hedge import Effect, Hedger, Quantile
from agent_hedge.core.race import Race
from agent_hedge.core.step import Effect as CoreEffect
from agent_hedge.core.step import Outcome, StepKey
from agent_hedge.testing.empty import EmptyBook, QuietFleet
from agent_hedge.testing.scenario import After, Line, ScriptedChooser, Site

CALLS, REPEATS, WARM = 500, 40, 300
RATIO_BOUND = 0.5
RACES_BOUND = 20_000

Call = Callable[[], Awaitable[object]]


async def work() -> int:
    return 1


def latencies() -> list[float]:
    """Time to first token of a middling endpoint: lognormal, median 0.8 s, 4 % stragglers."""
    rng = random.Random(7)
    return [
        rng.lognormvariate(math.log(0.8), 0.35) + (rng.random() < 0.04) * 2.0 * rng.paretovariate(1.3)
        for _ in range(5000)
    ]


def ours(samples: list[float]) -> tuple[Hedger, Call]:
    hedger = Hedger(policy=Quantile(0.9))
    call = hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])
    now = asyncio.get_running_loop().time()
    for sample in samples:
        hedger.book.record(StepKey(node="work"), "a", sample, now)
    return hedger, call


def hedge_python(samples: list[float]) -> Call:
    scheduler = PythonScheduler(PythonConfig(warmup_requests=0))
    sketch = scheduler.sketch_for("work")
    for sample in samples:
        sketch.add(sample)

    async def call() -> object:
        return await scheduler.execute_with_hedge("work", work, work, lambda _, elapsed: sketch.add(elapsed))

    return call


def httpx_hedged(samples: list[float]) -> Call:
    scheduler = HttpxScheduler(HealthRegistry(), StatsRegistry())
    config = resolve(None, HttpxConfig(warmup_requests=0))
    state = scheduler.state_for("work", config)
    for sample in samples:
        state.sketch.add(sample)

    async def call() -> object:
        return await scheduler.execute_with_hedge(
            key="work",
            host="work",
            config=config,
            primary_func=work,
            hedge_func=work,
            classify=lambda _: True,
            can_hedge=True,
        )

    return call


async def cpu_us(call: Call, calls: int = CALLS) -> float:
    start = time.process_time()
    for _ in range(calls):
        await call()
    return (time.process_time() - start) / calls * 1e6


async def per_call() -> dict[str, float]:
    samples = latencies()
    hedger, call = ours(samples)
    calls = {
        "bare": work,
        "agent_hedge": call,
        "hedge-python": hedge_python(samples),
        "httpx-hedged": httpx_hedged(samples),
    }
    times: dict[str, list[float]] = {name: [] for name in calls}
    async with hedger.run(deadline=600.0):
        for name in calls:
            await cpu_us(calls[name], WARM)
        for _ in range(REPEATS):
            for name in calls:
                times[name].append(await cpu_us(calls[name]))
    armed = hedger.book.quantile(StepKey(node="work"), "a", 0.9, asyncio.get_running_loop().time())
    assert armed is not None, "the benchmark must run with a learnt threshold"
    return {name: min(values) for name, values in times.items()}


def kernel_races_per_second(races: int = 20_000) -> float:
    """Hedged races through the kernel alone: start, trigger, answer, two endings."""
    key, sites, book, fleet = StepKey(node="k"), [Site("a"), Site("b")], EmptyBook(), QuietFleet()
    chooser, policy, answer = ScriptedChooser([Line("a", 1.0), Line("b", 1.0)]), After(0.5), Outcome("ok")

    def race() -> None:
        one = Race(
            key,
            policy=policy,
            chooser=chooser,
            candidates=sites,
            latency=book,
            fleet=fleet,
            effect=CoreEffect.READ_ONLY,
        )
        one.start(0.0)
        one.on_timer(0.5)
        one.on_outcome(1, answer, 0.7)
        one.on_ended(0, 0.7)
        one.on_ended(1, 0.7)
        assert one.closed

    rates = []
    for _ in range(5):
        start = time.process_time()
        for _ in range(races // 5):
            race()
        rates.append(races / 5 / (time.process_time() - start))
        book.recorded.clear()
        book.censored.clear()
    return statistics.median(rates)


def main() -> int:
    figures = asyncio.run(per_call())
    best_peer = min(figures["hedge-python"], figures["httpx-hedged"])
    ratio = figures["agent_hedge"] / best_peer
    races = kernel_races_per_second()
    met = ratio <= RATIO_BOUND and races >= RACES_BOUND
    report = {"us_per_call": figures, "ratio_to_better_peer": ratio, "kernel_races_per_s": races, "met": met}
    if "--json" in sys.argv:
        print(json.dumps(report))
    else:
        for name, value in figures.items():
            print(f"{name:14s} {value:8.2f} us CPU per unhedged call")
        print(f"ratio to the better peer {ratio:.2f} (bound {RATIO_BOUND})")
        print(f"kernel alone {races:,.0f} hedged races a second (bound {RACES_BOUND:,})")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
