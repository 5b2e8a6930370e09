"""Observers hear everything, in the attempt's own task where it matters, and can break nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from agent_hedge import Effect, current_attempt
from agent_hedge.core.events import AttemptEnded, AttemptStarted, Event, StepClosed
from agent_hedge.core.step import StepKey, Verdict
from agent_hedge.engine.funnel import NAP, Funnel
from tests.engine.kit import hedger, run_clean

EVENT = StepClosed(step_id="s", key=StepKey(node="n"), at=0.0)


class Ears:
    """Remembers what it heard; gives the context manager `scope` to every attempt."""

    def __init__(self, scope: Any = None) -> None:
        self.heard: list[Event] = []
        self.scope = scope

    def on_event(self, event: Event) -> AbstractContextManager[object] | None:
        self.heard.append(event)
        return self.scope(event) if self.scope and isinstance(event, AttemptStarted) else None


class Faulty:
    """Raises whatever it is asked; its scope too."""

    def on_event(self, event: Event) -> AbstractContextManager[object]:
        if isinstance(event, AttemptStarted):
            return self
        raise RuntimeError("observer")

    def __enter__(self) -> None:
        raise RuntimeError("enter")

    def __exit__(self, *_: object) -> None:
        raise AssertionError("what was never entered is not left")


def test_nobody_listens_is_falsy() -> None:
    assert not Funnel()
    assert Funnel([Ears()])


def test_r18_an_observer_that_raises_is_logged_once_and_fails_nothing(caplog: pytest.LogCaptureFixture) -> None:
    ears = Ears()

    async def main() -> None:
        async def work() -> str:
            await asyncio.sleep(1.5 - (current_attempt() is None))
            return "ok"

        call = hedger(observers=[Faulty(), ears]).wrap(work, key="step", effect=Effect.READ_ONLY)
        assert [await call(), await call()] == ["ok", "ok"]

    with caplog.at_level(logging.ERROR):
        run_clean(main)
    assert [record.getMessage() for record in caplog.records] == [
        "observer Faulty raised; logged once, the step goes on"
    ]
    assert sum(isinstance(event, StepClosed) for event in ears.heard) == 2


def test_r18_an_observers_scope_surrounds_the_attempt_in_its_own_task() -> None:
    seen: list[tuple[str, int, Any]] = []

    @contextmanager
    def scope(event: AttemptStarted) -> Iterator[None]:
        seen.append(("enter", event.attempt.number, asyncio.current_task()))
        try:
            yield
        finally:
            seen.append(("leave", event.attempt.number, asyncio.current_task()))

    async def main() -> None:
        async def work() -> None:
            active = current_attempt()
            assert active is not None
            seen.append(("work", active.number, asyncio.current_task()))
            await asyncio.sleep(60 if active.number == 0 else 0.5)

        await hedger(observers=[Ears(scope)]).wrap(work, key="step", effect=Effect.READ_ONLY)()
        await asyncio.sleep(0)
        for number in (0, 1):
            mine = [(what, task) for what, who, task in seen if who == number]
            assert [what for what, _ in mine] == ["enter", "work", "leave"]
            assert len({task for _, task in mine}) == 1

    run_clean(main)


def test_r05_each_attempt_ends_once_with_its_verdict() -> None:
    ears = Ears()

    async def main() -> None:
        async def work() -> None:
            active = current_attempt()
            assert active is not None
            await asyncio.sleep(60 if active.number == 0 else 0.5)

        await hedger(observers=[ears]).wrap(work, key="step", effect=Effect.READ_ONLY)()

    run_clean(main)
    endings = [event for event in ears.heard if isinstance(event, AttemptEnded)]
    assert {ending.attempt.number: ending.verdict for ending in endings} == {0: Verdict.SUPERSEDED, 1: Verdict.WON}
    assert isinstance(ears.heard[-1], StepClosed)


class Scope(AbstractContextManager[bool]):
    def __init__(self, log: list[str], name: str, on_exit: Exception | bool = False) -> None:
        self.log, self.name, self.on_exit = log, name, on_exit

    def __enter__(self) -> bool:
        self.log.append(f"+{self.name}")
        return True

    def __exit__(self, *error: object) -> bool:
        self.log.append(f"-{self.name}")
        if isinstance(self.on_exit, Exception):
            raise self.on_exit
        return self.on_exit


class Gives:
    def __init__(self, scope: AbstractContextManager[object]) -> None:
        self.scope = scope

    def on_event(self, event: Event) -> AbstractContextManager[object]:
        return self.scope


def test_scopes_are_left_in_reverse_and_can_neither_swallow_nor_add_an_error(caplog: pytest.LogCaptureFixture) -> None:
    log: list[str] = []
    scopes = [Scope(log, "a", True), Scope(log, "b", ValueError()), Scope(log, "c")]
    funnel = Funnel([Gives(scope) for scope in scopes])
    with pytest.raises(KeyError), funnel.around(EVENT):
        raise KeyError
    assert log == ["+a", "+b", "+c", "-c", "-b", "-a"]
    assert [record.getMessage() for record in caplog.records] == [
        "observer Scope raised; logged once, the step goes on"
    ]


def test_a_scope_that_lets_the_error_pass_is_not_blamed_for_it(caplog: pytest.LogCaptureFixture) -> None:
    @contextmanager
    def plain() -> Iterator[None]:
        yield

    with pytest.raises(KeyError), Funnel([Gives(plain())]).around(EVENT):
        raise KeyError
    assert not caplog.records


def test_r19_an_observer_that_wakes_up_is_noticed_within_a_few_steps() -> None:
    class Sleeper:
        idle = True

        def on_event(self, event: Event) -> None: ...

    sleeper = Sleeper()
    funnel = Funnel([sleeper])
    assert not funnel
    sleeper.idle = False
    assert [bool(funnel) for _ in range(NAP + 1)] == [False] * NAP + [True]
    assert funnel
