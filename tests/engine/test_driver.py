"""The driver: what the caller gets, what becomes of the attempts, on asyncio in virtual time."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar
from typing import Any

import pytest

from agent_hedge import AllAttemptsFailed, DeadlineExceeded, Effect, Hedger, current_attempt, current_run
from agent_hedge.core.classify import classify
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Failure
from agent_hedge.engine.driver import Driver
from agent_hedge.errors import AnswerRejected, AttemptCancelled
from tests.conftest import HUNG_S
from tests.engine.kit import BadRequest, Denied, Log, hedger, now, run_clean, run_clean_on_trio

colour: ContextVar[str] = ContextVar("colour", default="none")


def wrapped(fn: Any, opened: Hedger | None = None, **settings: Any) -> Any:
    return (opened or hedger()).wrap(fn, key="step", effect=Effect.READ_ONLY, targets=["a", "b", "c"], **settings)


def number() -> int:
    active = current_attempt()
    assert active is not None
    return active.number


# --- attempts -----------------------------------------------------------------------------------------------------


def test_r06_every_attempt_is_a_task_of_its_own_the_primary_too() -> None:
    async def main() -> None:
        tasks: list[Any] = [asyncio.current_task()]

        async def work() -> str:
            tasks.append(asyncio.current_task())
            await asyncio.sleep(1.5)
            return "ok"

        assert await wrapped(work)() == "ok"
        assert now() == 1.5
        assert len(set(tasks)) == 3

    run_clean(main)


def test_r08_each_attempt_has_its_own_copy_of_the_context() -> None:
    async def main() -> None:
        seen: list[str] = []

        async def work() -> None:
            seen.append(colour.get())
            colour.set(f"attempt {number()}")
            await asyncio.sleep(1.5)
            seen.append(colour.get())

        colour.set("caller")
        await wrapped(work)()
        assert seen == ["caller", "caller", "attempt 0"]
        assert colour.get() == "caller"
        assert current_attempt() is None

    run_clean(main)


def test_r08_each_attempt_knows_itself() -> None:
    async def main() -> None:
        seen: list[tuple[Any, ...]] = []

        async def work() -> None:
            active = current_attempt()
            assert active is not None
            seen.append((active.number, active.role, active.target.name, active.deadline))
            ids.add(active.id)
            await asyncio.sleep(1.5)

        ids: set[str] = set()
        await wrapped(work, timeout=9.0)()
        assert seen == [(0, "primary", "a", 9.0), (1, "hedge", "b", 9.0)]
        assert len(ids) == 2

    run_clean(main)


# --- what the caller gets -------------------------------------------------------------------------------------------


def test_r01_the_callers_error_is_the_primarys_own_with_its_own_traceback() -> None:
    async def main() -> None:
        first = ConnectionError("first")

        async def culprit() -> None:
            raise first if number() == 0 else ConnectionError("later")

        with pytest.raises(ConnectionError, match="first") as caught:
            await wrapped(culprit)()
        assert caught.value is first
        assert isinstance(first.__cause__, AllAttemptsFailed)
        assert [str(error) for error in first.__cause__.exceptions] == ["first", "later", "later"]
        assert any(entry.name == "culprit" for entry in caught.traceback)

    run_clean(main)


def test_r01_a_single_failure_is_raised_as_it_is() -> None:
    async def main() -> None:
        error = BadRequest()

        async def work() -> None:
            raise error

        with pytest.raises(BadRequest) as caught:
            await wrapped(work)()
        assert caught.value is error
        assert error.__cause__ is None
        assert error.__context__ is None

    run_clean(main)


def test_r01_a_fatal_hedge_leaves_the_answer_to_the_primary() -> None:
    async def main() -> None:
        async def work() -> str:
            if number():
                await asyncio.sleep(0.005)
                raise Denied
            await asyncio.sleep(0.3)
            return "answer"

        assert await wrapped(work, hedger(0.0))() == "answer"
        assert now() == 0.3

    run_clean(main)


def test_r01_accept_that_raises_is_a_failure_of_the_request() -> None:
    def accept(_: object) -> bool:
        raise ZeroDivisionError

    async def work() -> str:
        return "ok"

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await wrapped(work, accept=accept)()

    run_clean(main)


def test_r01_rejected_everywhere() -> None:
    async def work() -> str:
        return "no"

    async def main() -> None:
        with pytest.raises(AnswerRejected) as caught:
            await wrapped(work, accept=lambda value: value == "yes")()
        assert isinstance(caught.value.__cause__, AllAttemptsFailed)

    run_clean(main)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), pytest.fail.Exception("a test's outcome")])
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_r07_what_is_no_plain_exception_reaches_the_caller_at_once(error: BaseException, backend: str) -> None:
    async def work() -> None:
        raise error

    async def main(opened: Hedger | None = None) -> None:
        with pytest.raises(type(error)) as caught:
            await wrapped(work, opened)()
        assert caught.value is error

    run_clean(main) if backend == "asyncio" else run_clean_on_trio(main)


def test_r12_the_deadline_names_what_was_still_running() -> None:
    async def work() -> None:
        await asyncio.sleep(60)

    async def main() -> None:
        with pytest.raises(DeadlineExceeded, match=r"3\.000 s; still running: a#0, b#1, c#2") as caught:
            await wrapped(work, timeout=3.0)()
        assert now() == 3.0
        assert caught.value.elapsed == 3.0

    run_clean(main)


def test_r04_a_time_out_of_zero_dispatches_nothing() -> None:
    async def main() -> None:
        calls: list[int] = []

        async def work() -> None:
            calls.append(1)

        with pytest.raises(DeadlineExceeded, match="nothing was dispatched"):
            await wrapped(work, timeout=0)()
        assert calls == []

    run_clean(main)


# --- cancellation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after", [0.0, 0.5, 1.5, 2.5])
def test_r07_the_callers_cancel_cancels_and_joins_every_attempt(after: float) -> None:
    async def main() -> None:
        log = Log()

        async def work() -> None:
            me = number()
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.25)
                log(me)

        caller = asyncio.create_task(wrapped(work)())
        await asyncio.sleep(after)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert caller.cancelled()
        assert log == [(me, after + 0.25) for me in range(int(after + 1))]
        assert now() == after + 0.25

    run_clean(main)


def test_r07_a_caller_waits_for_a_stubborn_attempt_at_most_the_grace() -> None:
    async def main() -> None:
        async def work() -> None:
            while now() < 3.0:
                try:
                    await asyncio.sleep(3.0 - now())
                except asyncio.CancelledError:
                    continue

        caller = asyncio.create_task(wrapped(work)())
        await asyncio.sleep(0.5)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        assert now() == 1.5
        await asyncio.sleep(2)

    run_clean(main)


def test_r07_a_timeout_around_the_call_stays_a_timeout() -> None:
    async def main() -> None:
        ended: list[int] = []

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ended.append(number())

        with pytest.raises(TimeoutError) as caught:
            async with asyncio.timeout(2.5):
                await wrapped(work)()
        assert not isinstance(caught.value, DeadlineExceeded)
        assert sorted(ended) == [0, 1, 2]
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run_clean(main)


def test_r07_an_attempt_that_cancels_itself_has_failed_and_is_recovered_from() -> None:
    async def main() -> None:
        async def work() -> str:
            if number() == 0:
                raise asyncio.CancelledError
            return "recovered"

        assert await wrapped(work)() == "recovered"

    run_clean(main)


def test_r07_an_attempt_that_only_cancels_itself_fails_as_such_and_never_cancels_the_caller() -> None:
    async def main() -> None:
        async def work() -> None:
            raise asyncio.CancelledError

        with pytest.raises(AttemptCancelled):
            await wrapped(work)()

    run_clean(main)


@pytest.mark.parametrize("eager", [False, pytest.param(True, marks=pytest.mark.skipif(
    not hasattr(asyncio, "eager_task_factory"), reason="eager task factories came with Python 3.12"))])  # fmt: skip
def test_r07_what_cancels_all_tasks_of_a_loop_gets_no_new_attempt(eager: bool) -> None:
    async def main() -> None:
        started: list[int] = []

        async def work() -> None:
            started.append(number())
            await asyncio.sleep(60)

        caller = asyncio.create_task(wrapped(work)())
        await asyncio.sleep(0.5)
        (attempt,) = asyncio.all_tasks() - {caller, asyncio.current_task()}
        attempt.cancel()
        with pytest.raises(AttemptCancelled):
            await caller
        assert attempt.cancelled()
        assert started == [0]

    run_clean(main, eager=eager)


@pytest.mark.parametrize("with_caller", [False, True])
def test_r07_an_attempt_cancelled_by_others_before_its_first_step_does_not_strand_the_caller(with_caller: bool) -> None:
    async def main() -> None:
        started: list[int] = []

        async def work() -> None:
            started.append(number())

        caller = asyncio.create_task(wrapped(work)())
        await asyncio.sleep(0)
        (attempt,) = asyncio.all_tasks() - {caller, asyncio.current_task()}
        attempt.cancel()
        if with_caller:
            caller.cancel()
        with pytest.raises(asyncio.CancelledError if with_caller else AttemptCancelled):
            await caller
        assert attempt.cancelled()
        assert started == []

    run_clean(main)


def test_r08_trio_a_hedge_runs_in_its_callers_context_and_run() -> None:
    import trio

    seen: list[tuple[int, str, Run | None]] = []

    async def work() -> int:
        seen.append((number(), colour.get(), current_run()))
        await trio.sleep(60 * (number() == 0))
        return number()

    async def main(opened: Hedger) -> tuple[int, Run]:
        colour.set("red")
        async with opened.run() as run:
            return await wrapped(work, opened)(), run

    winner, run = run_clean_on_trio(main)
    assert winner == 1
    assert seen == [(0, "red", run), (1, "red", run)]


def test_r07_trio_a_cancelled_nursery_gets_no_new_attempt_and_no_group_leaks() -> None:
    import trio

    started: list[int] = []

    async def work() -> None:
        started.append(number())
        await trio.sleep(60)

    async def main(opened: Hedger) -> float:
        with trio.move_on_after(0.5) as scope:
            await wrapped(work, opened)()
        assert scope.cancelled_caught
        return trio.current_time()

    assert run_clean_on_trio(main) == 0.5

    async def outside() -> float:
        with trio.move_on_after(0.5) as scope:
            async with hedger() as opened:
                await wrapped(work, opened)()
        assert scope.cancelled_caught
        return trio.current_time()

    from agent_hedge.testing.clock import run_virtual

    assert run_virtual(outside, backend="trio") == 0.5
    assert started == [0, 0]


# --- losers -----------------------------------------------------------------------------------------------------------


def test_r06_a_losers_late_error_or_result_is_nobodys() -> None:
    async def main() -> None:
        async def work() -> str:
            me = number()
            try:
                await asyncio.sleep([60, 0.5, 60][me])
            except asyncio.CancelledError:
                raise RuntimeError("in the teardown") from None
            return str(me)

        assert await wrapped(work)() == "1"
        assert now() == 1.5

    run_clean(main)


def test_r06_a_loser_of_the_same_instant_is_closed_too() -> None:
    async def main() -> None:
        closed: list[int] = []

        async def work() -> str:
            me = number()
            try:
                await asyncio.sleep([2.0, 1.0][me])
                if me == 0:
                    raise ConnectionError
                return str(me)
            finally:
                closed.append(me)

        assert await wrapped(work)() == "1"
        assert sorted(closed) == [0, 1]

    run_clean(main)


def test_r10_a_claim_in_a_thread_elects_and_the_others_are_cancelled() -> None:
    async def main() -> None:
        log = Log()

        async def work() -> str:
            me = number()
            try:
                await asyncio.sleep([2.0, 60, 60][me])
                active = current_attempt()
                assert active is not None
                assert await asyncio.to_thread(active.claim)
                await asyncio.sleep(1.0)
            except asyncio.CancelledError:
                log("cancelled", me)
                raise
            return f"from {me}"

        assert await wrapped(work, hedger(1.5))() == "from 0"
        assert log == [("cancelled", 1, 2.0)]
        assert now() == 3.0

    run_clean(main)


def test_r10_at_most_one_of_many_claims_wins() -> None:
    async def main() -> None:
        won: list[int] = []

        async def work() -> None:
            active = current_attempt()
            assert active is not None
            await asyncio.sleep(3.0 - now())
            if await asyncio.to_thread(active.claim):
                won.append(active.number)
            await asyncio.sleep(0.1)

        await wrapped(work)()
        assert len(won) == 1

    run_clean(main)


# --- the driver's own doors -------------------------------------------------------------------------------------------


def test_outcomes_are_classified_once() -> None:
    async def main() -> None:
        opened = hedger()
        lane = opened._lane(_key(), opened_targets(), effect=Effect.READ_ONLY)
        driver: Driver[Any] = lane.driver(lambda _: asyncio.sleep(0))
        assert driver.outcome_of(ConnectionError()).failure is Failure.RECOVERABLE
        assert driver.outcome_of(Denied()).failure is Failure.TARGET
        assert driver.outcome_of(BadRequest()).failure is Failure.REQUEST

    run_clean(main)


def test_r07_control_flow_passes_through_as_the_winner() -> None:
    class Interrupt(Exception): ...

    async def main() -> None:
        opened = hedger()
        lane = opened._lane(
            _key(),
            opened_targets(),
            effect=Effect.READ_ONLY,
            classifier=lambda error: None if isinstance(error, Interrupt) else classify(error),
        )
        error = Interrupt()

        async def call(active: Any) -> None:
            await asyncio.sleep(1.5)
            raise error

        with pytest.raises(Interrupt) as caught:
            await lane.run(call)
        assert caught.value is error
        assert error.__cause__ is None
        assert now() == 1.5

    run_clean(main)


def _key() -> Any:
    from agent_hedge.core.step import StepKey

    return StepKey(node="step")


def opened_targets() -> Any:
    from agent_hedge.targets import as_targets

    return as_targets(["a", "b"])


def test_two_loops_in_two_threads_use_one_hedger() -> None:
    opened = hedger(0.02)
    answers: list[str] = []

    async def work() -> str:
        await asyncio.sleep(60 if number() == 0 else 0.0)
        return threading.current_thread().name

    call = wrapped(work, opened)

    def serve() -> None:
        answers.append(asyncio.run(call()))

    threads = [threading.Thread(target=serve, name=f"loop {n}") for n in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HUNG_S)
    assert sorted(answers) == ["loop 0", "loop 1"]
