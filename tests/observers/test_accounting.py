"""The books: one row a step, one an attempt, settled once, with what is known of their tokens."""

from __future__ import annotations

import json
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from agent_hedge.core.events import (
    AttemptEnded,
    AttemptStarted,
    Event,
    FirstToken,
    StepClosed,
    StepEnded,
    StepReopened,
    StepStarted,
)
from agent_hedge.core.step import Attempt, Certainty, Receipt, Role, StepKey, Usage, Verdict
from agent_hedge.errors import StoreUnavailable
from agent_hedge.observers.accounting import Accounting, cost_of
from agent_hedge.observers.recorder import Recorder
from agent_hedge.stores.memory import MemorySteps
from agent_hedge.testing.scenario import Line, Site

from .kit import START, WALL, IdlePortal, a_run, play

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Books:
    """An `Accounting` on an empty memory."""

    def __init__(self, **settings: Any) -> None:
        limit = settings.pop("limit", 1000)
        self.store = MemorySteps()
        self.recorder = Recorder(lambda: self.store, IdlePortal(), limit=limit)
        self.accounting = Accounting(self.recorder, wall=lambda: WALL, **settings)

    def play(self, *lines: Any, **settings: Any) -> None:
        play(self.accounting, *lines, **settings)

    async def rows(self, run_key: str = "") -> tuple[list[Any], list[Any]]:
        await self.accounting.flush()
        return list(await self.store.steps_of(run_key)), list(await self.store.attempts_of(run_key))


async def test_a_step_that_is_answered_by_its_primary() -> None:
    books = Books()
    books.play(("a", 0.5, "ok"), policy=2.0, run=a_run())
    (step,), (attempt,) = await books.rows("run")
    assert step["outcome"] == "answered"
    assert (step["decision"], step["trigger_s"], step["launched"], step["hedges"]) == ("not_due", 2.0, 1, 0)
    assert (step["winner"], step["ttft_s"], step["elapsed_s"], step["started_at"]) == ("a", 0.5, 0.5, WALL)
    assert (attempt["outcome"], attempt["role"], attempt["target"], attempt["ttft_s"]) == ("won", "primary", "a", 0.5)
    assert attempt["ended_at"] == WALL + 0.5


async def test_a_hedge_that_wins_and_a_primary_that_is_superseded() -> None:
    books = Books()
    books.play(("a", 9.0, "slow"), ("b", 0.25, "fast"), policy=1.0)
    (step,), (first, second) = await books.rows()
    assert (step["decision"], step["winner"], step["hedges"], step["ttft_s"]) == ("hedged", "b", 1, 1.25)
    assert (first["outcome"], first["cancel_sent_s"]) == ("superseded", 1.25)
    assert (second["outcome"], second["role"], second["started_at"]) == ("won", "hedge", WALL + 1.0)
    assert '"censored_s":1.25' in first["receipt"]


@pytest.mark.parametrize(
    ("lines", "settings", "step_outcome", "attempt_outcomes"),
    [
        ([("a", 1.0, ConnectionError()), ("b", 1.0, "ok")], {}, "answered", ["failed", "won"]),
        ([("a", 1.0, ConnectionError()), ("b", 1.0, OSError())], {}, "failed", ["failed", "failed"]),
        ([("a", 9.0, "late")], {"deadline": 2.0}, "deadline", ["cancelled"]),
        ([("a", 9.0, "late"), ("b", 9.0, "late")], {"deadline": 2.0, "policy": 1.0}, "deadline", ["cancelled"] * 2),
    ],
)
async def test_r18_every_exit_path_is_settled(
    lines: Any, settings: Any, step_outcome: str, attempt_outcomes: list[str]
) -> None:
    books = Books()
    books.play(*lines, **settings)
    (step,), attempts = await books.rows()
    assert step["outcome"] == step_outcome
    assert [row["outcome"] for row in attempts] == attempt_outcomes
    assert all(row["computed_certainty"] and row["billed_certainty"] for row in attempts)


async def test_only_hedged_steps_are_recorded_when_asked() -> None:
    books = Books(accounts="hedged")
    books.play(("a", 0.5, "ok"), policy=2.0)
    books.play(("a", 9.0, "slow"), ("b", 0.25, "fast"), policy=1.0)
    (step,), attempts = await books.rows()
    assert step["decision"] == "hedged"
    assert [row["number"] for row in attempts] == [0, 1]


def again(accounting: Accounting, *, loser_lingers: bool) -> None:
    """A step whose winner breaks after its first token and that is run again, which then answers."""
    key = StepKey(node="n")
    common: dict[str, Any] = {"step_id": "s", "key": key}
    ends = float("inf")
    broke, lost, won = (
        Attempt(number, role, Site(name), START + number, ends, None, number)
        for number, role, name in ((0, Role.PRIMARY, "a"), (1, Role.HEDGE, "b"), (2, Role.RECOVERY, "b"))
    )

    def end(attempt: Attempt, verdict: Verdict, at: float) -> AttemptEnded:
        return AttemptEnded(attempt=attempt, verdict=verdict, receipt=Receipt(), at=at, **common)

    opening: list[Event] = [
        StepStarted(deadline=ends, at=START, **common),
        AttemptStarted(attempt=broke, at=START, **common),
        AttemptStarted(attempt=lost, at=START + 1, **common),
        end(broke, Verdict.FAILED, START + 2),
        StepEnded(winner=broke, launched=2, elapsed=2.0, error="ReadError", at=START + 2, **common),
    ]
    closing: list[Event] = [end(lost, Verdict.SUPERSEDED, START + 2), StepClosed(at=START + 2, **common)]
    second: list[Event] = [
        StepReopened(at=START + 2, **common),
        AttemptStarted(attempt=won, at=START + 2, **common),
        FirstToken(attempt=won, latency=1.0, at=START + 3, **common),
    ]
    answer: list[Event] = [
        end(won, Verdict.WON, START + 3),
        StepEnded(winner=won, launched=1, elapsed=1.0, at=START + 3, **common),
        StepClosed(at=START + 3, **common),
    ]
    for event in [*opening, *(second + closing if loser_lingers else closing + second), *answer]:
        accounting.on_event(event)


@pytest.mark.parametrize("loser_lingers", [False, True])
async def test_r18_a_step_that_is_run_again_is_one_step_settled_once(loser_lingers: bool) -> None:
    books = Books()
    again(books.accounting, loser_lingers=loser_lingers)
    (step,), attempts = await books.rows()
    assert (step["outcome"], step["winner"], step["launched"]) == ("answered", "b", 3)
    assert (step["ttft_s"], step["elapsed_s"]) == (3.0, 3.0), "from the first request on"
    assert [row["outcome"] for row in attempts] == ["failed", "superseded", "won"]
    assert not books.accounting._steps


async def test_a_step_that_nobody_runs_again_has_failed() -> None:
    books = Books()
    play(books.accounting, Line("a", 0.5, OSError(), first_token=0.1), commit_on_token=True)
    (step,), (attempt,) = await books.rows()
    assert (step["outcome"], step["error"], attempt["outcome"]) == ("failed", "OSError", "failed")


# --- tokens and cost ----------------------------------------------------------------------------------------------


def raced(accounting: Accounting, *ended: tuple[Verdict, Receipt]) -> None:
    """A step whose attempts ended like this; the one that won is the winner."""
    key = StepKey(node="n")
    common: dict[str, Any] = {"step_id": "s", "key": key, "at": START}
    accounting.on_event(StepStarted(deadline=float("inf"), **common))
    attempts = [
        Attempt(number, Role.HEDGE if number else Role.PRIMARY, Site("ab"[number]), START, float("inf"), None, number)
        for number in range(len(ended))
    ]
    for attempt in attempts:
        accounting.on_event(AttemptStarted(attempt=attempt, **common))
    for attempt, (verdict, receipt) in zip(attempts, ended, strict=True):
        accounting.on_event(AttemptEnded(attempt=attempt, verdict=verdict, receipt=receipt, **common))
    winner = next(
        (attempt for attempt, (verdict, _) in zip(attempts, ended, strict=True) if verdict is Verdict.WON), None
    )
    accounting.on_event(StepEnded(winner=winner, launched=len(ended), elapsed=0.0, **common))
    accounting.on_event(StepClosed(**common))


async def test_r18_the_cost_of_a_loser_is_never_nothing_by_omission() -> None:
    books = Books(prices=lambda name: {"input": 3.0, "cached_input": 1.0, "output": 10.0})
    lost = Usage(output=5, chunks=5, certainty=Certainty.AT_LEAST)
    won = Usage(input=1000, cached=400, output=50, certainty=Certainty.EXACT, response_id="chatcmpl-1")
    raced(books.accounting, (Verdict.SUPERSEDED, Receipt(usage=lost)), (Verdict.WON, Receipt(usage=won)))
    _, (loser, winner) = await books.rows()
    assert (loser["tokens_computed"], loser["computed_certainty"]) == (5, "at_least")
    assert (loser["tokens_billed"], loser["billed_certainty"], loser["cost"]) == (None, "unknown", None)
    assert loser["tokens_input"] == 1000, "the same prompt: at most that much was computed"
    assert json.loads(loser["receipt"])["price"]["cached_input"] == 1.0, "what it added is for the report to say"
    assert (winner["tokens_input"], winner["tokens_computed"], winner["tokens_billed"]) == (1000, 50, 50)
    assert winner["cost"] == pytest.approx((600 * 3 + 400 * 1 + 50 * 10) / 1e6)
    assert winner["engine_request_id"] == "chatcmpl-1"


def test_there_is_no_cost_without_a_price_or_an_exact_count() -> None:
    exact = Usage(input=1, output=1, certainty=Certainty.EXACT)
    assert cost_of(exact, None) is None
    assert cost_of(Usage(input=1, output=1, certainty=Certainty.AT_LEAST), {"input": 1.0}) is None
    assert cost_of(exact, {"input": 2.0}) == pytest.approx(2e-6)


# --- the queue ----------------------------------------------------------------------------------------------------


async def test_the_queue_is_bounded_and_drops_are_counted() -> None:
    books = Books(limit=3)
    for _ in range(4):
        books.play(("a", 0.5, "ok"))
    assert books.recorder.waiting <= 3
    assert books.recorder.dropped > 0
    await books.rows()


class Gone(MemorySteps):
    """A store that does not answer, until it does."""

    gone = True

    async def add_steps(self, rows: Any) -> None:
        if self.gone:
            raise StoreUnavailable("gone")
        await super().add_steps(rows)


async def test_what_a_lost_store_did_not_take_is_shipped_later() -> None:
    store = Gone()
    accounting = Accounting(Recorder(lambda: store, IdlePortal()))
    play(accounting, ("a", 0.5, "ok"))
    with pytest.raises(StoreUnavailable):
        await accounting.flush()
    assert accounting.recorder.waiting
    store.gone = False
    await accounting.flush()
    assert [row["outcome"] for row in await store.steps_of("")] == ["answered"]


async def test_rows_are_shipped_by_the_background_without_being_asked() -> None:
    store, portal = MemorySteps(), IdlePortal()
    play(Accounting(Recorder(lambda: store, portal, every=0.0)), ("a", 0.5, "ok"))
    (ship,) = portal.started
    await ship()
    assert [row["outcome"] for row in await store.attempts_of("")] == ["won"]


class Slow(MemorySteps):
    """A store that lets others run while it takes rows, and remembers every row it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    async def add_attempts(self, rows: Any) -> None:
        await anyio.lowlevel.checkpoint()
        self.given += [row["attempt_id"] for row in rows]
        await super().add_attempts(rows)


async def test_r18_two_flushes_at_once_ship_every_row_once() -> None:
    alone, together = Slow(), Slow()
    for store in (alone, together):
        accounting = Accounting(Recorder(lambda store=store: store, IdlePortal()))  # type: ignore[misc]
        for _ in range(5):
            play(accounting, ("a", 0.5, "ok"))
        if store is alone:
            await accounting.flush()
        else:
            async with anyio.create_task_group() as group:
                for _ in range(3):
                    group.start_soon(accounting.flush)
        assert accounting.recorder.waiting == 0
    assert len(together.given) == len(alone.given)
