"""Runs: one deadline and two purses, for branches, threads, nested runs (R12, R13)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator
from contextvars import copy_context
from typing import Any

import pytest
import trio

from agent_hedge import DeadlineExceeded, Effect, Hedger, current_attempt, current_run
from agent_hedge.core.scope import RECOVERY_FLOOR, RECOVERY_SHARE, Run, rail
from agent_hedge.errors import HedgeError
from tests.conftest import HUNG_S
from tests.engine.kit import hedger, now, run_clean, run_clean_on_trio


def number() -> int:
    active = current_attempt()
    assert active is not None
    return active.number


def step(opened: Hedger, fn: Any = None, **settings: Any) -> Any:
    async def hangs() -> str:
        await asyncio.sleep(60 if number() == 0 else 0.5)
        return f"from {number()}"

    given: dict[str, Any] = {"key": "step", "effect": Effect.READ_ONLY, "targets": ["a", "b"]}
    return opened.wrap(fn or hangs, **(given | settings))


# --- the deadline ----------------------------------------------------------------------------------------------------


def test_r12_one_absolute_deadline_for_all_steps() -> None:
    async def main() -> None:
        opened = hedger(30.0)

        async def slow(seconds: float) -> None:
            await asyncio.sleep(seconds)

        call = step(opened, slow)
        async with opened.run(deadline=10.0) as run:
            await call(6.0)
            assert run.remaining == 4.0
            with pytest.raises(DeadlineExceeded, match=r"4\.000 s; still running: a#0") as caught:
                await call(6.0)
            assert caught.value.running == ("a#0",)
            assert now() == 10.0
            assert run.remaining == 0.0
            with pytest.raises(DeadlineExceeded, match="nothing was dispatched"):
                await call(6.0)

    run_clean(main)


def test_r12_a_deadline_already_past_dispatches_nothing() -> None:
    async def main() -> None:
        calls: list[int] = []

        async def work() -> None:
            calls.append(1)

        opened = hedger()
        async with opened.run(deadline=0):
            with pytest.raises(DeadlineExceeded):
                await step(opened, work)()
        assert calls == []

    run_clean(main)


def test_r12_an_attempt_sees_the_nearer_of_run_and_timeout() -> None:
    async def main() -> None:
        opened = hedger()

        async def look() -> float:
            active = current_attempt()
            assert active is not None
            return active.deadline

        async with opened.run(deadline=5.0):
            assert await step(opened, look)() == 5.0
            assert await step(opened, look, timeout=2.0)() == 2.0
            assert await step(opened, look, timeout=9.0)() == 5.0

    run_clean(main)


def test_r12_the_hedgers_deadline_is_the_default_and_a_runs_own_comes_first() -> None:
    async def main() -> None:
        opened = hedger(deadline=7.0)
        async with opened.run() as run:
            assert run.remaining == 7.0
        async with opened.run(deadline=9.0) as run:
            assert run.remaining == 9.0

    run_clean(main)


def test_r12_a_run_inside_a_run_cannot_outlive_it_and_shares_its_purse() -> None:
    async def main() -> None:
        opened = hedger()
        async with opened.run(deadline=10.0, extra_attempts=2) as outer:
            async with opened.run(deadline=60.0, extra_attempts=9) as inner:
                assert current_run() is inner
                assert inner.remaining == 10.0
                for expected in ("from 1", "from 1"):
                    assert await step(opened)() == expected
                with pytest.raises(DeadlineExceeded):
                    await step(opened)()
            assert current_run() is outer
            assert (outer.extra_attempts_used, inner.extra_attempts_used) == (2, 2)
            assert outer.steps == inner.steps == 3
        assert current_run() is None

    run_clean(main)


def test_r12_a_refusal_of_the_inner_purse_gives_back_to_the_outer() -> None:
    async def main() -> None:
        opened = hedger()
        async with opened.run(extra_attempts=5) as outer, opened.run(extra_attempts=0, deadline=3.0):
            with pytest.raises(DeadlineExceeded):
                await step(opened)()
            assert outer.extra_attempts_used == 0

    run_clean(main)


def test_r12_threads_and_other_loops_are_held_to_the_same_instant() -> None:
    """The run's clock is another loop's; the deadline is carried over to the loop that runs the step."""

    def work() -> None:
        while not _active().cancelled:
            time.sleep(0.002)

    async def main() -> None:
        opened = hedger(30.0)
        call = opened.wrap(work, effect=Effect.READ_ONLY)
        started = time.monotonic()
        async with asyncio.timeout(HUNG_S), opened.run(deadline=0.3):
            with pytest.raises(DeadlineExceeded):
                await asyncio.to_thread(call)
        assert time.monotonic() - started >= 0.3
        opened.close()

    asyncio.run(main())


def _active() -> Any:
    active = current_attempt()
    assert active is not None
    return active


def test_r12_trio_threads_too() -> None:
    def work() -> None:
        while not _active().cancelled:
            time.sleep(0.002)

    async def main() -> None:
        async with hedger(30.0) as opened:
            call = opened.wrap(work, effect=Effect.READ_ONLY)
            async with opened.run(deadline=0.3) as run:
                with pytest.raises(DeadlineExceeded):
                    await trio.to_thread.run_sync(call)
                assert await trio.to_thread.run_sync(lambda: run.remaining) == 0.0

    trio.run(main)


# --- the purses ------------------------------------------------------------------------------------------------------


def test_r13_ten_parallel_branches_on_three_extra_attempts_get_exactly_three() -> None:
    async def main() -> None:
        opened = hedger()
        async with opened.run(deadline=10.0, extra_attempts=3) as run:
            answers = await asyncio.gather(*(step(opened)() for _ in range(10)), return_exceptions=True)
            assert answers.count("from 1") == 3
            assert sum(isinstance(answer, DeadlineExceeded) for answer in answers) == 7
            assert run.extra_attempts_used == 3
            assert run.steps == 10

    run_clean(main)


def test_r13_ten_threads_on_three_extra_attempts_get_exactly_three() -> None:
    attempts: list[int] = []
    release = threading.Event()
    barrier = threading.Barrier(10)

    def work() -> str:
        active = _active()
        attempts.append(active.number)
        if active.number == 0:
            release.wait(HUNG_S)
        return f"from {active.number}"

    opened = hedger(0.05)
    call = opened.wrap(work, effect=Effect.READ_ONLY)
    answers: list[str] = []

    def caller(context: Any) -> None:
        barrier.wait(HUNG_S)
        answers.append(context.run(call))

    with opened.run(extra_attempts=3) as run:
        threads = [threading.Thread(target=caller, args=(copy_context(),)) for _ in range(10)]
        for thread in threads:
            thread.start()
        give_up = time.monotonic() + HUNG_S
        while len(answers) < 3 and time.monotonic() < give_up:
            time.sleep(0.005)
        time.sleep(0.1)  # real time: a fourth hedge would have been due long ago
        release.set()
        for thread in threads:
            thread.join(HUNG_S)
        assert sorted(answers) == ["from 0"] * 7 + ["from 1"] * 3
        assert sum(attempt > 0 for attempt in attempts) == 3
        assert run.extra_attempts_used == 3
    opened.close()


def test_r13_no_purse_no_hedge() -> None:
    async def main() -> None:
        opened = hedger()
        async with opened.run(extra_attempts=0, deadline=5.0) as run:
            with pytest.raises(DeadlineExceeded, match="still running: a#0"):
                await step(opened)()
            assert run.extra_attempts_used == 0

    run_clean(main)


def test_r13_the_default_purse_is_the_rail_of_the_declared_steps() -> None:
    opened = hedger()
    share = opened.budget.share
    with opened.run() as run:
        assert run.extra_attempts == rail(20, share)
    with opened.run(steps=50) as run:
        assert run.extra_attempts == rail(50, share)
    with Hedger(extra_attempts=4).run() as run:
        assert run.extra_attempts == 4
    with Hedger(extra_attempts=4).run(extra_attempts=0) as run:
        assert run.extra_attempts == 0


@pytest.mark.parametrize(("steps", "expected"), [(20, 3), (10, 2), (50, 6)])
def test_r13_the_rail(steps: int, expected: int) -> None:
    """ceil(n b + 2 sqrt(n b)) at b = 5 %."""
    assert rail(steps, 0.05) == expected


def test_r13_recoveries_have_a_purse_of_their_own() -> None:
    async def main() -> None:
        opened = hedger()

        async def broken() -> None:
            raise ConnectionError

        recovered = 0
        async with opened.run(extra_attempts=0) as run:
            for n in range(1, 21):
                with pytest.raises(ConnectionError):
                    await step(opened, broken)()
                allowed = RECOVERY_SHARE * n + RECOVERY_FLOOR
                assert run.recoveries_used <= allowed
                recovered = run.recoveries_used
            assert recovered == int(RECOVERY_SHARE * 20 + RECOVERY_FLOOR)
            assert run.extra_attempts_used == 0

    run_clean(main)


def test_r13_what_a_later_gate_refuses_is_given_back() -> None:
    async def main() -> None:
        opened = hedger(mode="shadow")
        async with opened.run(extra_attempts=3, deadline=5.0) as run:
            with pytest.raises(DeadlineExceeded):
                await step(opened)()
            assert run.extra_attempts_used == 0

    run_clean(main)


# --- scopes ----------------------------------------------------------------------------------------------------------


def test_a_run_reports_what_it_used() -> None:
    async def main() -> None:
        opened = hedger()
        async with opened.run(key="thread-1", deadline=10.0, extra_attempts=3, tenant="acme") as run:
            await step(opened)()
            report = run.report()
        expected = {
            "key": "thread-1",
            "generation": 0,
            "elapsed_s": 1.5,
            "remaining_s": 8.5,
            "steps": 1,
            "extra_attempts": 3,
            "extra_attempts_used": 1,
            "recoveries_used": 0,
            "answered": {"b": 1},
        }
        assert {name: report[name] for name in expected} == expected
        assert run.principal == "acme"

    run_clean(main)


def test_a_batch_run_never_hedges() -> None:
    async def main() -> None:
        opened = hedger()
        async with opened.run(deadline=5.0, priority="batch"):
            with pytest.raises(DeadlineExceeded, match="still running: a#0"):
                await step(opened)()

    run_clean(main)


def test_a_run_is_entered_once() -> None:
    scope = hedger().run()
    with scope:
        pass
    with pytest.raises(HedgeError, match="once"), scope:
        pass


def test_a_run_left_in_another_context_keeps_its_bodys_error() -> None:
    async def main() -> None:
        opened = hedger()

        async def fixture() -> AsyncGenerator[Run, None]:
            async with opened.run() as run:
                yield run

        generator = fixture()
        assert await anext(generator)
        await asyncio.create_task(generator.aclose())
        assert current_run() is not None  # this context entered it; the other could not leave it here

    run_clean(main)


def test_trio_runs() -> None:
    async def main(opened: Hedger) -> tuple[float, str]:
        async def hangs() -> str:
            await trio.sleep(60 if number() == 0 else 0.5)
            return f"from {number()}"

        async with opened.run(deadline=10.0, extra_attempts=1) as run:
            answer = await step(opened, hangs)()
            assert run.extra_attempts_used == 1
            with pytest.raises(DeadlineExceeded):
                await step(opened, hangs)()
            assert trio.current_time() == 10.0
        return 1.5, answer

    assert run_clean_on_trio(main) == (1.5, "from 1")
