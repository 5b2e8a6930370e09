"""Metrics: logical requests and physical attempts apart; the table of them all is in ``docs/telemetry.md``.

Rates are left to whoever reads (dispatch rate = hedges dispatched / steps, win rate = hedges won / hedges dispatched).
What cannot be made from counters is exported as a gauge: the p99 of the time to the first token, as it was seen and as
the primaries alone would have given it, by the estimate that counts a superseded primary as still waiting (R16).
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable
from types import MethodType
from typing import Any, NamedTuple

from opentelemetry.metrics import CallbackOptions, Meter, MeterProvider, Observation, get_meter

from agent_hedge.core.events import (
    AttemptEnded,
    AttemptRefused,
    AttemptStarted,
    CancelSent,
    Claimed,
    Event,
    Fenced,
    FirstToken,
    RunEnded,
    StepClosed,
    StepEnded,
    StepReopened,
    StepStarted,
    TriggerLate,
)
from agent_hedge.core.step import FOREVER, Attempt, Certainty, Role, StepKey, Verdict
from agent_hedge.observers.labels import Few
from agent_hedge.observers.otel import names
from agent_hedge.observers.outcome import ANSWERED, outcome_of
from agent_hedge.observers.tails import Survival, Tail

SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Bucket bounds of durations, as the GenAI conventions have them."""
CANCEL_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Closing an HTTP stream takes 7 to 40 ms; an engine that does not notice takes as long as it likes."""
HEDGE_COUNTS = (1, 2, 3, 4, 5)
"""As ``grpc.client.call.hedges`` (gRPC A96); 0 is not reported."""
PURSE = (0, 1, 2, 3, 5, 10)
"""The first bucket is the empty purse; a run of 20 steps starts with 3."""


class Reading(NamedTuple):
    """The value of a gauge now, with its labels."""

    name: str
    value: float
    labels: dict[str, str]


Readings = Callable[[], Iterable[Reading]]
Together = Callable[[Iterable[float]], float]

GAUGES: dict[str, tuple[str, str, Together]] = {
    "agent_hedge.mode": ("1", "1 for the mode in force", max),
    "agent_hedge.learning": ("1", "Share of the samples a trigger needs that are known", min),
    "agent_hedge.book.keys": ("{key}", "Latency histories kept", sum),
    "agent_hedge.fleet.requests": ("{request}", "Logical requests of the last 60 minutes", sum),
    "agent_hedge.fleet.hedges": ("{hedge}", "Hedges of the last 60 minutes", sum),
    "agent_hedge.budget.left": ("{hedge}", "Hedges the fleet's bucket would grant now", sum),
    "agent_hedge.attempts.abandoned": ("{attempt}", "Attempts given up since the start", sum),
    "agent_hedge.effects.in_doubt": ("{call}", "Guarded calls that ended in doubt since the start", sum),
    "agent_hedge.records.waiting": ("{row}", "Rows of the accounts that are not in the store yet", sum),
    "agent_hedge.records.dropped": ("{row}", "Rows of the accounts that did not fit into the queue", sum),
}
"""Name -> unit, description, and what several hedgers of a process show together. Read when they are exported."""


class _Step:
    __slots__ = (
        "cancelled", "deadline", "first_tokens", "hedges", "primary", "prompt", "races", "started_at", "unsaid",
    )  # fmt: skip

    def __init__(self, started_at: float, deadline: float = FOREVER) -> None:
        self.started_at = started_at
        self.deadline = deadline
        self.first_tokens: dict[str, float] = {}
        self.cancelled: dict[str, float] = {}
        self.primary = ""
        self.hedges = 0
        self.prompt: int | None = None
        """How long the prompt was, by the winner's provider."""
        self.unsaid: tuple[tuple[dict[str, Any], bool], ...] = ()
        """Losers whose provider has not said it: their labels, and whether they had begun to answer."""
        self.races = 1


class _Tails:
    """Seen and unhedged waits of one node and model."""

    __slots__ = ("primary", "seen")

    def __init__(self, survival: Callable[[], Survival]) -> None:
        self.seen = Tail(survival)
        self.primary = Tail(survival)


class Metrics:
    """The observer that counts. `survival` makes the histories behind the p99 gauges, two for each node and model.

    One serves all hedgers of a process (`metrics_of`): an SDK takes an instrument's name once, and of gauges the first
    one's callback only.
    """

    def __init__(self, survival: Callable[[], Survival], meter_provider: MeterProvider | None = None) -> None:
        self._survival = survival
        self._sources: list[Callable[[], Readings | None]] = []
        self._lock = threading.Lock()
        self._tails: dict[tuple[str, str], _Tails] = {}
        self._steps: dict[str, _Step] = {}
        self._nodes, self._models, self._targets = Few(), Few(), Few()
        self._kinds: dict[type[Event], Callable[[Any], None]] = {
            StepStarted: self._step_started,
            StepReopened: self._step_reopened,
            AttemptStarted: self._attempt_started,
            AttemptRefused: self._refused,
            TriggerLate: self._late,
            Fenced: self._fenced,
            Claimed: self._claimed,
            FirstToken: self._first_token,
            CancelSent: self._cancel_sent,
            AttemptEnded: self._attempt_ended,
            StepEnded: self._step_ended,
            StepClosed: self._step_closed,
            RunEnded: self._run_ended,
        }
        self._few: dict[str, Few] = {"node": self._nodes, "model": self._models, "target": self._targets}
        self._make(get_meter(names.SCOPE, meter_provider=meter_provider))

    def _make(self, meter: Meter) -> None:
        counter, histogram = meter.create_counter, meter.create_histogram
        self._started = counter("agent_hedge.steps.started", "{step}", "Logical requests begun")
        self._steps_ended = counter("agent_hedge.steps", "{step}", "Logical requests, by how they ended")
        self._dispatches = counter("agent_hedge.dispatches", "{attempt}", "Physical attempts dispatched")
        self._attempts = counter("agent_hedge.attempts", "{attempt}", "Physical attempts, by how they ended")
        self._refusals = counter("agent_hedge.refusals", "{refusal}", "Attempts that were not dispatched, by reason")
        self._wasted = counter("agent_hedge.tokens.wasted", "{token}", "Tokens of attempts that did not win")
        self._uncounted = counter("agent_hedge.attempts.uncounted", "{attempt}", "Losers of unknown token count")
        self._fences = counter("agent_hedge.fences", "{call}", "Side effects that asked to win their race first")
        self._claims = counter("agent_hedge.claims", "{call}", "Calls that the ledger has answered")
        self._duration = self._seconds(histogram, "agent_hedge.step.duration", "From the request to its answer")
        self._ttft = self._seconds(histogram, "agent_hedge.step.ttft", "From the request to its first token")
        self._lateness = self._seconds(histogram, "agent_hedge.loop.late", "How late the run loop fired a trigger")
        self._cancel = histogram(
            "agent_hedge.cancel.duration",
            "s",
            "From a cancel to the end of the attempt's task",
            explicit_bucket_boundaries_advisory=CANCEL_SECONDS,
        )
        self._release = histogram(
            "agent_hedge.cancel.release.duration",
            "s",
            "From a cancel to the engine's release, where that was observed",
            explicit_bucket_boundaries_advisory=CANCEL_SECONDS,
        )
        self._hedges = histogram(
            "agent_hedge.step.hedges",
            "{hedge}",
            "Hedges of a step that had any",
            explicit_bucket_boundaries_advisory=HEDGE_COUNTS,
        )
        self._runs = counter("agent_hedge.runs", "{run}", "Runs whose scope was left, by how")
        self._hedges_left = histogram(
            "agent_hedge.run.hedges.left",
            "{hedge}",
            "Hedges left in the purse of a run that ended",
            explicit_bucket_boundaries_advisory=PURSE,
        )
        self._time_left = self._seconds(histogram, "agent_hedge.run.deadline.left", "Time left when a run ended")
        meter.create_observable_gauge(
            "agent_hedge.ttft.p99", [self._observe_tails], "s", "p99 of the first token, seen and by primaries alone"
        )
        for name, (unit, description, together) in GAUGES.items():
            meter.create_observable_gauge(name, [self._reader(name, together)], unit, description)

    @staticmethod
    def _seconds(histogram: Callable[..., Any], name: str, description: str) -> Any:
        return histogram(name, "s", description, explicit_bucket_boundaries_advisory=SECONDS)

    def show(self, readings: Readings) -> None:
        """Have gauges show these readings too, as long as the object lives whose method they are."""
        alive: Callable[[], Readings | None] = (
            weakref.WeakMethod(readings) if isinstance(readings, MethodType) else lambda: readings
        )
        with self._lock:
            self._sources = [source for source in self._sources if source() is not None] + [alive]

    def on_event(self, event: Event) -> None:
        heard = self._kinds.get(type(event))
        if heard is not None:
            heard(event)

    # --- steps ----------------------------------------------------------------------------------------------------

    def _step_started(self, event: StepStarted) -> None:
        self._steps[event.step_id] = _Step(event.at, event.deadline)
        self._started.add(1, self._of(event.key))

    def _step_reopened(self, event: StepReopened) -> None:
        step = self._steps.get(event.step_id)
        if step is None:  # its first race is closed: it is counted already
            step = self._steps[event.step_id] = _Step(event.at)
            step.races = 0
        step.races += 1
        step.hedges = 0

    def _refused(self, event: AttemptRefused) -> None:
        self._refusals.add(1, {**self._of(event.key), "reason": str(event.reason), "role": str(event.role)})

    def _late(self, event: TriggerLate) -> None:
        self._lateness.record(event.late)

    def _fenced(self, event: Fenced) -> None:
        self._fences.add(1, {**self._of(event.key), "passed": event.passed})

    def _claimed(self, event: Claimed) -> None:
        self._claims.add(1, {"answer": event.answer})

    def _step_ended(self, event: StepEnded) -> None:
        step = self._steps.get(event.step_id)
        if step is None:
            return
        labels, outcome = self._of(event.key), outcome_of(event)
        if event.winner is not None and event.error:
            outcome = "broken"  # counted apart: it may be run again, and then has two ends
        elif outcome == ANSWERED and event.at > step.deadline:
            outcome = "late"  # the loop stood still when the deadline passed
        self._steps_ended.add(1, {**labels, "outcome": outcome})
        self._duration.record(event.elapsed, {**labels, "outcome": outcome})
        if step.hedges:
            self._hedges.record(step.hedges, labels)
        winner = event.winner
        first = None if winner is None else step.first_tokens.get(winner.id)
        with self._lock:
            seen = self._tails_of(event.key).seen
            if first is None:
                seen.add_censored(event.elapsed, event.at)
            else:
                seen.add(first - step.started_at, event.at)
        if first is not None and outcome == ANSWERED:
            self._ttft.record(first - step.started_at, {**labels, "hedged": step.hedges > 0})

    def _step_closed(self, event: StepClosed) -> None:
        step = self._steps.get(event.step_id)
        if step is not None:
            step.races -= 1
            if step.races <= 0:
                del self._steps[event.step_id]
                if step.unsaid and step.prompt:
                    self._waste_prompts(step.unsaid, step.prompt)

    def _run_ended(self, event: RunEnded) -> None:
        ended = "cancelled" if event.error == "CancelledError" else "failed" if event.error else ANSWERED
        self._runs.add(1, {"outcome": "deadline" if event.error == "DeadlineExceeded" else ended})
        if event.hedges_left is not None:
            self._hedges_left.record(event.hedges_left)
        if event.remaining < FOREVER:
            self._time_left.record(event.remaining)

    # --- attempts -------------------------------------------------------------------------------------------------

    def _attempt_started(self, event: AttemptStarted) -> None:
        step, attempt = self._steps.get(event.step_id), event.attempt
        if step is None:
            return
        step.hedges += attempt.role is Role.HEDGE
        if attempt.role is Role.PRIMARY:
            step.primary = attempt.id
        self._dispatches.add(1, {**self._at(event.key, attempt), "role": str(attempt.role)})

    def _first_token(self, event: FirstToken) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            step.first_tokens[event.attempt.id] = event.at

    def _cancel_sent(self, event: CancelSent) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            step.cancelled[event.attempt.id] = event.at

    def _attempt_ended(self, event: AttemptEnded) -> None:
        step, attempt = self._steps.get(event.step_id), event.attempt
        if step is None:
            return
        labels = self._at(event.key, attempt)
        self._attempts.add(1, {**labels, "role": str(attempt.role), "outcome": str(event.verdict)})
        if attempt.id == step.primary:
            self._note_primary(event)
        cancelled_at = step.cancelled.get(attempt.id)
        if cancelled_at is not None:
            ended = {"target": labels["target"], "outcome": str(event.verdict)}
            self._cancel.record(event.at - cancelled_at, ended)
            if event.receipt.released is not None:
                self._release.record(event.receipt.released - cancelled_at, {"target": labels["target"]})
        usage = event.receipt.usage
        if event.verdict is not Verdict.WON:
            self._waste(event, labels)
            if usage is not None and usage.input is None:
                step.unsaid += ((labels, event.latency is not None),)
        elif usage is not None:
            step.prompt = usage.input

    def _note_primary(self, event: AttemptEnded) -> None:
        with self._lock:
            alone = self._tails_of(event.key).primary
            if event.latency is not None:
                alone.add(event.latency, event.at)
            elif event.censored_at is not None:
                alone.add_censored(event.censored_at, event.at)

    def _waste(self, event: AttemptEnded, labels: dict[str, str]) -> None:
        usage, receipt = event.receipt.usage, event.receipt
        output, certainty = (receipt.tokens, receipt.certainty) if usage is None else (usage.output, usage.certainty)
        if output is None:
            self._uncounted.add(1, labels)
            return
        said = {**labels, "basis": "computed", "certainty": str(certainty)}
        self._wasted.add(output, {**said, "kind": "completion"})
        if certainty is Certainty.EXACT:
            self._wasted.add(output, {**said, "kind": "completion", "basis": "billed"})
        if usage is not None and usage.input is not None:
            self._wasted.add(usage.input, {**said, "kind": "prompt", "certainty": "exact"})

    def _waste_prompts(self, unsaid: Iterable[tuple[dict[str, Any], bool]], prompt: int) -> None:
        """Count the prompts of losers by the winner's: whoever has begun to answer has read all of it."""
        for labels, spoken in unsaid:
            certainty = str(Certainty.EXACT if spoken else Certainty.AT_MOST)
            self._wasted.add(prompt, {**labels, "basis": "computed", "kind": "prompt", "certainty": certainty})

    # --- gauges ---------------------------------------------------------------------------------------------------

    def p99(self, node: str, model: str = "") -> tuple[float | None, float | None]:
        """Return the p99 of the first token in seconds as seen and by primaries alone; None: not identified."""
        with self._lock:
            tails = self._tails.get((node, model))
            return (None, None) if tails is None else (tails.seen.p99(), tails.primary.p99())

    def _observe_tails(self, _: CallbackOptions) -> Iterable[Observation]:
        for node, model in list(self._tails):
            for view, value in zip(("seen", "primary_alone"), self.p99(node, model), strict=True):
                if value is not None:
                    yield Observation(value, {**_labels(node, model), "view": view})

    def _reader(self, name: str, together: Together) -> Callable[[CallbackOptions], Iterable[Observation]]:
        """Return what a gauge asks: the readings of this name, their labels bounded as everywhere."""

        def read(_: CallbackOptions) -> Iterable[Observation]:
            found: dict[tuple[tuple[str, str], ...], list[float]] = {}
            for source in self._sources:
                readings = source()
                for reading in () if readings is None else readings():
                    if reading.name == name:
                        found.setdefault(self._bounded(reading.labels), []).append(reading.value)
            return [Observation(together(values), dict(labels)) for labels, values in found.items()]

        return read

    def _bounded(self, labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
        return tuple((kind, self._few[kind](word) if kind in self._few else word) for kind, word in labels.items())

    # --- labels ---------------------------------------------------------------------------------------------------

    def _of(self, key: StepKey) -> dict[str, Any]:
        return _labels(self._nodes(key.node), self._models(key.model))

    def _at(self, key: StepKey, attempt: Attempt) -> dict[str, Any]:
        return {**self._of(key), "target": self._targets(attempt.target.name)}

    def _tails_of(self, key: StepKey) -> _Tails:
        name = self._nodes(key.node), self._models(key.model)
        tails = self._tails.get(name)
        if tails is None:
            tails = self._tails[name] = _Tails(self._survival)
        return tails


_serving: weakref.WeakKeyDictionary[MeterProvider, Metrics] = weakref.WeakKeyDictionary()
_serving_lock = threading.Lock()


def metrics_of(survival: Callable[[], Survival], meter_provider: MeterProvider) -> Metrics:
    """Return the `Metrics` of this provider, made where there is none."""
    with _serving_lock:
        metrics = _serving.get(meter_provider)
        if metrics is None:
            metrics = _serving[meter_provider] = Metrics(survival, meter_provider)
        return metrics


def _labels(node: str, model: str) -> dict[str, str]:
    return {"node": node, "model": model} if model else {"node": node}
