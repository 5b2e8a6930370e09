"""Hedged streams: the winner's items and only those, back pressure, and every way to end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import pytest

from agent_hedge import AllAttemptsFailed, DeadlineExceeded, Effect, Hedger, current_attempt
from agent_hedge.engine.spawn import AsyncioSpawner
from agent_hedge.engine.streams import WINDOW, Pipe
from tests.engine.kit import BadRequest, Denied, Log, hedger, now, run_clean, run_clean_on_trio

Step = float | str | BaseException
"""Of a scripted stream: sleep so long, give this item, raise this."""


class Script:
    """An async generator function: attempt n plays line n. Keeps what happened to each attempt."""

    def __init__(self, *lines: list[Step]) -> None:
        self.lines = lines
        self.opened: list[int] = []
        self.given: list[str] = []
        self.closed: list[int] = []
        self.closed_by: list[bool] = []

    async def stream(self) -> AsyncGenerator[str, None]:
        active = current_attempt()
        assert active is not None
        me, task = active.number, asyncio.current_task()
        self.opened.append(me)
        try:
            for step in self.lines[me]:
                if isinstance(step, float):
                    await asyncio.sleep(step)
                elif isinstance(step, str):
                    self.given.append(step)
                    yield step
                else:
                    raise step
        finally:
            self.closed.append(me)
            self.closed_by.append(asyncio.current_task() is task)


def told(item: str) -> bool:
    """The first meaningful item: not empty, not the role."""
    return item not in ("", "role")


def wrapped(script: Script, opened: Hedger | None = None, **settings: Any) -> Callable[[], AsyncGenerator[str, None]]:
    given: dict[str, Any] = {"key": "step", "effect": Effect.READ_ONLY, "targets": ["a", "b", "c"], "first": told}
    return (opened or hedger()).wrap(script.stream, **(given | settings))


async def read(stream: AsyncIterator[str]) -> list[tuple[str, float]]:
    return [(item, now()) async for item in stream]


async def read_into(log: Log, stream: AsyncIterator[str], pause: float = 0.0) -> None:
    async for item in stream:
        log(item)
        await asyncio.sleep(pause)


# --- who wins, and what the caller sees -------------------------------------------------------------------------


def test_r05_nothing_of_a_loser_is_visible_and_the_winners_prelude_is() -> None:
    script = Script(["role", "", 60.0, "never"], ["role", 0.5, "Hel", 0.1, "lo"])

    async def main() -> None:
        assert await read(wrapped(script)()) == [("role", 1.5), ("Hel", 1.5), ("lo", 1.6)]
        assert script.opened == [0, 1]
        assert sorted(script.closed) == [0, 1]
        assert all(script.closed_by)

    run_clean(main)


def test_r02_an_empty_or_role_only_item_does_not_win() -> None:
    script = Script(["role", 5.0, "late"], [0.1, "", "role", 0.4, "first"])

    async def main() -> None:
        assert [item for item, _ in await read(wrapped(script)())] == ["", "role", "first"]

    run_clean(main)


def test_r02_without_first_any_item_is_meaningful() -> None:
    script = Script(["role", 5.0, "late"])

    async def main() -> None:
        stream = hedger().wrap(script.stream, key="step", effect=Effect.READ_ONLY)()
        assert await anext(stream) == "role"
        assert now() == 0.0
        await stream.aclose()

    run_clean(main)


def test_r02_an_empty_stream_loses_to_one_that_answers() -> None:
    script = Script(["role", 0.2], ["answer"])

    async def main() -> None:
        assert await read(wrapped(script)()) == [("answer", 0.2)]

    run_clean(main)


def test_r02_an_empty_stream_is_the_answer_when_nothing_else_answers() -> None:
    script = Script(["role", 0.2], [ConnectionError()], ["role", 0.1, ConnectionError()])

    async def main() -> None:
        assert [item for item, _ in await read(wrapped(script)())] == ["role"]

    run_clean(main)


def test_r02_an_error_in_place_of_an_item_loses() -> None:
    script = Script([0.5, Denied()], ["role", 0.5, "answer"])

    async def main() -> None:
        assert await read(wrapped(script)()) == [("role", 1.0), ("answer", 1.0)]

    run_clean(main)


def test_r01_all_streams_fail_before_an_item() -> None:
    first = ConnectionError("first")
    script = Script([0.1, first], [0.1, ConnectionError()], [0.1, Denied()])

    async def main() -> None:
        with pytest.raises(ConnectionError, match="first") as caught:
            await read(wrapped(script)())
        assert caught.value is first
        assert isinstance(first.__cause__, AllAttemptsFailed)

    run_clean(main)


def test_r01_a_judge_that_raises_fails_the_request() -> None:
    def first(_: str) -> bool:
        raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await read(wrapped(Script(["item"]), first=first)())

    run_clean(main)


# --- after the commit ---------------------------------------------------------------------------------------------


def test_r03_an_error_mid_stream_is_raised_where_it_stands() -> None:
    error = ConnectionError("mid-stream")
    script = Script([0.5, "one", 0.1, "two", 0.1, error], ["other"])

    async def main() -> None:
        log = Log()
        with pytest.raises(ConnectionError) as caught:
            await read_into(log, wrapped(script)())
        assert caught.value is error
        assert error.__cause__ is None
        assert log == [("one", 0.5), ("two", 0.6)]
        assert now() == pytest.approx(0.7)
        assert script.opened == [0]

    run_clean(main)


def test_r03_items_before_an_error_reach_a_slow_caller_first() -> None:
    script = Script(["one", "two", ConnectionError()])

    async def main() -> None:
        log = Log()
        with pytest.raises(ConnectionError):
            await read_into(log, wrapped(script)(), pause=1)
        assert log == [("one", 0.0), ("two", 1.0)]

    run_clean(main)


def test_r03_a_hesitating_winner_is_not_hedged() -> None:
    script = Script([0.5, "one", 30.0, "two"], ["other"])

    async def main() -> None:
        assert await read(wrapped(script)()) == [("one", 0.5), ("two", 30.5)]
        assert script.opened == [0]

    run_clean(main)


@pytest.mark.parametrize("deadline", [1.2, 2.5])
def test_r12_the_deadline_ends_a_stream_before_and_after_the_commit(deadline: float) -> None:
    script = Script([60.0], [1.0, "one", 60.0, "two"], [60.0])

    async def main() -> None:
        log = Log()
        with pytest.raises(DeadlineExceeded) as caught:
            await read_into(log, wrapped(script, timeout=deadline)())
        assert now() == deadline
        assert log == ([("one", 2.0)] if deadline > 2 else [])
        assert caught.value.running == (("b#1",) if deadline > 2 else ("a#0", "b#1"))
        await asyncio.sleep(0)
        assert sorted(script.closed) == sorted(script.opened)

    run_clean(main)


def test_r12_a_winner_that_ignores_its_cancel_does_not_hold_its_caller_beyond_the_deadline() -> None:
    async def stubborn() -> AsyncIterator[str]:
        yield "one"
        while now() < 9.0:
            try:
                await asyncio.sleep(9.0 - now())
            except asyncio.CancelledError:
                continue

    async def main() -> None:
        log = Log()
        call = hedger().wrap(stubborn, key="step", effect=Effect.READ_ONLY, timeout=2.0)
        with pytest.raises(DeadlineExceeded):
            await read_into(log, call())
        assert log == [("one", 0.0)]
        assert now() == 2.0
        await asyncio.sleep(9)

    run_clean(main)


def test_back_pressure_reaches_the_winner_and_ends_with_it() -> None:
    script = Script([str(n) for n in range(3 * WINDOW)])

    async def main() -> None:
        stream = wrapped(script)()
        assert await anext(stream) == "0"
        await asyncio.sleep(0.5)
        assert len(script.given) == WINDOW
        rest = [item async for item in stream]
        assert rest == [str(n) for n in range(1, 3 * WINDOW)]
        assert script.closed == [0]

    run_clean(main)


# --- endings --------------------------------------------------------------------------------------------------------


def test_r07_an_early_break_closes_and_joins_the_winner() -> None:
    script = Script([60.0], ["one", 60.0, "two"])

    async def main() -> None:
        stream = wrapped(script)()
        async for item in stream:
            assert item == "one"
            break
        await stream.aclose()
        assert sorted(script.closed) == [0, 1]
        assert all(script.closed_by)
        assert now() == 1.0

    run_clean(main)


def test_r07_a_break_while_the_winner_is_held_back() -> None:
    script = Script([str(n) for n in range(3 * WINDOW)])

    async def main() -> None:
        stream = wrapped(script)()
        await anext(stream)
        await asyncio.sleep(0.5)
        await stream.aclose()
        assert script.closed == [0]

    run_clean(main)


def test_r07_aclose_from_another_task() -> None:
    script = Script(["one", 60.0])

    async def main() -> None:
        stream = wrapped(script)()
        assert await anext(stream) == "one"
        await asyncio.create_task(stream.aclose())
        assert script.closed == [0]
        assert script.closed_by == [True]

    run_clean(main)


def test_r07_a_stream_forgotten_half_read_is_closed_by_the_loop() -> None:
    script = Script(["one", 60.0])

    async def main() -> None:
        async def forget() -> None:
            async for _ in wrapped(script)():
                return

        await forget()
        for _ in range(10):
            await asyncio.sleep(0)
        assert script.closed == [0]

    run_clean(main)


def test_r07_a_stream_never_started_costs_nothing() -> None:
    script = Script(["one"])

    async def main() -> None:
        stream = wrapped(script)()
        await stream.aclose()
        assert script.opened == []

    run_clean(main)


@pytest.mark.parametrize("after", [0.5, 1.2, 2.5])
def test_r07_the_callers_cancel_closes_every_stream(after: float) -> None:
    script = Script([60.0], [1.0, "one", 60.0], [60.0])

    async def main() -> None:
        caller = asyncio.create_task(read(wrapped(script)()))
        await asyncio.sleep(after)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert sorted(script.closed) == sorted(script.opened)
        assert now() == after
        assert all(script.closed_by)

    run_clean(main)


def test_r06_a_loser_whose_cancel_is_swallowed_stops_at_its_next_item() -> None:
    """Python 3.11's `asyncio.wait_for` loses cancels; the flag is looked at after every item."""
    closed: list[float] = []

    async def stream() -> AsyncIterator[str]:
        active = current_attempt()
        assert active is not None
        if active.number:
            yield "winner"
            return
        try:
            while True:
                try:
                    await asyncio.sleep(1.3)
                except asyncio.CancelledError:
                    await asyncio.sleep(0.2)
                yield ""
        finally:
            closed.append(now())

    async def main() -> None:
        call = hedger().wrap(stream, key="step", effect=Effect.READ_ONLY, first=told)
        assert await read(call()) == [("winner", 1.0)]
        await asyncio.sleep(3)
        assert closed == [1.2]

    run_clean(main)


def test_the_whole_on_trio() -> None:
    import trio

    closed: list[int] = []

    async def stream() -> AsyncIterator[str]:
        active = current_attempt()
        assert active is not None
        me = active.number
        try:
            if me == 0:
                await trio.sleep(60)
            yield "role"
            await trio.sleep(0.5)
            yield "one"
            await trio.sleep(60)
        finally:
            closed.append(me)

    async def main(opened: Hedger) -> None:
        items: AsyncIterator[str] = opened.wrap(stream, key="step", effect=Effect.READ_ONLY, first=told)()
        assert [await anext(items), await anext(items)] == ["role", "one"]
        assert trio.current_time() == 1.5
        with trio.move_on_after(1):
            await anext(items)
        assert sorted(closed) == [0, 1]

    run_clean_on_trio(main)


# --- the pipe -------------------------------------------------------------------------------------------------------


def test_a_pipe_that_is_closed_gives_what_it_holds_and_then_ends() -> None:
    async def main() -> None:
        pipe: Pipe[int] = Pipe(AsyncioSpawner(asyncio.get_running_loop()))
        pipe.put(1)
        pipe.close()
        assert await pipe.ready()
        assert pipe.take() == 1
        assert not await pipe.ready()
        await pipe.room()

    run_clean(main)


def test_a_pipe_has_room_again_when_half_is_taken() -> None:
    async def main() -> None:
        pipe: Pipe[int] = Pipe(AsyncioSpawner(asyncio.get_running_loop()))
        for n in range(WINDOW):
            pipe.put(n)
        waits = asyncio.create_task(pipe.room())
        await asyncio.sleep(1)
        for _ in range(WINDOW // 2):
            pipe.take()
        await asyncio.sleep(1)
        assert not waits.done()
        pipe.take()
        await asyncio.sleep(1)
        assert waits.done()

    run_clean(main)


@pytest.mark.parametrize("error", [BadRequest(), ValueError()])
def test_a_source_that_cannot_be_opened_is_the_requests_failure(error: Exception) -> None:
    async def main() -> None:
        with pytest.raises(type(error)) as caught:
            await read(wrapped(Script([error]))())
        assert caught.value is error

    run_clean(main)
