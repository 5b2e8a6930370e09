"""First calls count apart (R16): which are cold, and that no threshold ever hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from agent_hedge import Effect, Hedger, Quantile
from agent_hedge.core.step import StepKey
from agent_hedge.latency import FirstCalls, LatencyBook
from tests.engine.kit import now, run_clean

KEY, OTHER = StepKey(node="step"), StepKey(node="other")
FAST_S, COLD_S = 0.5, 20.0


class Heard:
    """A process's first calls, told by launch and end; the book below says how many of them are cold."""

    def __init__(self) -> None:
        self.book = LatencyBook()
        self.calls = FirstCalls(self.book)

    def answer(self, launched: float, at: float, target: str = "a", key: StepKey = KEY) -> None:
        self.calls.record(key, target, at - launched, at)

    def stop(self, launched: float, at: float, target: str = "a", key: StepKey = KEY) -> None:
        self.calls.record_censored(key, target, at - launched, at)

    def known(self, target: str = "a", key: StepKey = KEY) -> tuple[int, int]:
        """Return (cold, warm)."""
        return self.book.learning(key, target, 100.0, cold=True)[0], self.book.learning(key, target, 100.0)[0]


def test_of_sequential_calls_only_the_first_is_cold() -> None:
    heard = Heard()
    for number in range(5):
        heard.answer(launched=0.7 * number, at=0.7 * (number + 1))
    assert heard.known() == (1, 4)


@pytest.mark.parametrize("start", [0.0, 3e6])
def test_a_call_launched_in_the_instant_of_the_first_answer_is_warm(start: float) -> None:
    """The launch is told by a difference of floats, which may be off by a rounding: below, by 1e-16 to 5e-10 s."""
    for tenths in range(1, 200):
        heard = Heard()
        first = start + tenths / 10
        heard.answer(launched=start, at=first)
        heard.answer(launched=first, at=first + 0.7)
        assert heard.known()[1] == 1, tenths


def test_what_was_launched_before_the_first_answer_is_cold_whenever_it_ends() -> None:
    heard = Heard()
    heard.answer(launched=1.0, at=2.0)
    heard.answer(launched=2.0, at=3.0)
    heard.answer(launched=1.5, at=9.0)
    assert heard.known() == (2, 1)
    heard.answer(launched=5.0, at=10.0)
    assert heard.known() == (2, 2)  # a straggler among the cold ones does not make the target cold again


def test_three_are_cold_and_no_more() -> None:
    heard = Heard()
    for _ in range(5):
        heard.answer(launched=1.0, at=3.0)
    assert heard.known() == (3, 2)


def test_a_stopped_call_is_cold_too_but_warms_nothing() -> None:
    heard = Heard()
    heard.stop(launched=0.0, at=1.0)
    heard.stop(launched=1.0, at=2.0)
    assert heard.known() == (2, 0)
    heard.answer(launched=2.0, at=3.0)
    heard.stop(launched=3.0, at=4.0)
    assert heard.known() == (3, 1)


def test_a_target_that_never_answers_is_learnt_from_the_fourth_call_on() -> None:
    heard = Heard()
    for number in range(5):
        heard.stop(launched=number, at=number + 1)
    assert heard.known() == (3, 2)


def test_targets_are_warm_each_for_itself_and_for_every_step() -> None:
    heard = Heard()
    heard.answer(launched=0.0, at=1.0)
    heard.answer(launched=1.0, at=2.0, key=OTHER)
    heard.answer(launched=1.0, at=2.0, target="b")
    assert heard.known(key=OTHER) == (0, 1)
    assert heard.known("b") == (1, 0)


def test_what_a_caller_calls_cold_stays_cold() -> None:
    heard = Heard()
    heard.answer(launched=0.0, at=1.0)
    heard.calls.record(KEY, "a", 1.0, 3.0, cold=True)
    heard.calls.record_censored(KEY, "a", 1.0, 3.0, cold=True)
    assert heard.known() == (3, 0)


# --- behind a hedger --------------------------------------------------------------------------------------------------


def learnt(first: Callable[[int], float], parallel: int, calls: int) -> tuple[int, float | None]:
    """Return the samples and the median that a hedger knows after `calls`, the first of which ran in parallel."""

    async def main() -> tuple[int, float | None]:
        hedger = Hedger(policy=Quantile(0.9))
        call = hedger.wrap(asyncio.sleep, key="step", effect=Effect.READ_ONLY, targets=["a", "b"])
        await asyncio.gather(*(call(first(number)) for number in range(parallel)))
        for _ in range(calls - parallel):
            await call(FAST_S)
        known = hedger.book.learning(KEY, "a", now())[0]
        return known, hedger.book.quantile(KEY, "a", 0.999, now())

    return run_clean(main)


def test_200_warm_up_calls_teach_197_when_three_come_first() -> None:
    assert learnt(lambda _: FAST_S, parallel=3, calls=200) == (197, None)


def test_three_slow_first_calls_do_not_move_the_threshold() -> None:
    known, threshold = learnt(lambda _: COLD_S, parallel=3, calls=203)
    assert known == 200
    assert threshold == pytest.approx(FAST_S, rel=0.01)


def test_the_fourth_of_a_crowd_is_learnt_from() -> None:
    known, threshold = learnt(lambda _: COLD_S, parallel=4, calls=203)
    assert known == 200
    assert threshold == pytest.approx(COLD_S, rel=0.01)
