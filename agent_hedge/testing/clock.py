"""Virtual time: code that waits for minutes ends in milliseconds, and every instant is exact.

The rule of `VirtualTimeLoop`: while a callback, an event of a file descriptor or a thread can still make something
happen at this instant, the clock stands still; when nothing can, it moves exactly to the next timer.

Limits:

- Threads it sees: `run_in_executor` (so `asyncio.to_thread`, LangGraph's sync nodes, DNS), anyio's workers and
  aiosqlite's. Any other is announced with `VirtualTimeLoop.busy_until`, or ignored.
- A call whose waiter was cancelled no longer holds the clock, even if its thread runs on.
- A thread that itself waits for virtual time (`anyio.from_thread.run` of a sleep) stops the clock it waits for. That
  ends in `Deadlock`.
- A peer in another thread or process (a server on a loopback socket, a subprocess) is invisible: give `grace`.
- On trio the clock is trio's own, which sees no thread at all: give `grace` there too. LangGraph needs asyncio.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import queue
import selectors
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Executor
from functools import partial
from importlib import import_module
from typing import Any, Literal, NoReturn, TypeVar, TypeVarTuple

from agent_hedge.core import checks
from agent_hedge.errors import ConfigurationError, HedgeError

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Backend = Literal["asyncio", "trio"]

DEADLOCK_AFTER = 5.0
"""Real seconds without timer, thread or event before `Deadlock`: far above the jitter of a loaded CI machine."""
STUCK_THREAD_AFTER = 60.0
"""Real seconds in which no busy thread came back before `Deadlock`: honest work in a test's thread is shorter."""


class Deadlock(HedgeError, RuntimeError):
    """Nothing can happen any more, and something still waits."""


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An asyncio loop whose clock jumps to the next timer when nothing else can happen.

    `start` is the first instant, in virtual seconds. The others are real seconds: `grace` is how long to wait for
    sockets and pipes before each jump (while none is open it costs nothing); `patience` is how long to wait for an
    event when no timer is left, and `thread_patience` for a busy thread, before `Deadlock` is raised out of the run.
    """

    _scheduled: list[asyncio.TimerHandle]
    _clock_resolution: float

    def __init__(
        self,
        *,
        start: float = 0.0,
        grace: float = 0.0,
        patience: float = DEADLOCK_AFTER,
        thread_patience: float = STUCK_THREAD_AFTER,
    ) -> None:
        _check_seconds(start=start, grace=grace, patience=patience, thread_patience=thread_patience)
        self._grace = grace
        self._patience = patience
        self._thread_patience = thread_patience
        self._working: list[asyncio.Future[Any]] = []
        self._io = _Selector(self._wait)
        self._now = float(start)
        super().__init__(self._io)
        self._move_to(self._now)
        self._own_descriptors = len(self._io.get_map())
        _see_private_threads()

    def time(self) -> float:
        """Return the current instant in virtual seconds."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Let virtual seconds pass while the running code holds the loop: what blocking work does to everybody else."""
        _check_seconds(seconds=seconds)
        self._move_to(self._now + seconds)

    def busy_until(self, future: asyncio.Future[Any]) -> None:
        """Keep the clock still until `future` is done: a thread works on it. To be called on the loop's own thread."""
        self._working.append(future)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        """Run `func` in a thread or process as every loop does; the clock stands still until it returns."""
        future = super().run_in_executor(executor, func, *args)
        self.busy_until(future)
        return future

    async def shutdown_default_executor(self, *timeout: Any) -> None:
        """Join the executor's threads as every loop does, in real time: asyncio's timer of 300 s must not win."""
        joined = self.create_future()
        self.busy_until(joined)
        try:
            await super().shutdown_default_executor(*timeout)
        finally:
            joined.set_result(None)

    def _wait(self, timeout: float | None) -> list[tuple[selectors.SelectorKey, int]]:
        """Return the events that are ready, or move the clock. `timeout` is what asyncio would wait; 0: not at all."""
        events = self._io.poll(0)
        if events or timeout == 0:
            return events
        self._working = [future for future in self._working if not future.done()]
        if self._working:
            return self._io.poll(self._thread_patience) or self._give_up("no thread came back, and no timer is due")
        # A timer at infinity (`sleep_forever`) never fires; at the head of the heap it says that all are such.
        due = self._scheduled[0].when() if self._scheduled else math.inf
        if due == math.inf:
            return self._io.poll(self._patience) or self._give_up("no timer, no event, no thread is left")
        if self._grace and len(self._io.get_map()) > self._own_descriptors:
            events = self._io.poll(self._grace)
        if not events:
            self._move_to(due)
        return events

    def _move_to(self, instant: float) -> None:
        """Set the clock. asyncio fires what is due before now + resolution: one ulp means exactly what is due now.

        Its own resolution of 1 ns fires timers early, and vanishes in the rounding of a clock beyond 1.7e7 s.
        """
        self._now = instant
        self._clock_resolution = math.ulp(instant)

    def _give_up(self, why: str) -> NoReturn:
        waiting = sorted(f"{task.get_name()} in {_chain(task.get_coro())}" for task in asyncio.all_tasks(self))
        raise Deadlock(f"Deadlock at {self._now!r} virtual seconds: {why}; waiting: {'; '.join(waiting)}")


def _chain(awaited: object) -> str:
    """Name the coroutines that wait for one another, outermost first."""
    names = []
    while inspect.iscoroutine(awaited):
        names.append(awaited.__qualname__)
        awaited = awaited.cr_await
    return " > ".join(names)


class _Selector(selectors.DefaultSelector):
    """Leaves it to the loop how to wait; `poll` waits in real time."""

    def __init__(self, wait: Callable[[float | None], list[tuple[selectors.SelectorKey, int]]]) -> None:
        super().__init__()
        self._wait = wait

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return self._wait(timeout)

    def poll(self, timeout: float) -> list[tuple[selectors.SelectorKey, int]]:
        return super().select(timeout)


def _announce(item: object) -> None:
    """Tell a virtual loop about its future in `item`, work that goes to a private thread."""
    for part in item if isinstance(item, tuple) else ():
        if isinstance(part, asyncio.Future):
            loop = part.get_loop()
            if isinstance(loop, VirtualTimeLoop):
                loop.busy_until(part)


class _AnnouncingQueue(queue.Queue[Any]):
    def put_nowait(self, item: Any) -> None:
        _announce(item)
        super().put_nowait(item)


class _AnnouncingSimpleQueue(queue.SimpleQueue[Any]):
    def put_nowait(self, item: Any) -> None:
        _announce(item)
        super().put_nowait(item)


_PRIVATE_THREADS: tuple[tuple[str, str, type[Any], type[Any]], ...] = (
    ("anyio._backends._asyncio", "Queue", queue.Queue, _AnnouncingQueue),
    ("aiosqlite.core", "SimpleQueue", queue.SimpleQueue, _AnnouncingSimpleQueue),
)
"""Libraries whose threads have no public trace: each hands over tuples that hold the future, through a queue."""


def _see_private_threads() -> None:
    """Give each such library a queue that announces its work; on any other loop it behaves as before.

    Done when the first loop is made, since a worker or connection keeps the queue it was born with.
    """
    for name, attribute, plain, announcing in _PRIVATE_THREADS:
        try:
            module = import_module(name)
        except ModuleNotFoundError:
            continue
        current = getattr(module, attribute, None)
        if current is plain:
            setattr(module, attribute, announcing)
        elif current is not announcing:
            message = f"{name} has changed ({attribute} is {current!r}): its threads do not hold the virtual clock"
            warnings.warn(message, RuntimeWarning, stacklevel=3)


class VirtualClock:
    """Runs async functions in virtual time, and tells the time.

    Every run begins at `start` (virtual seconds). `grace` and `patience` are real seconds, as in `VirtualTimeLoop`;
    on trio `grace` is the autojump threshold. Raises `ConfigurationError` for an unknown backend or negative seconds.
    """

    def __init__(
        self,
        backend: Backend = "asyncio",
        *,
        start: float = 0.0,
        grace: float = 0.0,
        patience: float = DEADLOCK_AFTER,
    ) -> None:
        if backend not in ("asyncio", "trio"):
            raise ConfigurationError(f"the backend is 'asyncio' or 'trio', not {backend!r}")
        _check_seconds(start=start, grace=grace, patience=patience)
        self.backend = backend
        self._start = start
        self._grace = grace
        self._patience = patience
        self._read: Callable[[], float] = lambda: start

    def now(self) -> float:
        """Return the current instant; after a run, the instant at which its function ended."""
        return self._read()

    def run(self, async_fn: Callable[[*Ts], Awaitable[T]], *args: *Ts) -> T:
        """Call `async_fn` with `args` in a fresh loop and return its result.

        Raises `Deadlock` when it can never end, and ModuleNotFoundError where trio is asked for and missing.
        """

        async def main() -> T:
            try:
                return await async_fn(*args)
            finally:
                ended_at = self.now()  # tearing the loop down may move the clock further
                self._read = lambda: ended_at

        return self._run_trio(main) if self.backend == "trio" else self._run_asyncio(main)

    def _run_asyncio(self, main: Callable[[], Coroutine[Any, Any, T]]) -> T:
        loop = partial(VirtualTimeLoop, start=self._start, grace=self._grace, patience=self._patience)
        with asyncio.Runner(loop_factory=loop) as runner:
            self._read = runner.get_loop().time
            return runner.run(main())

    def _run_trio(self, main: Callable[[], Awaitable[T]]) -> T:
        try:
            import trio
            import trio.testing
        except ModuleNotFoundError as missing:
            message = "virtual time on trio needs trio: pip install trio, or agent-hedge[test]"
            raise ModuleNotFoundError(message, name="trio") from missing
        clock = trio.testing.MockClock(autojump_threshold=self._grace)
        clock.jump(self._start)
        self._read = clock.current_time
        return trio.run(main, clock=clock)


def run_virtual(
    async_fn: Callable[[*Ts], Awaitable[T]],
    *args: *Ts,
    backend: Backend = "asyncio",
    start: float = 0.0,
    grace: float = 0.0,
    patience: float = DEADLOCK_AFTER,
) -> T:
    """Call `async_fn` with `args` in virtual time and return its result; the settings are those of `VirtualClock`."""
    return VirtualClock(backend, start=start, grace=grace, patience=patience).run(async_fn, *args)


def _check_seconds(**settings: float) -> None:
    for name, seconds in settings.items():
        checks.seconds(name, seconds)
