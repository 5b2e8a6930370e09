"""The queue of timers behaves as the loop's own, to the instant; what the suite of spawners asks is asked there."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.core.ports import TimerHandle
from agent_hedge.engine.timers import Timers
from agent_hedge.testing.clock import run_virtual

CallAt = Callable[[float, Callable[[], object]], TimerHandle]
Fired = list[tuple[float, int]]


def played(script: list[tuple[float, float, float | None]], call_at: Callable[[], CallAt]) -> Fired:
    """Set a timer for each line (set at, delay, cancelled after or None); return when which fired."""

    async def main() -> Fired:
        loop, at, fired = asyncio.get_running_loop(), call_at(), list[tuple[float, int]]()

        def start(number: int, delay: float, cancelled: float | None) -> None:
            timer = at(loop.time() + delay, lambda: fired.append((loop.time(), number)))
            if cancelled is not None:
                loop.call_later(cancelled, timer.cancel)

        for number, (begins, delay, cancelled) in enumerate(script):
            loop.call_at(begins, start, number, delay, cancelled)
        await asyncio.sleep(100.0)
        return sorted(fired)

    return run_virtual(main)


_TENTHS = st.integers(0, 30).map(lambda tenths: tenths / 8)


@given(st.lists(st.tuples(_TENTHS, _TENTHS, st.none() | _TENTHS.map(lambda s: s + 1 / 16)), max_size=12))
def test_timers_fire_when_those_of_the_loop_do(script: list[tuple[float, float, float | None]]) -> None:
    ours = played(script, lambda: Timers(asyncio.get_running_loop()).call_at)
    assert ours == played(script, lambda: asyncio.get_running_loop().call_at)


def virtual(main: Callable[[asyncio.AbstractEventLoop, Timers], Awaitable[Any]]) -> Any:
    async def body() -> Any:
        loop = asyncio.get_running_loop()
        return await main(loop, Timers(loop))

    return run_virtual(body)


def test_a_timer_that_raises_is_reported_and_keeps_nobody_waiting() -> None:
    async def main(loop: asyncio.AbstractEventLoop, timers: Timers) -> tuple[list[float], list[str]]:
        fired: list[float] = []
        said: list[str] = []
        loop.set_exception_handler(lambda _, context: said.append(str(context["exception"])))
        timers.call_at(1.0, lambda: 1 / 0)
        timers.call_at(1.0, lambda: fired.append(loop.time()))
        timers.call_at(2.0, lambda: fired.append(loop.time()))
        await asyncio.sleep(3.0)
        return fired, said

    assert virtual(main) == ([1.0, 2.0], ["division by zero"])


def test_a_timer_cancelled_by_one_of_its_own_instant_does_not_fire() -> None:
    async def main(loop: asyncio.AbstractEventLoop, timers: Timers) -> list[str]:
        fired: list[str] = []
        doomed: list[TimerHandle] = []
        timers.call_at(1.0, lambda: doomed[0].cancel())
        doomed.append(timers.call_at(1.0, lambda: fired.append("doomed")))
        timers.call_at(1.0, lambda: timers.call_at(1.0, lambda: fired.append("set in its turn")))
        await asyncio.sleep(2.0)
        return fired

    assert virtual(main) == ["set in its turn"]


def test_calls_that_answer_before_their_triggers_leave_one_timer_with_the_loop() -> None:
    async def main(loop: asyncio.AbstractEventLoop, timers: Timers) -> tuple[int, int]:
        asked: list[float] = []
        original = loop.call_at

        def counted(when: float, *args: Any, **kwargs: Any) -> asyncio.TimerHandle:
            asked.append(when)
            return original(when, *args, **kwargs)

        loop.call_at = counted  # type: ignore[assignment, method-assign]
        for _ in range(1000):
            timers.call_at(loop.time() + 2.0, lambda: None).cancel()
        return len(asked), len(timers._queue)

    assert virtual(main) == (1, 0)


def test_a_cancelled_timer_and_the_alarm_hold_nothing_of_the_call_they_were_set_in() -> None:
    class Thing:
        pass

    carried: ContextVar[Thing] = ContextVar("carried")

    async def main(loop: asyncio.AbstractEventLoop, timers: Timers) -> tuple[bool, bool]:
        async def call() -> tuple[TimerHandle, weakref.ref[Thing]]:
            thing = Thing()
            carried.set(thing)
            timer = timers.call_at(100.0, lambda: thing)
            timer.cancel()
            return timer, weakref.ref(thing)

        timer, thing = await asyncio.create_task(call())
        timer.cancel()
        await asyncio.sleep(0)
        return timers._alarm is not None, thing() is None

    assert virtual(main) == (True, True)


def test_cancelled_timers_between_two_that_wait_are_gone() -> None:
    async def main(loop: asyncio.AbstractEventLoop, timers: Timers) -> tuple[int, list[float]]:
        fired: list[float] = []
        timers.call_at(10.0, lambda: fired.append(loop.time()))
        between = [timers.call_at(20.0, lambda: None) for _ in range(1000)]
        timers.call_at(30.0, lambda: fired.append(loop.time()))
        for timer in between:
            timer.cancel()
            timer.cancel()
        left = len(timers._queue)
        await asyncio.sleep(40.0)
        return left, fired

    assert virtual(main) == (2, [10.0, 30.0])
