"""Losers: joined within a grace, told twice, given up loudly; the winner never waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from agent_hedge import Effect
from agent_hedge.core.step import Verdict
from agent_hedge.engine.reaper import Reaper
from agent_hedge.engine.spawn import AsyncioSpawner
from agent_hedge.testing.clock import run_virtual
from agent_hedge.testing.scenario import Line, Played, Scenario
from tests.engine.kit import hedger, now, run_clean

STUBBORN = 2.0


@pytest.mark.parametrize("loser", [0, 1], ids=["the primary", "a hedge"])
def test_r06_a_loser_that_ignores_cancellation_for_2_s_delays_the_winner_by_nothing(loser: int) -> None:
    """A4: less than 20 ms; it is exactly 0."""
    delays = [5.0, 0.5] if loser == 0 else [1.5, 5.0]
    lines = [Line(f"t{n}", delay, n, ignores_cancel=STUBBORN * (n == loser)) for n, delay in enumerate(delays)]
    played = run_virtual(Scenario(*lines, policy=1.0).play)
    assert (played.winner, played.value, played.elapsed) == (1 - loser, 1 - loser, 1.5)
    assert {ending.number: (ending.verdict, ending.at) for ending in played.endings} == {
        1 - loser: (Verdict.WON, 1.5),
        loser: (Verdict.ABANDONED, 2.5),
    }


def test_r06_a_slow_teardown_within_the_grace_is_joined_not_abandoned() -> None:
    played = run_virtual(Scenario(Line("a", 5.0, ignores_cancel=0.9), Line("b", 0.5), policy=1.0).play)
    assert played.elapsed == 1.5
    assert played.verdicts == {0: Verdict.SUPERSEDED, 1: Verdict.WON}


class Task:
    """A task handle that ends when it is told."""

    def __init__(self) -> None:
        self.cancels: list[float] = []
        self.ended = False

    def cancel(self) -> None:
        self.cancels.append(now())

    def done(self) -> bool:
        return self.ended

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...
    def remove_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


def with_reaper(test: Any, **settings: Any) -> None:
    async def main() -> None:
        await test(Reaper(AsyncioSpawner(asyncio.get_running_loop()), **settings))

    run_clean(main)


def test_r06_it_is_cancelled_again_at_half_the_grace_and_then_given_up_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(reaper: Reaper) -> None:
        task, given_up = Task(), []
        reaper.take(task, "a#0 of step", lambda: given_up.append(now()))
        assert len(reaper) == 1
        await asyncio.sleep(9)
        assert task.cancels == [2.0]
        assert given_up == [4.0]
        assert reaper.abandoned == 1
        assert len(reaper) == 0

    with caplog.at_level(logging.WARNING):
        with_reaper(test, grace=4.0)
    assert [record.getMessage() for record in caplog.records] == [
        "attempt a#0 of step ignores its cancellation; abandoned after 4.0 s"
    ]


def test_r06_what_has_ended_is_forgotten() -> None:
    async def test(reaper: Reaper) -> None:
        task = Task()
        reaper.take(task, "a#0", lambda: pytest.fail("it has ended"))
        await asyncio.sleep(0.2)
        task.ended = True
        reaper.forget(task)
        reaper.forget(task)
        await asyncio.sleep(9)
        assert task.cancels == []
        assert (reaper.abandoned, len(reaper)) == (0, 0)

    with_reaper(test)


def test_r06_what_ends_unseen_is_not_called_abandoned() -> None:
    async def test(reaper: Reaper) -> None:
        task = Task()
        reaper.take(task, "a#0", lambda: pytest.fail("it has ended"))
        task.ended = True
        await asyncio.sleep(9)
        assert (reaper.abandoned, len(reaper)) == (0, 0)

    with_reaper(test)


def test_r06_beyond_the_limit_the_oldest_is_given_up_at_once() -> None:
    async def test(reaper: Reaper) -> None:
        given_up: list[int] = []
        for n in range(4):
            reaper.take(Task(), str(n), lambda n=n: given_up.append(n))  # type: ignore[misc]
        assert given_up == [0, 1]
        assert len(reaper) == 2
        await asyncio.sleep(9)
        assert given_up == [0, 1, 2, 3]

    with_reaper(test, limit=2)


def test_r06_a_join_waits_for_the_losers_of_one_run_or_of_all_at_most_the_grace() -> None:
    async def test(reaper: Reaper) -> None:
        mine, other, given_up = object(), object(), list[str]()
        tasks = {name: asyncio.create_task(asyncio.sleep(seconds)) for name, seconds in [("a", 0.3), ("b", 0.8)]}
        reaper.take(tasks["a"], "a", lambda: given_up.append("a"), mine)
        reaper.take(tasks["b"], "b", lambda: given_up.append("b"), other)
        assert reaper.owes(mine)
        await reaper.join(mine)
        assert now() == 0.3
        assert reaper.owes(other)
        assert not reaper.owes(mine)
        stuck = asyncio.create_task(asyncio.sleep(60))
        shielded = asyncio.create_task(_shield(stuck))
        reaper.take(shielded, "stuck", lambda: given_up.append("stuck"), mine)
        await reaper.join()
        assert now() == 1.3
        assert given_up == ["stuck"]
        stuck.cancel()
        await asyncio.wait([shielded, stuck])

    with_reaper(test)


async def _shield(task: asyncio.Task[None]) -> None:
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            continue


def test_r06_when_the_run_ends_its_losers_have_ended() -> None:
    async def main() -> None:
        opened, closed = hedger(), list[float]()

        async def work() -> None:
            from agent_hedge import current_attempt

            active = current_attempt()
            assert active is not None
            try:
                await asyncio.sleep(60 if active.number == 0 else 0.5)
            except asyncio.CancelledError:
                await asyncio.sleep(0.3)
                closed.append(now())
                raise

        call = opened.wrap(work, key="step", effect=Effect.READ_ONLY)
        async with opened.run():
            await call()
            assert now() == 1.5
            assert closed == []
        assert closed == [1.8]
        assert now() == 1.8

    run_clean(main)


def test_an_abandoned_attempt_is_counted_in_the_status() -> None:
    async def main() -> Played:
        return await Scenario(Line("a", 5.0, ignores_cancel=9.0), Line("b", 0.5), policy=1.0).play()

    assert run_virtual(main).verdicts[0] is Verdict.ABANDONED

    async def with_hedger() -> int:
        opened = hedger()

        async def work() -> None:
            from agent_hedge import current_attempt

            active = current_attempt()
            assert active is not None
            if active.number:
                return
            until = now() + 4.0
            while now() < until:
                try:
                    await asyncio.sleep(until - now())
                except asyncio.CancelledError:
                    continue

        await opened.wrap(work, key="step", effect=Effect.READ_ONLY)()
        await asyncio.sleep(5)
        return int(opened.status()["abandoned"])

    assert run_clean(with_hedger) == 1
