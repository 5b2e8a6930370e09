"""What the engine's tests share: runs that prove that nothing leaked, and hedgers whose budget never says no."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

import trio

from agent_hedge import Fixed, FleetBudget, Hedger
from agent_hedge.engine.spawn import TrioSpawner
from agent_hedge.testing.clock import run_virtual

T = TypeVar("T")

gc.collect()
gc.freeze()  # what the libraries hold is not looked through again at the end of every test

AMPLE = {"share": 1.0, "floor": 10_000, "burst": 10_000}


def hedger(delay: float = 1.0, **settings: Any) -> Hedger:
    """Return a hedger that hedges after `delay`, twice at most, and that can afford it."""
    return Hedger(**({"policy": Fixed(delay, attempts=3), "budget": FleetBudget(**AMPLE)} | settings))  # type: ignore[arg-type]


class Handler(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@contextmanager
def quiet(*, collect: bool = True) -> Iterator[None]:
    """Fail when asyncio has anything to say: a lost exception, a task destroyed, a callback that raised."""
    handler = Handler()
    logger = logging.getLogger("asyncio")
    logger.addHandler(handler)
    try:
        yield
        if collect:
            gc.collect()
    finally:
        logger.removeHandler(handler)
    assert handler.lines == []


def run_clean(async_fn: Callable[[], Awaitable[T]], *, eager: bool = False, collect: bool = True) -> T:
    """Run in virtual time on asyncio; at the end no task and no async generator may be alive, and no error unseen.

    Without `collect` (it takes a tenth of a second) generators are not looked for, nor errors in cycles.
    """

    async def main() -> T:
        loop = asyncio.get_running_loop()
        if eager:
            loop.set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
        result = await async_fn()
        for _ in range(5):
            await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        if not collect:
            return result
        gc.collect()
        await asyncio.sleep(0)
        generators = list(loop._asyncgens)  # type: ignore[attr-defined]
        assert [generator for generator in generators if generator.ag_frame is not None] == []
        return result

    with quiet(collect=collect):
        return run_virtual(main)


def run_clean_on_trio(async_fn: Callable[[Hedger], Awaitable[T]], **settings: Any) -> T:
    """Run in virtual time on trio, with an open hedger; its nursery cannot close before its tasks have ended."""

    async def main() -> T:
        async with hedger(**settings) as opened:
            return await async_fn(opened)

    return run_virtual(main, backend="trio")


@asynccontextmanager
async def trio_spawner() -> AsyncIterator[TrioSpawner]:
    async with trio.open_nursery() as nursery:
        yield TrioSpawner(nursery)
        nursery.cancel_scope.cancel()


def now() -> float:
    return asyncio.get_running_loop().time()


class Log(list[tuple[Any, ...]]):
    """Lines with their virtual instant."""

    def __call__(self, *line: Any) -> None:
        self.append((*line, now()))


class Denied(Exception):
    """Fatal for the target."""

    status_code = 401


class BadRequest(Exception):
    """Fatal for the request."""

    status_code = 400
