"""The public face: wrap, settings and their precedence, status, prime, close, forced and forbidden hedges."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from agent_hedge import (
    AllAttemptsFailed,
    DeadlineExceeded,
    Effect,
    Fixed,
    FleetBudget,
    Hedger,
    Never,
    Quantile,
    current_attempt,
)
from agent_hedge.core.events import AttemptRefused, AttemptStarted, Event, Reason
from agent_hedge.core.step import StepKey
from agent_hedge.errors import HedgeError
from agent_hedge.latency import LatencyBook
from tests.engine.kit import AMPLE, hedger, now, run_clean, run_clean_on_trio

ENVIRONMENT = ("AGENT_HEDGE_STORE", "AGENT_HEDGE_MODE", "AGENT_HEDGE_SHARE", "AGENT_HEDGE_FLEET")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def number() -> int:
    active = current_attempt()
    assert active is not None
    return active.number


async def hangs() -> str:
    """The primary hangs, a hedge answers."""
    await asyncio.sleep(60 if number() == 0 else 0.5)
    return f"from {number()}"


def wrap(opened: Hedger, fn: Any = hangs, **settings: Any) -> Any:
    given: dict[str, Any] = {"key": "step", "effect": Effect.READ_ONLY, "targets": ["a", "b"]}
    return opened.wrap(fn, **(given | settings))


class Ears:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    @property
    def reasons(self) -> list[Reason]:
        return [event.reason for event in self.events if isinstance(event, AttemptRefused)]

    @property
    def started(self) -> int:
        return sum(isinstance(event, AttemptStarted) for event in self.events)


# --- wrap ------------------------------------------------------------------------------------------------------------


def test_wrap_is_a_decorator_with_and_without_settings() -> None:
    opened = hedger()

    @opened.wrap(effect=Effect.READ_ONLY, key="x")
    async def one() -> int:
        return 1

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")

        @opened.wrap
        async def two() -> int:
            return 2

    async def main() -> list[int]:
        return [await one(), await two()]

    assert run_clean(main) == [1, 2]


@pytest.mark.parametrize("effect", [Effect.READ_ONLY, Effect.IDEMPOTENT, Effect.KEYED, "read_only"])
def test_r09_a_safe_effect_is_hedged(effect: Any) -> None:
    async def main() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call = wrap(hedger(), effect=effect)
        assert await call() == "from 1"

    run_clean(main)


@pytest.mark.parametrize("settings", [{}, {"effect": Effect.UNKNOWN}, {"effect": Effect.ONCE}, {"effect": "once"}])
def test_r09_without_a_safe_effect_nothing_is_ever_hedged_or_repeated_and_one_warning_says_so(settings: Any) -> None:
    ears = Ears()
    calls: list[int] = []

    async def pay(fail: bool) -> str:
        calls.append(number())
        await asyncio.sleep(30)
        if fail:
            raise ConnectionError
        return "paid"

    async def main() -> None:
        opened = hedger(observers=[ears])
        with pytest.warns(UserWarning, match="'pay' is wrapped with effect.*never hedged") as caught:
            call = opened.wrap(pay, key="pay", targets=["a", "b"], **settings)
        assert [warning.filename for warning in caught] == [__file__]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert await call(False) == "paid"
            with pytest.raises(ConnectionError):
                await call(True)
        assert calls == [0, 0]
        assert set(ears.reasons) == {Reason.BARRED}

    run_clean(main)


def test_a_call_without_targets_counts_as_independent_of_itself() -> None:
    async def main() -> None:
        assert await hedger().wrap(hangs, effect=Effect.READ_ONLY)() == "from 1"

    run_clean(main)


def test_one_target_is_no_second_place_to_go_and_its_copies_are() -> None:
    from agent_hedge import Target

    async def main() -> None:
        with pytest.raises(DeadlineExceeded):
            await wrap(hedger(), targets="a", timeout=5.0)()
        assert await wrap(hedger(), targets=Target("a", copies=2))() == "from 1"

    run_clean(main)


def test_the_policy_of_the_call_comes_before_the_nodes_and_that_before_the_hedgers() -> None:
    async def main() -> None:
        opened = hedger(policy=Never(), nodes={"node": Fixed(2.0)})
        given: list[tuple[dict[str, Any], float]] = [
            ({"key": "node", "policy": Fixed(1.0)}, 1.5),
            ({"key": "node"}, 2.5),
            ({"key": "other", "policy": Fixed(1.0)}, 1.5),
        ]
        for settings, at in given:
            start = now()
            await wrap(opened, **settings)()
            assert now() - start == at
        with pytest.raises(DeadlineExceeded):
            await wrap(opened, key="other", timeout=9.0)()

    run_clean(main)


def test_the_default_policy_learns_before_it_hedges() -> None:
    ears = Ears()

    async def main() -> None:
        opened = Hedger(observers=[ears])
        with pytest.raises(DeadlineExceeded):
            await wrap(opened, timeout=9.0)()
        assert ears.reasons == [Reason.COLD]
        assert ears.events[0].step_id

    run_clean(main)


def test_r01_recover_widens_what_is_recoverable() -> None:
    async def broken() -> str:
        if number() == 0:
            raise LookupError
        return "recovered"

    async def main() -> None:
        with pytest.raises(LookupError):
            await wrap(hedger(), broken)()
        assert await wrap(hedger(), broken, recover=LookupError)() == "recovered"
        assert await wrap(hedger(), broken, recover=(KeyError, LookupError))() == "recovered"

    run_clean(main)


def test_the_fleets_budget_bounds_the_hedges() -> None:
    async def main() -> None:
        opened = hedger(budget=FleetBudget())
        answers = [await wrap(opened, timeout=5.0)() for _ in range(2)]
        with pytest.raises(DeadlineExceeded):
            await wrap(opened, timeout=5.0)()
        assert answers == ["from 1", "from 1"]

    run_clean(main)


# --- settings and where they come from -------------------------------------------------------------------------------


def test_the_environment_is_heard_by_from_env(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_HEDGE_SHARE", "0.25")
    monkeypatch.setenv("AGENT_HEDGE_FLEET", "blue")
    opened = Hedger.from_env()
    assert (opened.modes.share, opened.modes.fleet) == (0.25, "blue")
    assert (Hedger().modes.share, Hedger().modes.fleet) == (1.0, "")


def test_an_argument_comes_before_the_environment_and_that_before_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Hedger.from_env().modes.share == 1.0
    monkeypatch.setenv("AGENT_HEDGE_SHARE", "0.25")
    monkeypatch.setenv("AGENT_HEDGE_FLEET", "blue")
    monkeypatch.setenv("AGENT_HEDGE_STORE", "mysql://no")
    opened = Hedger.from_env(store=None, share=0.5, fleet="green")
    assert (opened.modes.share, opened.modes.fleet) == (0.5, "green")


@pytest.mark.parametrize(
    ("code", "environment", "mode"),
    [
        ("on", "", "on"), ("on", "on", "on"), ("on", "shadow", "shadow"), ("on", "off", "off"),
        ("shadow", "on", "shadow"), ("shadow", "off", "off"), ("off", "on", "off"), ("off", "shadow", "off"),
        ("on", " OFF ", "off"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("build", [Hedger, Hedger.from_env])
def test_r21_the_strictest_mode_holds(
    monkeypatch: pytest.MonkeyPatch, build: Any, code: str, environment: str, mode: str
) -> None:
    monkeypatch.setenv("AGENT_HEDGE_MODE", environment)
    assert build(mode=code).status()["mode"] == mode


@pytest.mark.parametrize(("mode", "reason"), [("off", Reason.OFF), ("shadow", Reason.SHADOW)])
def test_r21_off_and_shadow_dispatch_no_hedge_and_keep_deadline_and_recovery(mode: str, reason: Reason) -> None:
    ears = Ears()

    async def broken() -> str:
        if number() == 0:
            raise ConnectionError
        return "recovered"

    async def main() -> None:
        opened = hedger(mode=mode, observers=[ears])
        with pytest.raises(DeadlineExceeded):
            await wrap(opened, timeout=3.0)()
        assert (ears.started, ears.reasons) == (1, [reason])
        assert await wrap(opened, broken)() == "recovered"

    run_clean(main)


def test_r21_the_mode_can_be_changed_while_it_runs() -> None:
    async def main() -> None:
        opened = hedger()
        call = wrap(opened, timeout=3.0)
        assert await call() == "from 1"
        opened.modes.set("off")
        with pytest.raises(DeadlineExceeded):
            await call()

    run_clean(main)


# --- status, prime, close --------------------------------------------------------------------------------------------


def test_status_tells_mode_counts_and_learning() -> None:
    async def main() -> dict[str, Any]:
        opened = hedger()
        for _ in range(4):
            await wrap(opened)()
        return opened.status()

    status = run_clean(main)
    assert status["mode"] == "on"
    assert status["mode_by"] == "code"
    assert status["last_60_minutes"] == {
        "requests": 4, "eligible": 4, "hedges": 4, "second_hedges": 0, "recoveries": 0, "wins": 4,
    }  # fmt: skip
    assert status["learning"] == {
        "step @ a": "1 of 200",
        "step @ b": "3 of 200",
    }  # `a` never answers: its first 3 are cold
    assert status["abandoned"] == 0


def test_prime_from_a_file_and_from_a_book(tmp_path: Path) -> None:
    file = tmp_path / "ttft.csv"
    file.write_text("ttft_ms\n" + "\n".join(str(100 + n % 50) for n in range(300)))

    async def main() -> None:
        opened = hedger(policy=Quantile(0.9))
        opened.prime(file, key="step", target="a")
        other = hedger(policy=Quantile(0.9))
        book = LatencyBook()
        book.merge(opened.book)
        other.prime(book)
        for primed in (opened, other):
            known = primed.book.quantile(StepKey(node="step"), "a", 0.9, now())
            assert known is not None
            assert known == pytest.approx(0.145, rel=0.02)
            start = now()
            assert await wrap(primed)() == "from 1"
            assert now() - start == pytest.approx(known + 0.5)

    run_clean(main)


def test_a_closed_hedger_can_be_used_again() -> None:
    opened = hedger()
    call = opened.wrap(lambda: 1, effect=Effect.READ_ONLY)
    assert call() == 1
    opened.close()
    opened.close()
    assert call() == 1
    opened.close()


def test_leaving_the_hedger_joins_its_losers() -> None:
    closed: list[float] = []

    async def slow_loser() -> None:
        if number():
            return
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(0.4)
            closed.append(now())
            raise

    async def main() -> None:
        async with hedger() as opened:
            await wrap(opened, slow_loser)()
            assert now() == 1.0
        assert closed == [1.4]

    run_clean(main)


def test_trio_needs_the_hedger_open_and_works_inside() -> None:
    import trio

    async def hangs_on_trio() -> str:
        await trio.sleep(60 if number() == 0 else 0.5)
        return f"from {number()}"

    async def main(opened: Hedger) -> float:
        assert await wrap(opened, hangs_on_trio)() == "from 1"
        with pytest.raises(HedgeError, match="async with"):
            await wrap(hedger(), hangs_on_trio)()
        return trio.current_time()

    assert run_clean_on_trio(main) == 1.5


def test_trio_an_error_of_the_body_comes_out_as_it_is() -> None:
    import trio

    from agent_hedge.testing.clock import run_virtual

    async def main() -> None:
        with pytest.raises(LookupError):
            async with hedger():
                raise LookupError

    run_virtual(main, backend="trio")

    async def stubborn() -> None:
        if number():
            return
        with trio.CancelScope(shield=True):
            await trio.sleep(9)

    async def leaves_a_loser_behind() -> float:
        async with hedger() as opened:
            await wrap(opened, stubborn)()
        return trio.current_time()

    assert run_virtual(leaves_a_loser_behind, backend="trio") == 9.0  # trio's nursery waits; nothing can be left behind


# --- forced and forbidden --------------------------------------------------------------------------------------------


async def either() -> str:
    me = number()
    await asyncio.sleep([0.5, 3.0][me])
    return f"from {me}"


async def items() -> AsyncIterator[str]:
    me = number()
    await asyncio.sleep([0.5, 3.0][me])
    yield f"from {me}"
    yield "end"


def test_forced_the_named_attempt_wins(agent_hedge_force: int) -> None:
    ears = Ears()

    async def main() -> None:
        opened = Hedger(observers=[ears])  # a policy that is cold, a budget of two hedges
        for _ in range(5):
            assert await wrap(opened, either)() == f"from {agent_hedge_force}"
            stream = wrap(opened, items)()
            assert [item async for item in stream] == [f"from {agent_hedge_force}", "end"]
        assert ears.started == 20
        assert ears.reasons == []

    run_clean(main)


def test_forced_an_attempt_that_fails_cannot_win(agent_hedge_force: int) -> None:
    async def fails() -> str:
        me = number()
        await asyncio.sleep([0.5, 3.0][me])
        if me == agent_hedge_force:
            raise ConnectionError
        return f"from {me}"

    async def all_fail() -> str:
        raise ConnectionError(number())

    async def main() -> None:
        opened = Hedger()
        assert await wrap(opened, fails, targets=["a", "b"])() == f"from {1 - agent_hedge_force}"
        with pytest.raises(ConnectionError, match="0") as caught:
            await wrap(opened, all_fail)()
        assert isinstance(caught.value.__cause__, AllAttemptsFailed)

    run_clean(main)


def test_forced_deadline_effect_and_mode_still_hold(agent_hedge_force: int) -> None:
    ears = Ears()

    async def main() -> None:
        opened = Hedger(observers=[ears])
        with pytest.raises(DeadlineExceeded):
            await wrap(opened, either, timeout=0.25)()
        await asyncio.sleep(1)
        with pytest.warns(UserWarning, match="never hedged"):
            once = wrap(opened, either, effect=Effect.ONCE)
        assert await once() == "from 0"
        assert await wrap(Hedger(mode="off", observers=[ears]), either)() == "from 0"
        assert ears.reasons == [Reason.BARRED, Reason.OFF]

    run_clean(main)


def test_forced_every_attempt_settles_also_when_the_named_one_never_speaks(agent_hedge_force: int) -> None:
    from agent_hedge.core.events import AttemptEnded, StepClosed

    ears = Ears()

    async def one_hangs() -> str:
        if number() == agent_hedge_force:
            await asyncio.sleep(60)
        return "held"

    async def main() -> None:
        with pytest.raises(DeadlineExceeded):
            await wrap(Hedger(observers=[ears]), one_hangs, timeout=2.0)()
        await asyncio.sleep(1)
        assert sum(isinstance(event, AttemptEnded) for event in ears.events) == 2
        assert isinstance(ears.events[-1], StepClosed)

    run_clean(main)


def test_forced_sync_functions(agent_hedge_force: int) -> None:
    opened = Hedger()
    try:
        assert wrap(opened, lambda: f"from {number()}")() == f"from {agent_hedge_force}"
    finally:
        opened.close()


def test_off_no_step_hedges_and_recoveries_stay(agent_hedge_off: None) -> None:
    ears = Ears()

    async def broken() -> str:
        if number() == 0:
            raise ConnectionError
        return "recovered"

    async def main() -> None:
        opened = hedger(observers=[ears])
        with pytest.raises(DeadlineExceeded):
            await wrap(opened, timeout=3.0)()
        assert ears.reasons == [Reason.OFF]
        assert await wrap(opened, broken)() == "recovered"

    run_clean(main)


def test_ample_budgets_are_ample() -> None:
    assert FleetBudget(**AMPLE).floor == 10_000  # type: ignore[arg-type]
