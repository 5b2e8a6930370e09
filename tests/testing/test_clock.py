"""Virtual time: exact instants, threads and sockets that hold the clock, deadlocks, and LangGraph on top."""

from __future__ import annotations

import asyncio
import gc
import math
import operator
import socket
import sys
import threading
import time
import warnings
from collections.abc import Awaitable, Callable
from functools import reduce
from importlib import import_module
from typing import Annotated, Any, TypedDict

import aiosqlite
import anyio
import anyio.from_thread
import anyio.to_thread
import pytest

from agent_hedge.errors import ConfigurationError
from agent_hedge.testing import Deadlock, VirtualClock, VirtualTimeLoop, clock, run_virtual
from tests.conftest import HUNG_S

WORK = 0.05
"""Real seconds of honest work in a thread: the subject of the thread tests is that it beats virtual timers."""


def now() -> float:
    return asyncio.get_running_loop().time()


# Instants


def test_the_clock_starts_at_zero_or_where_it_is_told() -> None:
    async def read() -> float:
        return now()

    assert run_virtual(read) == 0.0
    assert run_virtual(read, start=1.7e9) == 1.7e9


def test_the_clock_takes_the_timers_own_instant_not_a_sum() -> None:
    """0.3 + (0.9 - 0.3) is more than 0.9."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen: list[float] = []
        loop.call_at(0.3, lambda: seen.append(loop.time()))
        loop.call_at(0.9, lambda: seen.append(loop.time()))
        await asyncio.sleep(1)
        return seen

    assert run_virtual(main) == [0.3, 0.9]


@pytest.mark.parametrize("start", [0.0, 0.1, 1e7, 1.7e9])
def test_a_timer_fires_exactly_at_its_instant(start: float) -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen: list[float] = []
        for delay in (0.3, 0.1, 0.7, 86_401.5):  # beyond a day: asyncio's own longest wait
            loop.call_at(start + delay, lambda: seen.append(loop.time()))
        await asyncio.sleep(100_000)
        return seen

    assert run_virtual(main, start=start) == [start + delay for delay in (0.1, 0.3, 0.7, 86_401.5)]


def test_sums_of_sleeps_are_plain_float_sums() -> None:
    async def main() -> float:
        for _ in range(10):
            await asyncio.sleep(0.1)
        return now()

    assert run_virtual(main) == reduce(operator.add, [0.1] * 10)  # sum() compensates from Python 3.12 on


def test_ties_fire_in_one_turn_and_instants_a_hair_apart_do_not() -> None:
    async def main() -> list[tuple[str, float]]:
        loop = asyncio.get_running_loop()
        seen: list[tuple[str, float]] = []

        def fire(name: str) -> None:
            seen.append((name, loop.time()))

        loop.call_at(math.nextafter(5.0, math.inf), fire, "late")
        loop.call_at(5.0, fire, "one")
        loop.call_at(5.0, fire, "two")
        await asyncio.sleep(6)
        return seen

    one, two, late = run_virtual(main)
    assert {one, two} == {("one", 5.0), ("two", 5.0)}
    assert late == ("late", math.nextafter(5.0, math.inf))


def test_what_is_ready_comes_before_any_jump() -> None:
    async def main() -> tuple[list[str], float]:
        order: list[str] = []
        loop = asyncio.get_running_loop()
        loop.call_later(1, order.append, "timer")
        for _ in range(100):
            await asyncio.sleep(0)
        order.append("ready")
        await asyncio.sleep(1)
        return order, now()

    assert run_virtual(main) == (["ready", "timer"], 1.0)


def test_nested_and_past_timers() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        seen: list[float] = []

        def again(left: int) -> None:
            seen.append(loop.time())
            if left:
                loop.call_later(2.5, again, left - 1)
            else:
                loop.call_at(1.0, lambda: seen.append(loop.time()))

        loop.call_later(2.5, again, 2)
        await asyncio.sleep(10)
        return seen

    assert run_virtual(main) == [2.5, 5.0, 7.5, 7.5]


def test_cancelled_timers_do_not_attract_the_clock() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        for delay in range(1, 200):  # enough for asyncio to sweep its heap
            loop.call_later(delay, pytest.fail).cancel()
        async with asyncio.timeout(50):
            await asyncio.sleep(3)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(4):
                await asyncio.sleep(30)
        return now()

    assert run_virtual(main) == 7.0


# Threads


async def in_asyncio_thread() -> str:
    await asyncio.to_thread(time.sleep, WORK)
    return "thread"


async def in_executor() -> str:
    await asyncio.get_running_loop().run_in_executor(None, time.sleep, WORK)
    return "thread"


async def in_anyio_thread() -> str:
    await anyio.to_thread.run_sync(time.sleep, WORK)
    return "thread"


async def in_sqlite() -> str:
    async with aiosqlite.connect(":memory:") as db:
        await db.create_function("work", 1, time.sleep)
        await db.execute("select work(?)", (WORK,))
    return "thread"


THREADS = [in_asyncio_thread, in_executor, in_anyio_thread, in_sqlite]


@pytest.mark.parametrize("work", THREADS)
def test_a_busy_thread_beats_any_virtual_timer(work: Callable[[], Awaitable[str]]) -> None:
    async def main() -> tuple[str, float]:
        async with asyncio.timeout(5):
            for _ in range(3):  # anyio's second call meets an idle worker
                answer = await work()
        return answer, now()

    assert run_virtual(main) == ("thread", 0.0)


@pytest.mark.parametrize("work", THREADS)
def test_a_busy_thread_is_no_deadlock(work: Callable[[], Awaitable[str]]) -> None:
    assert run_virtual(work, patience=0.0) == "thread"


@pytest.mark.parametrize(("library", "attribute", "plain", "announcing"), clock._PRIVATE_THREADS)
def test_canary_the_libraries_still_hand_work_over_through_that_queue(
    library: str, attribute: str, plain: type[Any], announcing: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        VirtualTimeLoop().close()
    monkeypatch.setattr(f"{library}.{attribute}", plain)
    VirtualTimeLoop().close()
    assert getattr(import_module(library), attribute) is announcing
    monkeypatch.setattr(f"{library}.{attribute}", list)
    with pytest.warns(RuntimeWarning, match=f"{library} has changed"):
        VirtualTimeLoop().close()


def test_an_announced_thread_holds_the_clock() -> None:
    async def main() -> float:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualTimeLoop)
        answer = loop.create_future()
        loop.busy_until(answer)

        def work() -> None:
            time.sleep(WORK)
            loop.call_soon_threadsafe(answer.set_result, None)

        thread = threading.Thread(target=work)
        thread.start()
        async with asyncio.timeout(5):
            await answer
        thread.join()
        return now()

    assert run_virtual(main) == 0.0


@pytest.mark.parametrize("backend", ["asyncio", "anyio"])
def test_an_abandoned_thread_does_not_hold_the_clock(backend: str) -> None:
    release = threading.Event()

    async def work() -> None:
        if backend == "anyio":
            await anyio.to_thread.run_sync(release.wait, abandon_on_cancel=True)
        else:
            await asyncio.to_thread(release.wait)

    async def main() -> float:
        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await asyncio.sleep(60)
        release.set()
        return now()

    assert run_virtual(main) == 60.0


def test_joining_the_executor_at_the_end_takes_real_time_only() -> None:
    virtual = VirtualClock()
    ended = threading.Event()

    def work() -> None:
        time.sleep(WORK)
        ended.set()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.run_in_executor(None, work).cancel()
        await asyncio.sleep(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # asyncio warns when its 300 s are over before the threads have joined
        virtual.run(main)
    assert ended.is_set()
    assert virtual.now() == 1.0


# Deadlocks


def test_waiting_for_nothing_is_a_deadlock_that_names_who_waits() -> None:
    async def forever() -> None:
        await asyncio.sleep(2)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match=r"at 2\.0 virtual seconds: no timer.*forever > Event\.wait"):
        run_virtual(forever, patience=0.01)


def test_a_sleep_without_end_is_no_timer() -> None:
    with pytest.raises(Deadlock, match=r"at 0\.0 virtual seconds"):
        run_virtual(anyio.sleep_forever, patience=0.01)


def test_a_thread_that_waits_for_virtual_time_is_a_deadlock() -> None:
    async def main() -> None:
        await anyio.to_thread.run_sync(anyio.from_thread.run, asyncio.sleep, 5)

    def loop() -> VirtualTimeLoop:
        return VirtualTimeLoop(thread_patience=0.01)

    with pytest.raises(Deadlock, match="no thread came back"), asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())


def test_tasks_are_cancelled_and_cleaned_up_after_a_deadlock() -> None:
    async def forever() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(1)
            ended.append(now())

    ended: list[float] = []
    with pytest.raises(Deadlock):
        run_virtual(forever, patience=0.0)
    assert ended == [1.0]


# Sockets


def test_ready_io_comes_before_any_jump() -> None:
    ours, theirs = socket.socketpair()

    async def main() -> tuple[bytes, float]:
        reader, writer = await asyncio.open_connection(sock=ours)
        asyncio.get_running_loop().call_later(0.5, theirs.send, b"!")
        async with asyncio.timeout(1):
            answer = await reader.read(1)
        writer.close()
        await writer.wait_closed()
        return answer, now()

    with theirs:
        assert run_virtual(main) == (b"!", 0.5)


def test_a_loopback_socket_answers_before_the_clock_jumps() -> None:
    """Five round trips of a real TCP connection, inside a time-out of one virtual second each."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def main() -> tuple[list[bytes], float]:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        lines = []
        for number in range(5):
            async with asyncio.timeout(1):
                writer.write(b"%d\n" % number)
                lines.append(await reader.readline())
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return lines, now()

    assert run_virtual(main, grace=0.2) == ([b"0\n", b"1\n", b"2\n", b"3\n", b"4\n"], 0.0)


def test_grace_waits_for_a_peer_in_another_thread() -> None:
    ours, theirs = socket.socketpair()

    def peer() -> None:
        theirs.recv(1)
        time.sleep(WORK)
        theirs.send(b"!")

    async def main() -> tuple[bytes, float]:
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(b"?")
        async with asyncio.timeout(5):
            answer = await reader.read(1)
        writer.close()
        await writer.wait_closed()
        return answer, now()

    thread = threading.Thread(target=peer)
    thread.start()
    with theirs:
        assert run_virtual(main, grace=HUNG_S) == (b"!", 0.0)
        thread.join()


def test_grace_costs_nothing_while_no_socket_is_open() -> None:
    async def main() -> float:
        for _ in range(1000):
            await asyncio.sleep(1)
        return now()

    assert run_virtual(main, grace=600.0) == 1000.0


# The clock object and trio


@pytest.mark.parametrize("virtual_clock", ["asyncio", "trio"], indirect=True)
def test_both_backends_jump(virtual_clock: VirtualClock) -> None:
    async def main(delay: float) -> str:
        assert virtual_clock.now() == 0.0
        with anyio.move_on_after(10):
            await anyio.sleep(delay)
            assert virtual_clock.now() == delay
            await anyio.sleep(delay)
        return virtual_clock.backend

    assert virtual_clock.run(main, 7.5) == virtual_clock.backend
    assert virtual_clock.now() == 10.0
    assert virtual_clock.run(main, 2.0) == virtual_clock.backend
    assert virtual_clock.now() == 4.0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_start_holds_on_both_backends(backend: clock.Backend) -> None:
    virtual = VirtualClock(backend, start=100.0)
    assert virtual.now() == 100.0
    virtual.run(anyio.sleep, 0.5)
    assert virtual.now() == 100.5


def test_what_the_function_leaves_behind_ends_after_its_last_instant() -> None:
    ended: list[float] = []

    async def cleans_up_slowly() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            await asyncio.sleep(60)
            ended.append(now())

    async def main() -> asyncio.Task[None]:
        left_behind = asyncio.create_task(cleans_up_slowly())
        await asyncio.sleep(1)
        return left_behind

    virtual = VirtualClock()
    virtual.run(main)
    assert ended == [61.0]
    assert virtual.now() == 1.0


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_functions_own_error_passes(backend: clock.Backend) -> None:
    async def fail() -> None:
        await anyio.sleep(3)
        raise LookupError

    virtual = VirtualClock(backend)
    with pytest.raises(LookupError):
        virtual.run(fail)
    assert virtual.now() == 3.0


def test_grace_lets_trio_wait_for_a_thread() -> None:
    async def main() -> float:
        with anyio.fail_after(5):
            await anyio.to_thread.run_sync(time.sleep, WORK)
        return anyio.current_time()

    assert run_virtual(main, backend="trio", grace=HUNG_S) == 0.0


def test_missing_trio_is_said_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trio", None)
    with pytest.raises(ModuleNotFoundError, match=r"agent-hedge\[test\]"):
        run_virtual(anyio.sleep, 1, backend="trio")


@pytest.mark.parametrize(
    "settings",
    [{"backend": "curio"}, {"start": -1.0}, {"grace": math.nan}, {"patience": math.inf}],
)
def test_settings_that_cannot_be_meant_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        VirtualClock(**settings)


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_the_loop_closes_without_a_leaked_selector() -> None:
    async def main() -> asyncio.AbstractEventLoop:
        await asyncio.to_thread(int)
        return asyncio.get_running_loop()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()  # what clients of other tests have left open is not this loop's
    loop = run_virtual(main)
    assert isinstance(loop, VirtualTimeLoop)
    assert loop.is_closed()
    with pytest.raises(ValueError, match="closed"):
        loop._io.poll(0)
    del loop
    gc.collect()  # an unclosed loop or socket would warn here


# LangGraph


class State(TypedDict):
    trail: Annotated[list[tuple[str, float]], operator.add]


def a_graph(checkpointer: Any = None, **settings: Any) -> Any:
    """Two async nodes of 30 s and 12 s side by side, then a sync node, which LangGraph runs in a thread."""
    from langgraph.graph import END, START, StateGraph

    async def slow(state: State) -> Any:
        await asyncio.sleep(30)
        return {"trail": [("slow", now())]}

    async def quick(state: State) -> Any:
        await asyncio.sleep(12)
        return {"trail": [("quick", now())]}

    def in_thread(state: State) -> Any:
        time.sleep(WORK)
        return {"trail": [("sync", float(len(state["trail"])))]}

    builder = StateGraph(State)
    builder.add_node("slow", slow, **settings)
    builder.add_node("quick", quick)
    builder.add_node("sync", in_thread)
    builder.add_edge(START, "slow")
    builder.add_edge(START, "quick")
    builder.add_edge(["slow", "quick"], "sync")
    builder.add_edge("sync", END)
    return builder.compile(checkpointer=checkpointer)


async def invoke(graph: Any) -> tuple[set[tuple[str, float]], float]:
    final = await graph.ainvoke({"trail": []}, {"configurable": {"thread_id": "1"}})
    return set(final["trail"]), now()


TRAIL = {("quick", 12.0), ("slow", 30.0), ("sync", 2.0)}


def test_langgraph_runs_in_virtual_time() -> None:
    assert run_virtual(invoke, a_graph()) == (TRAIL, 30.0)


def test_langgraph_with_a_sqlite_checkpointer() -> None:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async def main() -> tuple[set[tuple[str, float]], float]:
        async with AsyncSqliteSaver.from_conn_string(":memory:") as saver:
            return await invoke(a_graph(saver))

    assert run_virtual(main) == (TRAIL, 30.0)


def test_langgraph_node_timeouts_are_virtual() -> None:
    from langgraph.errors import NodeTimeoutError

    virtual = VirtualClock()
    with pytest.raises(NodeTimeoutError):
        virtual.run(invoke, a_graph(timeout=5))
    assert virtual.now() == 5.0
