"""Both spawners keep the port's contract; what only one loop can do stands below."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio

from agent_hedge.core.ports import Spawner
from agent_hedge.engine.loops import Loops
from agent_hedge.engine.spawn import AsyncioSpawner, asyncio_spawner
from agent_hedge.errors import HedgeError
from agent_hedge.testing.clock import run_virtual
from agent_hedge.testing.suites.spawner import Play, SpawnerSuite
from tests.engine.kit import run_clean, trio_spawner


class TestAsyncio(SpawnerSuite):
    @pytest.fixture
    def play(self) -> Play:
        def play(fn: Callable[[Spawner], Awaitable[Any]]) -> Any:
            async def main() -> Any:
                return await fn(AsyncioSpawner(asyncio.get_running_loop()))

            return run_clean(main)

        return play


class TestTrio(SpawnerSuite):
    @pytest.fixture
    def play(self) -> Play:
        def play(fn: Callable[[Spawner], Awaitable[Any]]) -> Any:
            async def main() -> Any:
                async with trio_spawner() as spawner:
                    return await fn(spawner)

            return run_virtual(main, backend="trio")

        return play


def test_r07_a_task_that_cancels_itself_was_not_cancelled_from_outside() -> None:
    async def main() -> bool:
        spawner = AsyncioSpawner(asyncio.get_running_loop())
        seen: list[bool] = []

        async def work() -> None:
            try:
                raise asyncio.CancelledError
            except asyncio.CancelledError:
                seen.append(spawner.is_cancelled())

        await spawner.join([spawner.spawn(work(), name="work")])
        return seen[0]

    assert run_clean(main) is False


def test_a_join_never_raises_what_a_task_raised() -> None:
    async def main() -> None:
        spawner = AsyncioSpawner(asyncio.get_running_loop())

        async def work() -> None:
            raise ValueError

        task = spawner.spawn(work(), name="work")
        await spawner.join([task])
        assert isinstance(task.exception(), ValueError)

    run_clean(main)


def test_no_loop_is_a_clear_error() -> None:
    with pytest.raises(HedgeError, match="no asyncio loop runs"):
        asyncio_spawner()


def test_trio_without_an_open_hedger_is_a_clear_error() -> None:
    async def main() -> None:
        with pytest.raises(HedgeError, match=r"async with Hedger"):
            Loops().current()

    trio.run(main)


def test_each_loop_has_one_state_and_a_closed_loop_is_forgotten() -> None:
    loops = Loops()

    async def twice() -> bool:
        return loops.current() is loops.current()

    assert asyncio.run(twice())
    (closed,) = loops._by_loop
    assert asyncio.run(twice())
    assert closed.is_closed()
    assert closed not in loops._by_loop
