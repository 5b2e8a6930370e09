"""A5: cancellations at random awaits. At the end nothing is alive but what was reported abandoned, no error unseen."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
import trio

from agent_hedge import Effect, Hedger, current_attempt
from agent_hedge.core.events import AttemptEnded, AttemptStarted, Event, StepClosed, StepStarted
from agent_hedge.core.step import Verdict
from agent_hedge.testing.clock import run_virtual
from tests.engine.kit import BadRequest, Denied, hedger, quiet, run_clean

RACES, BLOCK = 1000, 250
ON_TRIO = 200


@dataclass
class Ledger:
    """Every attempt that began must end, once; every step must close."""

    steps: int = 0
    started: int = 0
    ended: int = 0
    abandoned: int = 0
    alive: int = 0
    """Attempts whose code runs now."""
    seen: set[str] = field(default_factory=set)

    def on_event(self, event: Event) -> None:
        match event:
            case StepStarted():
                self.steps += 1
            case StepClosed():
                self.steps -= 1
            case AttemptStarted():
                self.started += 1
            case AttemptEnded(attempt=attempt, verdict=verdict):
                assert attempt.id not in self.seen
                self.seen.add(attempt.id)
                self.ended += 1
                self.abandoned += verdict is Verdict.ABANDONED


def steps_of(rng: random.Random) -> list[Any]:
    """What an attempt does: a few sleeps, perhaps an error, an own cancel, a stubborn or a slow end."""
    script: list[Any] = [rng.choice([0.0, 0.0, rng.uniform(0, 2), round(rng.uniform(0, 2), 1)]) for _ in range(4)]
    kind = rng.random()
    if kind < 0.3:
        script.append(rng.choice([ConnectionError, Denied, BadRequest, ValueError])())
    return script


async def perform(script: list[Any], teardown: float, stubborn: float, ledger: Ledger) -> AsyncIterator[str]:
    ledger.alive += 1
    try:
        for step in script:
            if isinstance(step, BaseException):
                raise step
            await anyio.sleep(step)
            yield "item"
    finally:
        until = anyio.current_time() + stubborn
        while anyio.current_time() < until:
            try:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(until - anyio.current_time())
            except anyio.get_cancelled_exc_class():
                continue
        try:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(teardown)
        finally:
            ledger.alive -= 1


async def race(rng: random.Random, opened: Hedger, ledger: Ledger) -> None:
    """One step, as a function or as a stream, that its caller may leave."""
    scripts = [steps_of(rng) for _ in range(3)]
    teardowns = [rng.choice([0.0, 0.0, rng.uniform(0, 0.4)]) for _ in range(3)]
    stubborns = [rng.choice([0.0] * 9 + [3.0]) for _ in range(3)]

    def attempt() -> AsyncIterator[str]:
        active = current_attempt()
        assert active is not None
        n = active.number
        return perform(scripts[n], teardowns[n], stubborns[n], ledger)

    async def function() -> str:
        async for _ in attempt():
            pass
        return "ok"

    async def stream() -> AsyncIterator[str]:
        items = attempt()
        try:
            async for item in items:
                yield item
        finally:
            await items.aclose()  # type: ignore[attr-defined]

    settings: dict[str, Any] = {"key": "step", "effect": Effect.READ_ONLY, "targets": ["a", "b", "c"]}
    if rng.random() < 0.3:
        settings["timeout"] = rng.uniform(0.1, 3)
    try:
        if rng.random() < 0.5:
            await opened.wrap(function, **settings)()
            return
        items = opened.wrap(stream, **settings)()
        try:
            async for _ in items:
                if rng.random() < 0.1:
                    break
                await anyio.sleep(rng.choice([0.0, rng.uniform(0, 1)]))
        finally:
            with anyio.CancelScope(shield=True):
                await items.aclose()  # type: ignore[attr-defined]
    except Exception:
        pass


def leave_at(rng: random.Random) -> float | None:
    return rng.choice([None, 0.0, rng.uniform(0, 3), round(rng.uniform(0, 3), 1)])


@pytest.mark.parametrize("block", range(RACES // BLOCK))
def test_r07_random_cancellations_leave_nothing_behind(block: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="agent_hedge.reaper")
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        ledger = Ledger()

        async def main(rng: random.Random, ledger: Ledger) -> None:
            opened = hedger(rng.choice([0.0, 0.3, round(rng.uniform(0, 1), 1)]), observers=[ledger])
            turns = rng.randrange(12)
            caller = asyncio.create_task(race(rng, opened, ledger))
            at = leave_at(rng)
            if at is not None:
                await asyncio.sleep(at)
                for _ in range(turns):
                    await asyncio.sleep(0)
                caller.cancel()
                if rng.random() < 0.2:  # impatient: again, while it joins
                    await asyncio.sleep(0.05)
                    caller.cancel()
            await asyncio.wait([caller])
            await opened.aclose()
            alive_then = ledger.alive
            assert alive_then <= ledger.abandoned
            await asyncio.sleep(10)  # the stubborn ones end by themselves
            assert ledger.alive == 0
            assert ledger.steps == 0
            assert ledger.started <= ledger.ended

        async def clean(seed: int = seed, ledger: Ledger = ledger) -> None:
            await main(random.Random(seed), ledger)

        try:
            run_clean(clean, collect=seed % 50 == 49)
        except BaseException:
            print(f"seed {seed}")
            raise


def test_r07_no_error_is_left_unretrieved() -> None:
    async def main(seed: int) -> None:
        rng, ledger = random.Random(seed), Ledger()
        opened = hedger(0.3, observers=[ledger])
        callers = [asyncio.create_task(race(rng, opened, ledger)) for _ in range(60)]
        await asyncio.sleep(1.0)
        for caller in callers[::2]:
            caller.cancel()
        await asyncio.wait(callers)
        await opened.aclose()
        await asyncio.sleep(10)
        assert ledger.alive == ledger.steps == 0

    for seed in range(3):
        with quiet():
            run_virtual(main, seed)


def test_r07_random_cancellations_on_trio(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="agent_hedge.reaper")
    for seed in range(ON_TRIO):
        ledger = Ledger()

        async def main(rng: random.Random, ledger: Ledger) -> None:
            async with hedger(rng.choice([0.0, 0.3]), observers=[ledger]) as opened:
                at = leave_at(rng)
                with trio.move_on_after(at) if at is not None else trio.CancelScope():
                    await race(rng, opened, ledger)
                with trio.CancelScope(shield=True):
                    await opened.aclose()
                assert ledger.alive <= ledger.abandoned
            assert ledger.alive == 0
            assert ledger.steps == 0

        try:
            run_virtual(main, random.Random(seed), ledger, backend="trio")
        except BaseException:
            print(f"seed {seed}")
            raise
