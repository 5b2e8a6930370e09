"""Other kinds of asyncio loops: uvloop, and eager tasks (Python 3.12 and newer)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent_hedge import Effect, current_attempt
from tests.engine.kit import hedger, now, run_clean

DELAY = 0.02


async def everything() -> None:
    """A hedge that wins, a recovery, a stream, a caller that leaves: the same on any loop."""
    opened = hedger(DELAY)
    ended: list[int] = []

    def me() -> int:
        active = current_attempt()
        assert active is not None
        return active.number

    async def hangs() -> str:
        number = me()
        try:
            await asyncio.sleep(60 if number == 0 else 0)
        finally:
            ended.append(number)
        return f"from {number}"

    async def breaks() -> str:
        if me() == 0:
            raise ConnectionError
        return f"from {me()}"

    async def streams() -> AsyncIterator[str]:
        number = me()
        try:
            await asyncio.sleep(60 if number == 0 else 0)
            yield f"from {number}"
            await asyncio.sleep(0)
            yield "end"
        finally:
            ended.append(number)

    def wrap(fn: Any) -> Callable[[], Any]:
        return opened.wrap(fn, effect=Effect.READ_ONLY, targets=["a", "b"])

    async with opened.run():
        assert await wrap(hangs)() == "from 1"
        assert await wrap(breaks)() == "from 1"
        assert [item async for item in wrap(streams)()] == ["from 1", "end"]
        caller = asyncio.create_task(wrap(asyncio.sleep)(60))  # type: ignore[call-arg]
        await asyncio.sleep(2 * DELAY)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
    assert sorted(ended) == [0, 0, 1, 1]
    assert asyncio.all_tasks() == {asyncio.current_task()}


def test_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(everything())


def test_on_asyncio() -> None:
    run_clean(everything)


needs_eager = pytest.mark.skipif(
    not hasattr(asyncio, "eager_task_factory"), reason="eager task factories came with Python 3.12"
)


@needs_eager
def test_with_eager_tasks() -> None:
    run_clean(everything, eager=True)


@needs_eager
def test_with_eager_tasks_a_call_that_never_waits_takes_no_turn_of_the_loop() -> None:
    async def main() -> None:
        async def work() -> str:
            return "at once"

        assert await hedger().wrap(work, effect=Effect.READ_ONLY)() == "at once"
        assert await hedger(0.0).wrap(work, effect=Effect.READ_ONLY)() == "at once"
        assert now() == 0.0

    run_clean(main, eager=True)
