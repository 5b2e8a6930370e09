"""Releases: only what the engine has said is told, and nobody waits long for its word (R18)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio
import pytest

from agent_hedge import Effect, Hedger, Target, current_attempt
from agent_hedge.core.events import AttemptEnded, Event
from agent_hedge.core.step import Attempt, Verdict
from agent_hedge.engine import release
from agent_hedge.errors import ConfigurationError
from tests.engine.kit import hedger, now, run_clean, run_clean_on_trio


class Engine:
    """A canceller that answers after `wait` seconds."""

    def __init__(self, wait: float, answer: Any = True) -> None:
        self.wait, self.answer = wait, answer
        self.asked: list[str] = []

    async def cancel(self, attempt: Attempt) -> bool:
        self.asked.append(attempt.id)
        await anyio.sleep(self.wait)
        if isinstance(self.answer, Exception):
            raise self.answer
        return bool(self.answer)


class Ends:
    """Keeps how attempts ended."""

    def __init__(self) -> None:
        self.events: list[AttemptEnded] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, AttemptEnded):
            self.events.append(event)

    @property
    def loser(self) -> AttemptEnded:
        (event,) = (one for one in self.events if one.attempt.number == 0)
        return event


def step(opened: Hedger, engine: Engine, *, closes_in: float = 0.1) -> Any:
    """A primary that takes 9 s, and a moment to close; a hedge that takes half a second."""

    async def work() -> str:
        active = current_attempt()
        assert active is not None
        try:
            await anyio.sleep(9.0 if active.number == 0 else 0.5)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(closes_in)
            raise
        return "ok"

    return opened.wrap(work, key="step", effect=Effect.READ_ONLY, targets=[Target("a", cancel=engine), "b"])


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_r18_the_release_is_when_the_engine_said_so(backend: str) -> None:
    engine, ends = Engine(0.03), Ends()

    async def main(opened: Hedger) -> None:
        async with opened.run():
            assert await step(opened, engine)() == "ok"
        assert ends.loser.verdict is Verdict.SUPERSEDED

    settings: dict[str, Any] = {"observers": [ends], "telemetry": False}
    if backend == "trio":
        run_clean_on_trio(main, **settings)
    else:
        run_clean(lambda: main(hedger(**settings)))
    receipt = ends.loser.receipt
    assert engine.asked == [ends.loser.attempt.id], "once, after our side had closed"
    assert receipt.cancel_sent is not None
    assert receipt.released is not None
    assert receipt.released - receipt.cancel_sent == pytest.approx(0.13)
    assert ends.loser.at == receipt.released


@pytest.mark.parametrize(
    ("engine", "ended"), [(Engine(0.03, answer=False), 0.13), (Engine(60.0), 0.5), (Engine(0.0, KeyError("x")), 0.1)]
)
def test_r18_what_was_not_seen_is_not_told_and_not_waited_for(
    engine: Engine, ended: float, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = Ends()
    monkeypatch.setattr(release, "_complained", set())

    async def main() -> None:
        async with hedger(observers=[ends], telemetry=False) as opened:
            for _ in range(2):
                assert await step(opened, engine)() == "ok"
            assert now() == 3.0, "the caller never waits for an engine"

    with caplog.at_level(logging.WARNING, "agent_hedge"):
        run_clean(main)
    losers = [event for event in ends.events if event.attempt.number == 0]
    for event in losers:
        assert event.verdict is Verdict.SUPERSEDED
        assert event.receipt.released is None
        assert event.receipt.cancel_sent is not None
        assert event.at - event.receipt.cancel_sent == pytest.approx(ended)
    assert len(caplog.records) == isinstance(engine.answer, Exception), "logged once"


def test_r06_the_reaper_does_not_wait_longer_for_an_engine() -> None:
    ends = Ends()

    async def main() -> None:
        async with hedger(observers=[ends], telemetry=False) as opened:
            assert await step(opened, Engine(60.0), closes_in=0.3)() == "ok"

    run_clean(main)
    receipt = ends.loser.receipt
    assert ends.loser.verdict is Verdict.SUPERSEDED, "not abandoned"
    assert receipt.cancel_sent is not None
    assert ends.loser.at - receipt.cancel_sent == pytest.approx(0.5), "its second cancel ends the wait"


def test_an_attempt_that_nobody_cancelled_asks_no_engine() -> None:
    engine = Engine(0.03)

    async def main() -> None:
        async def quick() -> str:
            return "ok"

        async with hedger() as opened:
            call = opened.wrap(quick, key="q", effect=Effect.READ_ONLY, targets=[Target("a", cancel=engine), "b"])
            assert await call() == "ok"

    run_clean(main)
    assert engine.asked == []


def test_a_caller_that_leaves_joins_the_word_of_the_engine() -> None:
    engine, ends = Engine(0.2), Ends()

    async def main() -> None:
        async with hedger(observers=[ends], telemetry=False) as opened:
            call = asyncio.ensure_future(step(opened, engine)())
            await asyncio.sleep(0.5)
            call.cancel()
            await asyncio.wait([call])
            assert now() == pytest.approx(0.8)

    run_clean(main)
    assert ends.loser.verdict is Verdict.CANCELLED
    assert ends.loser.receipt.released == pytest.approx(0.8)


def test_r20_a_canceller_without_its_method_is_an_error_at_construction() -> None:
    with pytest.raises(ConfigurationError, match="async method cancel"):
        Target("a", cancel=lambda attempt: True)  # type: ignore[arg-type]


def test_a_copy_is_cancelled_as_its_target() -> None:
    engine = Engine(0.0)
    assert [release.canceller_of(place) for place in Target("pool", copies=2, cancel=engine).places()] == [engine] * 2
