"""The contract of `Spawner`: tasks of their own, exact timers, flags that one task awaits."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import anyio
import anyio.to_thread

from agent_hedge.core.ports import Spawner

Play = Callable[[Callable[[Spawner], Awaitable[Any]]], Any]

_seen: ContextVar[str] = ContextVar("seen", default="nothing")


async def asleep(spawner: Spawner, until: float) -> None:
    """Sleep on the spawner's own timer."""
    flag = spawner.waiter()
    timer = spawner.call_at(until, lambda: spawner.wake(flag))
    try:
        await flag
    finally:
        timer.cancel()


class SpawnerSuite:
    """Give it a fixture `play`: it calls an async function with a spawner, in virtual time that begins at 0."""

    def test_r06_a_task_starts_without_its_spawner_waiting(self, play: Play) -> None:
        async def main(spawner: Spawner) -> list[str]:
            order: list[str] = []

            async def work() -> None:
                order.append("begun")
                await asleep(spawner, 1.0)
                order.append("ended")

            task = spawner.spawn(work(), name="work")
            order.append("spawned")
            assert not task.done()
            await spawner.join([task])
            assert task.done()
            assert spawner.now() == 1.0
            return order

        assert sorted(play(main)) == ["begun", "ended", "spawned"]

    def test_r06_a_task_has_a_copy_of_the_context(self, play: Play) -> None:
        async def main(spawner: Spawner) -> list[str]:
            seen: list[str] = []

            async def work() -> None:
                seen.append(_seen.get())
                _seen.set("the task's")

            _seen.set("the caller's")
            task = spawner.spawn(work(), name="work")
            await spawner.join([task])
            seen.append(_seen.get())
            return seen

        assert play(main) == ["the caller's", "the caller's"]

    def test_r07_a_cancel_is_raised_at_the_await_and_can_be_told_from_outside(self, play: Play) -> None:
        async def main(spawner: Spawner) -> list[object]:
            seen: list[object] = []

            async def work() -> None:
                try:
                    await asleep(spawner, 5.0)
                except spawner.cancelled:
                    seen.append(("cancelled", spawner.now(), spawner.is_cancelled()))
                    raise

            task = spawner.spawn(work(), name="work")
            await asleep(spawner, 2.0)
            task.cancel()
            await spawner.join([task])
            seen.append(spawner.now())
            task.cancel()  # again, when it is over: nothing
            return seen

        assert play(main) == [("cancelled", 2.0, True), 2.0]

    def test_r07_a_task_cancelled_before_its_first_step_ends(self, play: Play) -> None:
        async def main(spawner: Spawner) -> float:
            task = spawner.spawn(asleep(spawner, 5.0), name="work")
            task.cancel()
            await spawner.join([task])
            return spawner.now()

        assert play(main) == 0.0

    def test_r06_a_join_may_be_given_up(self, play: Play) -> None:
        async def main(spawner: Spawner) -> tuple[float, bool]:
            task = spawner.spawn(asleep(spawner, 5.0), name="slow")
            with anyio.move_on_after(1.0, shield=True):
                await spawner.join([task])
            at, done = spawner.now(), task.done()
            await spawner.join([task])
            return at, done

        assert play(main) == (1.0, False)

    def test_r06_a_join_of_none_or_of_what_has_ended_takes_no_time(self, play: Play) -> None:
        async def main(spawner: Spawner) -> float:
            await spawner.join([])
            task = spawner.spawn(asleep(spawner, 1.0), name="work")
            await spawner.join([task])
            await spawner.join([task, task])
            return spawner.now()

        assert play(main) == 1.0

    def test_timers_fire_at_their_instants_in_order(self, play: Play) -> None:
        async def main(spawner: Spawner) -> list[tuple[str, float]]:
            fired: list[tuple[str, float]] = []

            def at(name: str) -> Callable[[], None]:
                return lambda: fired.append((name, spawner.now()))

            spawner.call_at(0.7, at("late"))
            spawner.call_at(0.1, at("early"))
            never = spawner.call_at(0.5, at("never"))
            spawner.call_at(0.1 + 0.2, never.cancel)
            spawner.call_at(0.1 + 0.2, at("canceller"))
            await asleep(spawner, 1.0)
            spawner.call_at(0.5, at("past"))
            await asleep(spawner, 1.1)
            return fired

        assert play(main) == [("early", 0.1), ("canceller", 0.1 + 0.2), ("late", 0.7), ("past", 1.0)]

    def test_r08_what_is_called_later_runs_in_the_context_it_was_given_in(self, play: Play) -> None:
        """A hedge is launched from a timer: it must know the run and the user of the call it hedges."""

        async def main(spawner: Spawner) -> list[str]:
            heard: list[str] = []

            def say() -> None:
                heard.append(_seen.get())

            _seen.set("ada")
            spawner.call_soon(say)
            spawner.call_soon_threadsafe(say)
            spawner.call_at(0.5, lambda: spawner.call_soon(say))
            _seen.set("bob")
            await asleep(spawner, 1.0)
            return heard

        assert play(main) == ["ada", "ada", "ada"]

    def test_a_timer_may_be_cancelled_after_it_fired(self, play: Play) -> None:
        async def main(spawner: Spawner) -> int:
            fired: list[int] = []
            timer = spawner.call_at(0.5, lambda: fired.append(1))
            await asleep(spawner, 1.0)
            timer.cancel()
            await asleep(spawner, 2.0)
            return len(fired)

        assert play(main) == 1

    def test_what_is_called_soon_runs_in_order_and_before_time_moves(self, play: Play) -> None:
        async def main(spawner: Spawner) -> list[tuple[int, float]]:
            ran: list[tuple[int, float]] = []
            for number in range(3):
                spawner.call_soon(lambda number=number: ran.append((number, spawner.now())))  # type: ignore[misc]
            assert ran == []
            await asleep(spawner, 1.0)
            return ran

        assert play(main) == [(0, 0.0), (1, 0.0), (2, 0.0)]

    def test_any_thread_may_call_and_read_the_clock(self, play: Play) -> None:
        async def main(spawner: Spawner) -> tuple[float, bool]:
            flag, threads = spawner.waiter(), list[threading.Thread]()

            def called() -> None:
                threads.append(threading.current_thread())
                spawner.wake(flag)

            def call() -> float:
                spawner.call_soon_threadsafe(called)
                return spawner.now()

            at = await anyio.to_thread.run_sync(call)
            await flag
            return at, threads == [threading.current_thread()]

        assert play(main) == (0.0, True)

    def test_a_flag_may_be_set_before_it_is_awaited_and_twice(self, play: Play) -> None:
        async def main(spawner: Spawner) -> float:
            flag = spawner.waiter()
            spawner.wake(flag)
            spawner.wake(flag)
            await flag
            return spawner.now()

        assert play(main) == 0.0

    def test_a_flag_whose_waiter_was_cancelled_may_still_be_set(self, play: Play) -> None:
        async def main(spawner: Spawner) -> None:
            flag = spawner.waiter()

            async def work() -> None:
                await flag

            task = spawner.spawn(work(), name="work")
            await asleep(spawner, 1.0)
            task.cancel()
            await spawner.join([task])
            spawner.wake(flag)

        play(main)
