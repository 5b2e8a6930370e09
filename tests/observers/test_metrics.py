"""G4: the metrics agree with the events, and the p99 without hedging with what it would have been."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from agent_hedge import DeadlineExceeded, Effect, Fixed, Hedger
from agent_hedge.core.events import (
    AttemptEnded,
    AttemptRefused,
    AttemptStarted,
    CancelSent,
    Event,
    Reason,
    StepEnded,
    StepStarted,
)
from agent_hedge.core.ports import Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Certainty, Receipt, Usage, Verdict
from agent_hedge.latency import Sketch
from agent_hedge.observers.labels import OTHER, Few
from agent_hedge.observers.otel import Metrics, Reading
from agent_hedge.observers.tails import Tail
from agent_hedge.testing import run_virtual
from agent_hedge.testing.scenario import Line

from .kit import play

REDUCED, FULL = 20_000, 200_000


class Meters:
    """A `Metrics` on an SDK in memory."""

    def __init__(self) -> None:
        self.reader = InMemoryMetricReader()
        self.metrics = Metrics(Sketch, MeterProvider([self.reader]))

    def points(self, name: str) -> Iterator[Any]:
        data = self.reader.get_metrics_data()
        for resource in data.resource_metrics if data else ():
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if metric.name == name:
                        yield from metric.data.data_points

    def total(self, name: str, **labels: Any) -> float:
        return float(
            sum(
                point.value if hasattr(point, "value") else point.count
                for point in self.points(name)
                if labels.items() <= dict(point.attributes).items()
            )
        )


class Log:
    """The event log, and the observer under test behind it; a loser may have used tokens."""

    def __init__(self, metrics: Metrics, rng: random.Random) -> None:
        self.metrics, self.rng = metrics, rng
        self.counts: Counter[Any] = Counter()
        self.started: dict[str, float] = {}
        self.cancelled: dict[str, float] = {}
        self.release_s = 0.0
        self.primaries: list[float] = []

    def on_event(self, event: Event) -> None:
        if isinstance(event, AttemptEnded):
            event = self._used(event)
        self.metrics.on_event(event)
        match event:
            case StepStarted():
                self.counts["steps"] += 1
            case AttemptStarted(attempt=attempt):
                self.counts["dispatched", str(attempt.role)] += 1
            case AttemptRefused(reason=reason):
                self.counts["refused", str(reason)] += 1
            case CancelSent(attempt=attempt, at=at):
                self.cancelled[attempt.id] = at
            case StepEnded(error=error):
                self.counts["ended", error] += 1
            case AttemptEnded(attempt=attempt, verdict=verdict, receipt=receipt, at=at):
                self.counts[str(attempt.role), str(verdict)] += 1
                if attempt.number == 0 and event.latency is not None:
                    self.primaries.append(event.latency)
                if verdict is not Verdict.WON and receipt.usage is not None:
                    self.counts["wasted"] += receipt.usage.output or 0
                if attempt.id in self.cancelled:
                    self.counts["cancels"] += 1
                    if receipt.released is not None:
                        self.counts["released"] += 1
                        self.release_s += receipt.released - self.cancelled[attempt.id]

    def _used(self, event: AttemptEnded) -> AttemptEnded:
        if event.verdict is Verdict.WON or self.rng.random() < 0.3:
            return event
        usage = Usage(output=self.rng.randrange(50), certainty=Certainty.AT_LEAST)
        released = event.at + self.rng.random() if event.attempt.id in self.cancelled else None
        return replace(event, receipt=Receipt(usage=usage, released=released))


class Purse:
    """Refuses every third hedge."""

    def __init__(self) -> None:
        self.asked = 0

    def admit(self, attempt: Any, view: Any) -> Any:
        if attempt.number == 0:
            return PASS
        self.asked += 1
        return Refused(Reason.FLEET_BUDGET) if self.asked % 3 == 0 else PASS


def a_wait(rng: random.Random) -> float:
    """Lognormal, median 0.8 s, 4 % stragglers."""
    wait = rng.lognormvariate(math.log(0.8), 0.35)
    return wait + 2.0 * rng.paretovariate(1.3) if rng.random() < 0.04 else wait


def race_many(observer: Any, count: int, rng: random.Random) -> tuple[list[float], list[float]]:
    """Run races; return what callers saw, and what the primaries alone would have given."""
    purse, seen, alone = Purse(), [], []
    for _ in range(count):
        first, second, third = (a_wait(rng) for _ in range(3))
        broken = rng.random() < 0.02
        lines = [Line("a", first, ConnectionError() if broken else "ok"), Line("b", second), Line("c", third)]
        settings: dict[str, Any] = {"policy": 1.5, "gates": [purse], "deadline": 30.0}
        log = _Answered(observer)
        play(log, *lines, start=0.0, **settings)
        if not broken:
            alone.append(first)
        if log.answered_after is not None:
            seen.append(log.answered_after)
    return seen, alone


class _Answered:
    def __init__(self, observer: Any) -> None:
        self.observer = observer
        self.answered_after: float | None = None

    def on_event(self, event: Event) -> None:
        self.observer.on_event(event)
        if isinstance(event, StepEnded) and not event.error:
            self.answered_after = event.elapsed


def p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


@pytest.mark.parametrize(
    ("count", "within"),
    [(REDUCED, 0.25), pytest.param(FULL, 0.10, marks=pytest.mark.slow)],  # 67 waits beyond the p99, or 670
)
def test_the_five_metrics_agree_with_the_event_log(count: int, within: float) -> None:
    rng = random.Random(5)
    meters = Meters()
    log = Log(meters.metrics, rng)
    seen, alone = race_many(log, count, rng)
    counts = log.counts
    # 1 dispatch rate, retries apart
    assert meters.total("agent_hedge.steps.started") == counts["steps"] == count
    for role in ("primary", "hedge", "recovery"):
        assert meters.total("agent_hedge.dispatches", role=role) == counts["dispatched", role] > 0
    # 2 win rate
    for verdict in ("won", "superseded", "failed"):
        assert meters.total("agent_hedge.attempts", role="hedge", outcome=verdict) == counts["hedge", verdict]
    assert counts["hedge", "won"] > 0
    # 3 the p99 as seen and by the primaries alone
    found_seen, found_alone = meters.metrics.p99("scenario")
    assert found_seen == pytest.approx(p99(seen), rel=within / 2)
    assert found_alone == pytest.approx(p99(alone), rel=within), "most of the slow primaries were cancelled"
    assert p99(log.primaries) < 0.7 * p99(alone), "dropping those would be far too rosy"
    truth, found = p99(alone) - p99(seen), (found_alone or 0) - (found_seen or 0)
    assert found == pytest.approx(truth, rel=within)
    # 4 wasted tokens
    assert meters.total("agent_hedge.tokens.wasted", kind="completion", certainty="at_least") == counts["wasted"] > 0
    # 5 cancel to release, where it was observed
    points = list(meters.points("agent_hedge.cancel.release.duration"))
    assert sum(point.count for point in points) == counts["released"] > 0
    assert sum(point.sum for point in points) == pytest.approx(log.release_s)
    assert meters.total("agent_hedge.cancel.duration") == counts["cancels"]
    # and the rest
    assert meters.total("agent_hedge.refusals", reason="fleet_budget") == counts["refused", "fleet_budget"] > 0
    assert meters.total("agent_hedge.steps", outcome="answered") == counts["ended", ""]
    assert not meters.metrics._steps, "nothing is remembered of what is over"


def test_what_was_never_answered_is_counted_as_such() -> None:
    meters = Meters()
    play(meters.metrics, ("a", 9.0), deadline=2.0)
    play(meters.metrics, ("a", 1.0, ConnectionError()), max_attempts=1)
    assert meters.total("agent_hedge.steps", outcome="deadline") == 1
    assert meters.total("agent_hedge.steps", outcome="failed") == 1
    assert meters.total("agent_hedge.step.ttft") == 0


def test_an_answer_past_its_deadline_is_late() -> None:
    meters = Meters()
    heard: list[Any] = []

    class Ear:
        def on_event(self, event: Event) -> None:
            heard.append(event)

    play(Ear(), ("a", 3.0), deadline=4.0)
    for event in heard:  # the loop stood still for two seconds, and the answer was there when it went on
        meters.metrics.on_event(replace(event, at=event.at + 2.0) if isinstance(event, StepEnded) else event)
    assert meters.total("agent_hedge.steps", outcome="late") == 1
    assert meters.total("agent_hedge.steps", outcome="answered") == 0


def test_runs_say_how_they_ended_and_what_they_had_left() -> None:
    meters = Meters()
    calls: list[int] = []

    async def work() -> str:
        calls.append(1)
        await asyncio.sleep(9.0 if len(calls) == 1 else 0.5)
        return "ok"

    async def main() -> None:
        async with Hedger(policy=Fixed(1.0), observers=[meters.metrics], telemetry=False) as hedger:
            call = hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])
            async with hedger.run(extra_attempts=2, deadline=10.0):
                await call()
            with pytest.raises(DeadlineExceeded):
                async with hedger.run(extra_attempts=2, deadline=0.2):
                    await call()
            with pytest.raises(KeyError):
                async with hedger.run(extra_attempts=0):
                    raise KeyError

    run_virtual(main)
    assert [meters.total("agent_hedge.runs", outcome=how) for how in ("answered", "deadline", "failed")] == [1, 1, 1]
    (left,) = meters.points("agent_hedge.run.hedges.left")
    assert (left.count, left.sum, left.min) == (3, 1 + 2 + 0, 0)
    (seconds,) = meters.points("agent_hedge.run.deadline.left")
    assert (seconds.count, seconds.min, seconds.max) == (2, 0.0, 8.5)


def test_losers_of_unknown_count_are_counted() -> None:
    meters = Meters()
    play(meters.metrics, ("a", 9.0), ("b", 0.5), policy=1.0)
    assert meters.total("agent_hedge.attempts.uncounted", target="a") == 1
    assert meters.total("agent_hedge.step.hedges") == 1
    seen, alone = meters.metrics.p99("scenario")
    assert seen == pytest.approx(1.5, rel=0.02)
    assert alone is None, "a hedge is no primary"


def test_r18_the_prompt_of_a_loser_is_counted_by_the_winners() -> None:
    """One has begun to answer and so has read it all; the other, at most; and a function has none."""
    meters = Meters()
    for primary in (("a", 9.0), Line("a", 9.0, first_token=1.2)):
        play(Prompted(meters.metrics, 100), primary, ("b", 0.5), policy=1.0)
    play(meters.metrics, ("a", 9.0), ("b", 0.5), policy=1.0)
    wasted = {
        (point.attributes["kind"], point.attributes["certainty"]): point.value
        for point in meters.points("agent_hedge.tokens.wasted")
    }
    assert wasted == {("prompt", "at_most"): 100, ("prompt", "exact"): 100}


class Prompted:
    """A winner's provider says how long the prompt was; nothing else of it is known."""

    def __init__(self, metrics: Metrics, prompt: int) -> None:
        self.metrics, self.prompt = metrics, prompt

    def on_event(self, event: Event) -> None:
        if isinstance(event, AttemptEnded):
            said = self.prompt if event.verdict is Verdict.WON else None
            event = replace(event, receipt=Receipt(usage=Usage(input=said)))
        self.metrics.on_event(event)


def test_gauges_are_read_when_they_are_exported() -> None:
    meters = Meters()
    meters.metrics.show(lambda: [Reading("agent_hedge.mode", 1.0, {"mode": "shadow"})])
    assert meters.total("agent_hedge.mode", mode="shadow") == 1


def test_labels_of_gauges_are_few_too() -> None:
    readings = [Reading("agent_hedge.learning", 0.5, {"node": f"n{number}", "model": "m"}) for number in range(150)]
    meters = Meters()
    meters.metrics.show(lambda: readings)
    points = {dict(point.attributes)["node"] for point in meters.points("agent_hedge.learning")}
    assert len(points) == 101
    assert OTHER in points


def test_labels_are_few() -> None:
    few = Few(limit=3)
    assert [few(name) for name in "abcdab"] == ["a", "b", "c", OTHER, "a", "b"]


def test_a_tail_forgets_what_is_older_than_two_hours() -> None:
    tail = Tail(Sketch)
    for number in range(1000):
        tail.add(10.0, at=float(number))
    for number in range(1000):
        tail.add(1.0, at=4000.0 + number)
    assert tail.p99() == pytest.approx(10.0, rel=0.02), "the older generation still counts"
    tail.add(1.0, at=8000.0)
    assert tail.p99() == pytest.approx(1.0, rel=0.02)
    tail.add(3.0, at=99_999.0)
    assert tail.p99() == pytest.approx(3.0, rel=0.02), "and a pause is no window"
    assert Tail(Sketch).p99() is None
