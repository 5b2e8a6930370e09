"""Hedged functions: any async or sync callable. The smallest adapter, and the model for the next one.

An adapter does three things: it makes a `Lane`, it says how one attempt calls the other side (and how that call is
stopped), and it hands the caller the same face as before.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from types import AsyncGeneratorType, GeneratorType
from typing import Any, ParamSpec, TypeVar, cast

import anyio
import anyio.to_thread

from agent_hedge.core.ports import Portal
from agent_hedge.core.scope import ActiveAttempt
from agent_hedge.engine.driver import accept_all
from agent_hedge.engine.lane import Lane
from agent_hedge.engine.streams import hedged_stream
from agent_hedge.errors import AttemptCancelled, ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")

Face = Callable[..., Any]

_GENERATORS = frozenset({AsyncGeneratorType, GeneratorType})


def wrap_function(
    fn: Callable[P, R],
    lane: Lane,
    portal: Portal,
    *,
    accept: Callable[[Any], bool] = accept_all,
    first: Callable[[Any], bool] = accept_all,
) -> Callable[P, R]:
    """Return `fn` with the same face, every call of it a hedged step.

    - a coroutine function: each attempt awaits a call of its own; the result is the first chunk.
    - an async generator function: the race ends at the first item that `first` accepts; the winner's items follow.
    - a sync function: each attempt runs in a worker thread, the race on the background loop; a loser's thread cannot
      be stopped and is reported as abandoned when it outlives the grace (it may look at
      ``current_attempt().cancelled``).
    """
    if not callable(fn):
        raise ConfigurationError(f"wrap() takes a function; it was given {fn!r}.")
    if _is(inspect.isgeneratorfunction, fn):
        raise ConfigurationError(f"wrap() cannot hedge the sync generator {fn!r}: make it an async one.")
    face: Face
    if is_stream(fn):

        async def face(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            generate = cast("Callable[..., AsyncIterator[Any]]", fn)
            async with aclosing(hedged_stream(lane, lambda _: generate(*args, **kwargs), first)) as items:
                async for item in items:
                    yield item

    elif _is(inspect.iscoroutinefunction, fn):
        call = cast("Callable[..., Awaitable[Any]]", fn)

        async def face(*args: Any, **kwargs: Any) -> Any:
            value = await lane.run(lambda _: call(*args, **kwargs), accept)
            return _settled(value, fn) if type(value) in _GENERATORS else value

    else:

        def face(*args: Any, **kwargs: Any) -> Any:
            call = functools.partial(fn, *args, **kwargs)
            return portal.call(lambda: lane.run(lambda active: in_thread(active, call), accept))

    return cast("Callable[P, R]", functools.update_wrapper(face, fn))


def is_stream(fn: Any) -> bool:
    """Whether calling `fn` gives an async generator."""
    return _is(inspect.isasyncgenfunction, fn)


def name_of(fn: Any) -> str:
    """Return the qualified name of a function, of what a partial holds, or of a callable object's type."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def _is(kind: Callable[[Any], bool], fn: Any) -> bool:
    """Whether a function, what a partial holds, or an object's `__call__` is of this kind."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    return kind(fn) or kind(getattr(type(fn), "__call__", None))  # noqa: B004 - its kind is asked, not whether it is


async def in_thread(active: ActiveAttempt, call: functools.partial[R]) -> R:
    """Run `call` in a worker thread, in this attempt's context.

    A thread cannot be cancelled. After a cancel the attempt lives on until the thread ends, so that nothing goes on
    unseen; the reaper's second cancel gives it up. No limiter: every caller blocks a thread of its own already, and
    a limit shared by a hedged call and the hedged calls inside it would let them wait for each other for ever.

    A worker is a daemon where the thread of its loop is one. So a loser on the background loop holds up no exit of
    the interpreter; one on a loop of the main thread (a sync node of an async graph) does, as every worker there.
    """
    active.phase = "thread"
    begun = False
    finished = asyncio.Event()
    loop = asyncio.get_running_loop()

    def body() -> R:
        nonlocal begun
        begun = True
        try:
            if active.cancelled:
                raise AttemptCancelled
            return call()
        finally:
            loop.call_soon_threadsafe(finished.set)

    try:
        value = await anyio.to_thread.run_sync(body, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(math.inf))
    except anyio.get_cancelled_exc_class():
        if begun:
            await finished.wait()
        raise
    if inspect.iscoroutine(value):
        value.close()
        raise ConfigurationError(f"{call.func!r} returned a coroutine; wrap the async function itself.")
    return _settled(value, call.func)


def _settled(value: R, fn: Any) -> R:
    """Return a result. A generator is none: the race would be over before its first item was there."""
    if type(value) in _GENERATORS:
        raise ConfigurationError(f"{fn!r} returned a generator; wrap the async generator function itself.")
    return value
