"""The background loop: any thread, two loops, forks, interrupts, and the end of the interpreter."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextvars import ContextVar

import pytest

from agent_hedge.engine.background import Background
from agent_hedge.errors import HedgeError
from tests.conftest import HUNG_S

word: ContextVar[str] = ContextVar("word", default="")


@pytest.fixture
def background() -> Iterator[Background]:
    background = Background("test")
    yield background
    background.close()


async def thread_name() -> str:
    return threading.current_thread().name


def test_it_starts_at_first_need_and_after_a_close(background: Background) -> None:
    assert not background.running
    assert background.call(thread_name) == "test"
    assert background.running
    background.close()
    assert not background.running
    assert background.call(thread_name) == "test"
    background.close()
    background.close()


def test_a_call_has_a_copy_of_the_callers_context(background: Background) -> None:
    async def work() -> str:
        before = word.get()
        word.set("theirs")
        return before

    token = word.set("mine")
    try:
        assert background.call(work) == "mine"
        assert word.get() == "mine"
    finally:
        word.reset(token)


def test_many_threads_share_one_loop(background: Background) -> None:
    names: list[str] = []
    threads = [threading.Thread(target=lambda: names.append(background.call(thread_name))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HUNG_S)
    assert names == ["test"] * 8


def test_a_call_on_the_loop_itself_is_a_clear_error(background: Background) -> None:
    async def work() -> None:
        background.call(thread_name)

    with pytest.raises(HedgeError, match="it would wait for itself"):
        background.call(work)


@pytest.mark.parametrize("error", [ValueError("theirs"), SystemExit(2), KeyboardInterrupt()])
def test_an_error_is_the_callers_and_the_loop_lives_on(background: Background, error: BaseException) -> None:
    async def work() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        background.call(work)
    assert caught.value is error
    assert background.call(thread_name) == "test"


def test_r07_a_close_cancels_what_is_open_and_tells_its_caller(background: Background) -> None:
    begun, ended, told = threading.Event(), threading.Event(), list[str]()

    async def work() -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        finally:
            ended.set()

    def call() -> None:
        try:
            background.call(work)
        except HedgeError as error:
            told.append(str(error))

    thread = threading.Thread(target=call)
    thread.start()
    assert begun.wait(HUNG_S)
    background.close()
    thread.join(HUNG_S)
    assert ended.is_set()
    assert told == ["The background loop was stopped while this call was open."]


def test_r07_a_call_that_a_close_overtakes_is_told_too() -> None:
    """Its task is cancelled before its first step: nothing of it ever runs."""
    for _ in range(30):
        background = Background("test")
        background.call(thread_name)
        told: list[str] = []

        def call(background: Background = background, told: list[str] = told) -> None:
            try:
                told.append(background.call(thread_name))
            except HedgeError:
                told.append("stopped")

        threads = [threading.Thread(target=call) for _ in range(4)]
        for thread in threads:
            thread.start()
        background.close()
        for thread in threads:
            thread.join(HUNG_S)
        assert len(told) == 4
        background.close()


def test_work_that_is_started_goes_on_alone_and_its_error_is_logged(
    background: Background, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()

    async def work() -> None:
        done.set()
        raise ValueError

    with caplog.at_level(logging.ERROR, logger="agent_hedge.background"):
        background.start(work)
        assert done.wait(HUNG_S)
        background.call(thread_name)
    assert [record.getMessage() for record in caplog.records] == ["background work failed"]


def test_items_of_a_generator_are_had_in_a_thread(background: Background) -> None:
    closed: list[bool] = []

    async def items():  # type: ignore[no-untyped-def]
        try:
            for n in range(3):
                await asyncio.sleep(0)
                yield n
        finally:
            closed.append(True)

    assert list(background.iterate(items)) == [0, 1, 2]
    half = background.iterate(items)
    assert next(half) == 0
    half.close()  # type: ignore[attr-defined]
    assert closed == [True, True]


# --- other processes --------------------------------------------------------------------------------------------------

HEAD = """
import asyncio, os, signal, sys, threading, time
from agent_hedge import Effect, Fixed, Hedger, current_attempt

hedger = Hedger(policy=Fixed(0.05))
hedger._loops._grace = 60.0  # a loser that is slow to end on a busy machine is not given up
def call(fn):
    return hedger.wrap(fn, effect=Effect.READ_ONLY)
def say(*words):  # a line at a time: what two threads print may be mixed
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())
"""


def program(code: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEAD + textwrap.dedent(code)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ends(process: subprocess.Popen[str], within: float = HUNG_S) -> tuple[int, str, str]:
    try:
        out, err = process.communicate(timeout=within)
    finally:
        process.kill()
    return process.returncode, out, err


def test_a_forked_child_makes_its_own_loop() -> None:
    code = """
    answer = call(lambda: os.getpid())
    assert answer() == os.getpid()
    child = os.fork()
    if child == 0:
        assert not hedger._background.running
        ok = answer() == os.getpid() and hedger._background.running
        hedger.close()
        os._exit(0 if ok else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert answer() == os.getpid()
    print("both")
    """
    assert ends(program(code))[:2] == (0, "both\n")


def test_the_interpreter_ends_quietly_with_an_open_race() -> None:
    code = """
    begun = threading.Event()

    @call
    def work():
        begun.set()
        time.sleep(3600)

    threading.Thread(target=work, daemon=True).start()
    begun.wait()
    print("bye")
    """
    assert ends(program(code)) == (0, "bye\n", "")


def test_the_interpreter_ends_quietly_with_an_open_async_race_on_the_background_loop() -> None:
    code = """
    begun = threading.Event()

    @call
    async def work():
        begun.set()
        await asyncio.sleep(60)

    hedger._background.start(work)
    begun.wait()
    print("bye")
    """
    assert ends(program(code)) == (0, "bye\n", "")


def test_r07_ctrl_c_cancels_a_sync_call_and_joins_it() -> None:
    code = """
    @call
    def work():
        active = current_attempt()
        say("begun", active.number)
        while not active.cancelled:
            time.sleep(0.005)
        say("ended", active.number)

    try:
        work()
    except KeyboardInterrupt:
        say("interrupted", threading.active_count() <= 4)
    """
    process = program(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun 0\n"
    assert process.stdout.readline() == "begun 1\n"
    os.kill(process.pid, signal.SIGINT)
    code_, out, err = ends(process)
    assert (code_, err) == (0, "")
    assert sorted(out.splitlines()) == ["ended 0", "ended 1", "interrupted True"]
    assert out.splitlines()[-1] == "interrupted True"


def test_r07_ctrl_c_cancels_an_async_call_and_joins_it() -> None:
    code = """
    @call
    async def work():
        active = current_attempt()
        try:
            say("begun", active.number)
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            say("ended", active.number)

    try:
        asyncio.run(work())
    except KeyboardInterrupt:
        say("interrupted")
    """
    process = program(code)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun 0\n"
    assert process.stdout.readline() == "begun 1\n"
    os.kill(process.pid, signal.SIGINT)
    code_, out, err = ends(process)
    assert (code_, err) == (0, "")
    assert out.splitlines() == ["ended 0", "ended 1", "interrupted"]
