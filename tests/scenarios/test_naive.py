"""A3, a test of the tests: a race as blog posts write it fails each of these checks; ours passes each.

The checks know neither: they are given a function that hedges a call after a delay, on virtual time. What they look
for are the mistakes that were found in published libraries (`asyncio.wait(..., FIRST_COMPLETED)`, then `done.pop()`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from agent_hedge import Effect, Fixed, FleetBudget, Hedger, current_attempt
from agent_hedge.core.ports import LatencyBook
from agent_hedge.core.step import StepKey
from agent_hedge.testing.clock import run_virtual

DELAY = 0.1

Attempt = Callable[[int], Any]
"""What attempt n does: an awaitable, or an async iterator."""


@dataclass
class Naive:
    """Start one, wait, start another, take the first that is done."""

    latencies: list[float] = field(default_factory=list)

    async def call(self, attempt: Attempt) -> Any:
        started = asyncio.get_running_loop().time()

        async def begin(number: int) -> Any:
            made = attempt(number)
            return await made if isinstance(made, Awaitable) else made  # an async iterator counts as an answer

        primary = asyncio.create_task(begin(0))
        done, _ = await asyncio.wait({primary}, timeout=DELAY)
        if not done:
            hedge = asyncio.create_task(begin(1))
            done, pending = await asyncio.wait({primary, hedge}, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
        winner = next(task for task in (primary, *done) if task in done)
        self.latencies.append(asyncio.get_running_loop().time() - started)
        return winner.result()

    async def first_item(self, attempt: Attempt) -> Any:
        stream = await self.call(attempt)
        return await anext(stream)

    async def first_item_at_once(self, attempt: Attempt) -> Any:
        """The same by one who has heard of the header race."""

        async def begin(number: int) -> Any:
            stream = attempt(number)
            return stream, await anext(stream)

        stream, item = await self.call(begin)
        await stream.aclose()
        return item

    def knows(self) -> int:
        """How many attempts it has learnt from."""
        return len(self.latencies)


class Ours:
    def __init__(self) -> None:
        self.hedger = Hedger(policy=Fixed(DELAY), budget=FleetBudget(1.0))
        self.book: LatencyBook = self.hedger.book

    async def call(self, attempt: Attempt) -> Any:
        async def work() -> Any:
            return await attempt(number())

        return await self.hedger.wrap(work, key="step", effect=Effect.READ_ONLY)()

    async def first_item(self, attempt: Attempt) -> Any:
        async def work() -> AsyncIterator[Any]:
            async for item in attempt(number()):
                yield item

        stream = self.hedger.wrap(work, key="step", effect=Effect.READ_ONLY)()
        item = await anext(stream)
        await stream.aclose()  # type: ignore[attr-defined]
        return item

    first_item_at_once = first_item

    def knows(self) -> int:
        return self.book.learning(StepKey(node="step"), "step", asyncio.get_running_loop().time())[0]


def number() -> int:
    active = current_attempt()
    assert active is not None
    return active.number


Race = Naive | Ours
Check = Callable[[Race], Awaitable[None]]


class Denied(Exception):
    status_code = 401


async def after(seconds: float, result: Any = "ok") -> Any:
    await asyncio.sleep(seconds)
    if isinstance(result, BaseException):
        raise result
    return result


# --- the checks -----------------------------------------------------------------------------------------------------


async def an_error_does_not_beat_an_attempt_that_can_still_succeed(race: Race) -> None:
    script = [(0.4, ConnectionError()), (0.6, "answer")]
    assert await race.call(lambda n: after(*script[n])) == "answer"


async def a_generator_is_not_done_before_its_first_item(race: Race) -> None:
    async def stream(n: int) -> AsyncIterator[int]:
        await asyncio.sleep(1.0 if n == 0 else 0.05)
        yield n

    assert await race.first_item(stream) == 1


async def the_latency_of_a_superseded_primary_is_learnt_too(race: Race) -> None:
    """Of two attempts two are known: without the loser the book drifts down and hedges ever more."""
    await race.call(lambda n: after(0.05))  # a first call counts apart
    known = race.knows()
    await race.call(lambda n: after(1.0 if n == 0 else 0.2))
    assert race.knows() - known == 2


async def a_caller_that_leaves_takes_its_attempts_with_it(race: Race) -> None:
    before = asyncio.all_tasks()
    caller = asyncio.create_task(race.call(lambda n: after(60.0)))
    await asyncio.sleep(0.5)
    caller.cancel()
    await asyncio.wait([caller])
    assert asyncio.all_tasks() == before


async def a_401_of_the_hedge_does_not_end_the_race(race: Race) -> None:
    script = [(0.3, "answer"), (0.005, Denied())]
    assert await race.call(lambda n: after(*script[n])) == "answer"


async def a_loser_of_the_same_instant_is_closed(race: Race) -> None:
    """Its first item came, too: nobody will read on, so what it holds must be closed by who ran it."""
    held: set[int] = set()

    async def stream(n: int) -> AsyncIterator[int]:
        held.add(n)
        try:
            await asyncio.sleep(0.3 - DELAY * n)
            yield n
            await asyncio.sleep(60)
        finally:
            held.discard(n)

    await race.first_item_at_once(stream)
    await asyncio.sleep(0)
    assert held == set()


async def a_result_of_the_same_instant_beats_an_error(race: Race) -> None:
    script = [(0.3, ConnectionError()), (0.3 - DELAY, "answer")]
    assert await race.call(lambda n: after(*script[n])) == "answer"


CHECKS: list[Check] = [
    an_error_does_not_beat_an_attempt_that_can_still_succeed,
    a_generator_is_not_done_before_its_first_item,
    the_latency_of_a_superseded_primary_is_learnt_too,
    a_caller_that_leaves_takes_its_attempts_with_it,
    a_401_of_the_hedge_does_not_end_the_race,
    a_loser_of_the_same_instant_is_closed,
    a_result_of_the_same_instant_beats_an_error,
]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_r01_the_naive_race_fails_and_ours_passes(check: Check) -> None:
    with pytest.raises((AssertionError, ConnectionError, Denied)):
        run_virtual(lambda: check(Naive()))
    run_virtual(lambda: check(Ours()))


def test_the_naive_race_is_a_working_race() -> None:
    """It must fail for what it gets wrong, not because it is broken."""

    async def main() -> None:
        for race in (Naive(), Ours()):
            started = asyncio.get_running_loop().time()
            assert await race.call(lambda n: after(5.0 if n == 0 else 0.2, n)) == 1
            assert asyncio.get_running_loop().time() - started == pytest.approx(0.3)
            assert await race.call(lambda n: after(0.05, n)) == 0

    run_virtual(main)
