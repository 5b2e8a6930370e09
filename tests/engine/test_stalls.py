"""A4: the loop stood still, so the clock stood still for us. Blocking work is virtual time that passes in one step."""

from __future__ import annotations

import asyncio
import random

import pytest

from agent_hedge import Effect, Quantile, current_attempt
from agent_hedge.core.step import StepKey, instant
from agent_hedge.testing.clock import VirtualTimeLoop
from tests.engine.kit import hedger, now, run_clean

D = 1.0
"""The trigger, in seconds."""


def block(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop.advance(seconds)


@pytest.mark.parametrize("spread", [0.0, 0.2, 0.9], ids="calls spread over {}s".format)
def test_r04_a_blocked_loop_of_1_2_s_hedges_none_of_200_calls(spread: float) -> None:
    """The answers come while the loop is blocked; their triggers pass then, too. Reading one takes turns of it."""
    rng = random.Random(5)

    async def main() -> int:
        hedges = 0

        async def work() -> None:
            nonlocal hedges
            active = current_attempt()
            assert active is not None
            hedges += active.number > 0
            await asyncio.sleep(rng.uniform(0.2, 0.9))
            for _ in range(10):
                await asyncio.sleep(0)

        call = hedger(D).wrap(work, key="step", effect=Effect.READ_ONLY)

        async def one() -> None:
            await asyncio.sleep(rng.uniform(0, spread))
            await call()

        calls = [asyncio.create_task(one()) for _ in range(200)]
        await asyncio.sleep(spread)
        block(1.2)
        await asyncio.gather(*calls)
        return hedges

    assert run_clean(main) == 0


def test_r04_100_ms_of_blocking_in_every_300_lets_95_percent_fire_before_1_5_d() -> None:
    rng = random.Random(6)
    waits: list[float] = []

    async def main() -> None:
        async def work() -> None:
            active = current_attempt()
            assert active is not None
            if active.number:
                waits.append(now() - started[active.attempt.deadline])
                return
            await asyncio.sleep(60)

        opened = hedger(D)
        started: dict[float, float] = {}

        async def one() -> None:
            await asyncio.sleep(rng.uniform(0, 60))
            timeout = rng.uniform(1000, 2000)
            call = opened.wrap(work, key="step", effect=Effect.READ_ONLY, timeout=timeout)
            begun = now()
            started[instant(begun + timeout)] = begun
            await call()

        async def busy() -> None:
            while True:
                await asyncio.sleep(0.2)
                block(0.1)

        blocker = asyncio.create_task(busy())
        await asyncio.gather(*(one() for _ in range(400)))
        blocker.cancel()
        await asyncio.wait([blocker])

    run_clean(main)
    assert len(waits) == 400
    assert min(waits) == pytest.approx(D)
    assert sum(wait < 1.5 * D for wait in waits) >= 0.95 * len(waits)
    assert max(waits) > D + 0.05  # blocking was felt at all: the test can fail


def test_r16_a_sample_that_spans_a_stall_is_not_recorded() -> None:
    async def main() -> tuple[int, int]:
        opened = hedger(policy=Quantile(0.5))
        key = StepKey(node="step")
        for _ in range(300):
            opened.book.record(key, "step", 0.5, now())

        async def work(seconds: float) -> None:
            await asyncio.sleep(seconds)

        call = opened.wrap(work, key="step", effect=Effect.READ_ONLY)
        await call(0.3)  # a first call counts apart
        before = opened.book.learning(key, "step", now())[0]
        caller = asyncio.create_task(call(0.3))
        await asyncio.sleep(0.1)
        block(1.2)
        await caller
        stalled = opened.book.learning(key, "step", now())[0]
        await call(0.3)
        return stalled - before, opened.book.learning(key, "step", now())[0] - stalled

    assert run_clean(main) == (0, 1)
