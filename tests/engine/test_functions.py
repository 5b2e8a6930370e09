"""Any callable, with the same face as before."""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextvars import ContextVar
from typing import Any

import pytest

from agent_hedge import Effect, Hedger, current_attempt
from agent_hedge.adapters.functions import is_stream, name_of, wrap_function
from agent_hedge.engine.loops import Loops
from agent_hedge.errors import ConfigurationError
from tests.conftest import HUNG_S
from tests.engine.kit import hedger, run_clean

user: ContextVar[str] = ContextVar("user", default="nobody")


def wrap(fn: Any, opened: Hedger | None = None, **settings: Any) -> Any:
    return (opened or hedger()).wrap(fn, effect=Effect.READ_ONLY, **settings)


async def double(x: int, *, plus: int = 0) -> int:
    """Twice, and more."""
    return 2 * x + plus


async def count(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


def triple(x: int) -> int:
    return 3 * x


class Model:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    async def times(self, x: int) -> int:
        return self.factor * x

    def times_now(self, x: int) -> int:
        return self.factor * x

    async def __call__(self, x: int) -> int:
        return self.factor * x + 1


class Counter:
    async def __call__(self, n: int) -> AsyncIterator[int]:
        for i in range(n):
            yield i


async def collected(items: AsyncIterator[int]) -> list[int]:
    return [item async for item in items]


@pytest.mark.parametrize(
    ("fn", "args", "kwargs", "expected"),
    [
        (double, (3,), {"plus": 1}, 7),
        (functools.partial(double, plus=4), (3,), {}, 10),
        (Model(5).times, (3,), {}, 15),
        (Model(5), (3,), {}, 16),
        (functools.partial(functools.partial(Model(5)), 3), (), {}, 16),
    ],
)
def test_async_callables(fn: Any, args: Any, kwargs: Any, expected: int) -> None:
    async def main() -> None:
        call = wrap(fn)
        assert inspect.iscoroutinefunction(call)
        assert await call(*args, **kwargs) == expected

    run_clean(main)


@pytest.mark.parametrize("fn", [functools.partial(count, 3), Counter(), count])
def test_async_generators(fn: Any) -> None:
    async def main() -> None:
        call = wrap(fn)
        assert inspect.isasyncgenfunction(call)
        assert is_stream(fn)
        assert await collected(call(*[3] * (not isinstance(fn, functools.partial)))) == [0, 1, 2]

    run_clean(main)


@pytest.mark.parametrize(
    ("fn", "args"), [(triple, (4,)), (functools.partial(triple, 4), ()), (Model(3).times_now, (4,))]
)
def test_sync_callables(fn: Any, args: Any) -> None:
    opened = hedger()
    try:
        assert wrap(fn, opened)(*args) == 12
    finally:
        opened.close()


def test_the_face_is_the_functions_own() -> None:
    call = wrap(double)
    assert (call.__name__, call.__qualname__, call.__doc__, call.__module__) == (
        "double",
        "double",
        "Twice, and more.",
        __name__,
    )
    assert call.__wrapped__ is double
    assert inspect.signature(call) == inspect.signature(double)
    assert wrap(count).__name__ == "count"


@pytest.mark.parametrize(
    ("fn", "name"),
    [
        (double, "double"),
        (functools.partial(functools.partial(double), 3), "double"),
        (Model(1).times, "Model.times"),
        (Model(1), "Model"),
        (Counter(), "Counter"),
    ],
)
def test_each_has_a_name_of_its_own(fn: Any, name: str) -> None:
    assert name_of(fn) == name


def test_methods_are_wrapped_in_their_class_too() -> None:
    opened = hedger()

    class Agent:
        factor = 7

        @opened.wrap(effect=Effect.READ_ONLY)
        async def times(self, x: int) -> int:
            return self.factor * x

        @opened.wrap(effect=Effect.READ_ONLY)
        async def items(self, n: int) -> AsyncIterator[int]:
            for i in range(n):
                yield i * self.factor

    async def main() -> None:
        assert await Agent().times(3) == 21
        assert await collected(Agent().items(3)) == [0, 7, 14]

    run_clean(main)


def test_wrong_arguments_are_the_functions_own_type_error() -> None:
    async def main() -> None:
        with pytest.raises(TypeError, match="double"):
            await wrap(double)()

    run_clean(main)


@pytest.mark.parametrize("fn", [None, 3, "double"])
def test_r20_what_cannot_be_called_is_refused(fn: Any) -> None:
    with pytest.raises(ConfigurationError, match="function"):
        wrap_function(fn, Any, Any)  # type: ignore[arg-type]


def test_r20_a_sync_generator_is_refused() -> None:
    def items() -> Iterator[int]:
        yield 1

    with pytest.raises(ConfigurationError, match="async one"):
        wrap(items)


def test_r20_what_returns_a_generator_would_be_a_header_race_and_is_refused() -> None:
    async def open_stream() -> AsyncIterator[int]:
        return count(3)

    async def main() -> None:
        with pytest.raises(ConfigurationError, match="wrap the async generator function itself"):
            await wrap(open_stream)()

    run_clean(main)
    opened = hedger()
    with pytest.raises(ConfigurationError, match="wrap the async generator function itself"):
        wrap(lambda: count(3), opened)()
    with pytest.raises(ConfigurationError, match="wrap the async function itself"):
        wrap(lambda: double(3), opened)()
    opened.close()


# --- sync functions -------------------------------------------------------------------------------------------------


def test_sync_attempts_run_in_threads_with_the_callers_context() -> None:
    seen: list[tuple[str, str, int]] = []

    def work(me: threading.Thread) -> str:
        active = current_attempt()
        assert active is not None
        assert threading.current_thread() is not me
        seen.append((user.get(), active.target.name, active.number))
        user.set("changed")
        if active.number == 0:
            deadline = time.monotonic() + HUNG_S
            while not active.cancelled and time.monotonic() < deadline:
                time.sleep(0.002)
            return "too late"
        return "hedge"

    opened = hedger(0.05)
    token = user.set("ada")
    try:
        assert wrap(work, opened, targets=["a", "b"])(threading.current_thread()) == "hedge"
        assert user.get() == "ada"
        assert seen == [("ada", "a", 0), ("ada", "b", 1)]
    finally:
        user.reset(token)
        opened.close()


def test_r06_a_losers_thread_holds_up_no_exit_of_the_interpreter() -> None:
    """Python joins threads at exit that are no daemons; a worker is what the thread of its loop is."""
    opened = hedger()
    try:
        assert wrap(lambda: threading.current_thread().daemon, opened)() is True
    finally:
        opened.close()


def test_r06_a_winner_does_not_wait_for_a_losers_thread() -> None:
    go, ended = threading.Event(), threading.Event()

    def work() -> str:
        active = current_attempt()
        assert active is not None
        if active.number == 0:
            go.wait(HUNG_S)
            ended.set()
        return str(active.number)

    opened = hedger(0.02)
    opened._loops = Loops(grace=2 * HUNG_S)
    try:
        with opened.run():
            assert wrap(work, opened)() == "1"
            assert not ended.is_set()
            go.set()
        assert ended.is_set(), "the run's end does"
    finally:
        opened.close()


def test_r06_a_losers_thread_that_outlives_the_grace_is_abandoned() -> None:
    go = threading.Event()

    def work() -> str:
        active = current_attempt()
        assert active is not None
        if active.number == 0:
            go.wait(HUNG_S)
        return str(active.number)

    opened = hedger(0.02)
    started = time.monotonic()
    try:
        with opened.run():
            assert wrap(work, opened)() == "1"
        assert time.monotonic() - started >= 0.5  # half a grace, and the second cancel
        assert opened.status()["abandoned"] in (0, 1)
    finally:
        go.set()
        opened.close()


def test_r07_a_sync_error_is_the_functions_own() -> None:
    def work() -> None:
        raise LookupError("mine")

    opened = hedger()
    with pytest.raises(LookupError, match="mine") as caught:
        wrap(work, opened)()
    assert any(entry.name == "work" for entry in caught.traceback)
    assert caught.value.__cause__ is None
    opened.close()


@pytest.mark.parametrize("exit_", [SystemExit(3), KeyboardInterrupt()])
def test_r07_an_exit_in_a_sync_function_ends_its_caller_and_nothing_else(exit_: BaseException) -> None:
    def work() -> None:
        raise exit_

    opened = hedger()
    with pytest.raises(type(exit_)):
        wrap(work, opened)()
    assert wrap(triple, opened)(2) == 6
    opened.close()


def test_sync_steps_inside_sync_steps_do_not_wait_for_each_others_threads() -> None:
    opened = hedger(30.0)
    inner = wrap(triple, opened)
    barrier = threading.Barrier(45)

    def outer_work(x: int) -> int:
        barrier.wait(HUNG_S)
        return int(inner(x))

    outer: Callable[[int], int] = wrap(outer_work, opened)
    answers: list[int] = []
    threads = [threading.Thread(target=lambda n=n: answers.append(outer(n))) for n in range(45)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HUNG_S)
    assert sorted(answers) == [3 * n for n in range(45)]
    opened.close()


def test_a_sync_step_inside_an_async_run_shares_it() -> None:
    async def main() -> tuple[int, int]:
        opened = hedger()
        call = wrap(triple, opened)
        async with opened.run(deadline=60.0) as run:
            answer = await asyncio.to_thread(call, 4)
            steps = run.steps
        opened.close()
        return answer, steps

    assert asyncio.run(main()) == (12, 1)
