"""Spans: run -> step -> attempts. A loser's status is unset, and only attempts carry usage (DESIGN 5.15).

The step ends when its caller has the answer; the attempts end when they really end, which may be later. A span is
started, never made current, but for two: the run's inside its scope, and an attempt's inside its own task, so that
what the attempt does (an instrumented client, a worker thread) becomes its child.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from opentelemetry import context as otel
from opentelemetry.context import Context
from opentelemetry.trace import (
    Link,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TracerProvider,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agent_hedge.core.events import (
    AttemptEnded,
    AttemptRefused,
    AttemptStarted,
    CancelSent,
    Committed,
    Event,
    RunEnded,
    RunStarted,
    StepClosed,
    StepEnded,
    StepReopened,
    StepStarted,
    TriggerArmed,
    TriggerLate,
)
from agent_hedge.core.step import FOREVER, Attempt, Certainty, Role, StepKey, Usage, Verdict
from agent_hedge.observers.described import Describe, Described, describe_nothing
from agent_hedge.observers.otel import names
from agent_hedge.observers.outcome import CANCELLED, outcome_of

Scope = AbstractContextManager[object] | None

OTHERS = (
    "openinference.instrumentation.langchain",
    "opentelemetry.instrumentation.langchain",
    "opentelemetry.instrumentation.genai.langchain",
)
"""Instrumentations that count the tokens of the chat model's run, which are the winner's."""
KEPT_BROKEN = 256
"""Steps whose winner broke, remembered so that the race that runs them again can be linked."""

_PROPAGATOR = TraceContextTextMapPropagator()


class _Step:
    __slots__ = (
        "attempts", "context", "due_at", "hedges", "offset", "primary", "races", "refused", "span", "started_at",
    )  # fmt: skip

    def __init__(self, span: Span, started_at: float, offset: int) -> None:
        self.span = span
        self.context = set_span_in_context(span)
        self.started_at = started_at
        self.offset = offset
        self.attempts: dict[str, _Attempt] = {}
        self.due_at: float | None = None
        self.refused = ""
        self.hedges = 0
        self.primary: SpanContext | None = None
        self.races = 1
        """Open races: a step that is run again may still have losers of its first race."""

    def ns(self, at: float) -> int:
        """Turn an instant of the run loop into epoch nanoseconds."""
        return self.offset + int(at * 1e9)


class _Attempt:
    __slots__ = ("cancelled_at", "cause", "span")

    def __init__(self, span: Span) -> None:
        self.span = span
        self.cancelled_at: float | None = None
        self.cause = ""


class Tracing:
    """The observer that makes spans. Everything it knows of a step it forgets when the step is closed.

    `winner_usage`: whether a winner's span carries its tokens; by default it does unless another instrumentation of
    LangChain is loaded, whose span of the same call carries them.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        describe: Describe = describe_nothing,
        winner_usage: bool | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._tracer = get_tracer(names.SCOPE, tracer_provider=tracer_provider)
        self._describe = describe
        self._winner_usage = winner_usage
        self._wall_ns = wall_ns
        self._latest = names.latest()
        self._steps: dict[str, _Step] = {}
        self._runs: dict[int, Span] = {}
        self._broken: OrderedDict[str, SpanContext] = OrderedDict()
        self._kinds: dict[type[Event], Callable[[Any], Scope]] = {
            RunStarted: self._run_started,
            RunEnded: self._run_ended,
            StepStarted: self._step_started,
            StepReopened: self._step_reopened,
            TriggerArmed: self._trigger_armed,
            TriggerLate: self._trigger_late,
            AttemptRefused: self._refused,
            AttemptStarted: self._attempt_started,
            Committed: self._committed,
            CancelSent: self._cancel_sent,
            AttemptEnded: self._attempt_ended,
            StepEnded: self._step_ended,
            StepClosed: self._step_closed,
        }

    def on_event(self, event: Event) -> Scope:
        heard = self._kinds.get(type(event))
        return None if heard is None else heard(event)

    def headers(self, attempt: Attempt, /) -> Mapping[str, str]:
        """Return ``traceparent`` (and ``tracestate``) of the attempt that runs here. Baggage is not for providers."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier

    # --- runs -----------------------------------------------------------------------------------------------------

    def _run_started(self, event: RunStarted) -> Scope:
        attributes: dict[str, Any] = {names.RUN_KEY: event.run_key, names.RUN_GENERATION: event.generation}
        if event.tenant:
            attributes[names.TENANT] = event.tenant
        if event.deadline < FOREVER:
            attributes[names.DEADLINE_LEFT] = event.deadline - event.at
        span = self._runs[event.run] = self._tracer.start_span(names.RUN, attributes=attributes)
        return Current(set_span_in_context(span))

    def _run_ended(self, event: RunEnded) -> None:
        span = self._runs.pop(event.run, None)
        if span is None:
            return
        span.set_attributes(
            {
                names.RUN_STEPS: event.steps,
                names.RUN_HEDGES: event.hedges,
                names.RUN_RECOVERIES: event.recoveries,
            }
        )
        if event.error and event.error != "CancelledError":
            span.set_attribute(names.ERROR_TYPE, event.error)
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    # --- steps ----------------------------------------------------------------------------------------------------

    def _step_started(self, event: StepStarted) -> None:
        attributes = _of_key(event.key)
        if event.run_key:
            attributes |= {names.RUN_KEY: event.run_key, names.RUN_GENERATION: event.generation}
        if event.tenant:
            attributes[names.TENANT] = event.tenant
        if event.deadline < FOREVER:
            attributes[names.DEADLINE_LEFT] = event.deadline - event.at
        self._open(event, attributes, [])

    def _step_reopened(self, event: StepReopened) -> None:
        broken = self._broken.pop(event.step_id, None)
        links = [] if broken is None else [Link(broken)]
        self._open(event, _of_key(event.key) | {names.REOPENED: True}, links)

    def _open(self, event: Event, attributes: Mapping[str, Any], links: list[Link]) -> None:
        now = self._wall_ns()
        span = self._tracer.start_span(
            f"{names.STEP} {event.key.node}", attributes=attributes, links=links, start_time=now
        )
        previous = self._steps.get(event.step_id)
        step = self._steps[event.step_id] = _Step(span, event.at, now - int(event.at * 1e9))
        if previous is not None:
            step.attempts.update(previous.attempts)
            step.races += previous.races

    def _trigger_armed(self, event: TriggerArmed) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            step.due_at = event.due_at
            if step.hedges:  # armed again for the next one: said when that one is due
                return
            step.span.add_event(names.TRIGGER_ARMED, {names.DUE_IN: event.due_at - event.at}, step.ns(event.at))

    def _trigger_late(self, event: TriggerLate) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            late = {names.LATE_BY: event.late, names.DUE_IN: event.due_at - event.at}
            step.due_at = event.due_at
            step.span.add_event(names.TRIGGER_LATE, late, step.ns(event.at))

    def _refused(self, event: AttemptRefused) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            self._due(step, event.role, event.at)
            step.refused = event.reason
            said = {names.REASON: str(event.reason), names.ROLE: str(event.role)}
            if event.detail:
                said[names.DETAIL] = event.detail
            step.span.add_event(names.REFUSED, said, step.ns(event.at))

    def _due(self, step: _Step, role: Role, at: float) -> None:
        if role is Role.HEDGE and step.due_at is not None and at >= step.due_at:
            step.span.add_event(names.HEDGE_DUE, None, step.ns(at))
            step.due_at = None

    def _committed(self, event: Committed) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            said: dict[str, Any] = {names.NUMBER: event.attempt.number}
            if event.by_claim:
                said[names.BY_CLAIM] = True
            step.span.add_event(names.COMMIT, said, step.ns(event.at))

    def _step_ended(self, event: StepEnded) -> None:
        step = self._steps.get(event.step_id)
        if step is None:
            return
        span, outcome = step.span, outcome_of(event)
        said: dict[str, Any] = {names.OUTCOME: outcome, names.LAUNCHED: event.launched}
        if step.hedges:
            said[names.HEDGES] = step.hedges
        if event.winner is not None:
            said[names.WINNER] = event.winner.target.name
        if step.refused and not step.hedges:
            said[names.REASON] = str(step.refused)
        if event.error and outcome != CANCELLED:
            said[names.ERROR_TYPE] = event.error
            span.set_status(Status(StatusCode.ERROR))
        span.set_attributes(said)
        span.end(step.ns(event.at))
        if event.error and event.winner is not None:
            self._broken[event.step_id] = span.get_span_context()
            if len(self._broken) > KEPT_BROKEN:
                self._broken.popitem(last=False)

    def _step_closed(self, event: StepClosed) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            step.races -= 1
            if not step.races:
                del self._steps[event.step_id]

    # --- attempts -------------------------------------------------------------------------------------------------

    def _attempt_started(self, event: AttemptStarted) -> Scope:
        step, attempt = self._steps.get(event.step_id), event.attempt
        if step is None:
            return None
        self._due(step, attempt.role, event.at)
        described = self._describe(attempt.target.name)
        attributes = self._of_attempt(attempt, event.key, described)
        links: list[Link] = []
        if attempt.role is not Role.PRIMARY:
            attributes[names.TRIGGER_DELAY] = attempt.started_at - step.started_at
        if attempt.role is Role.HEDGE and step.primary is not None:
            step.hedges += 1
            links.append(Link(step.primary))
            attributes[names.HEDGE_OF] = f"{step.primary.span_id:016x}"
        span = self._tracer.start_span(
            f"chat {event.key.model}" if event.key.model else f"{names.ATTEMPT} {event.key.node}",
            context=step.context,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=links,
            start_time=step.ns(attempt.started_at),
        )
        step.attempts[attempt.id] = _Attempt(span)
        if step.primary is None:
            step.primary = span.get_span_context()
        return Current(set_span_in_context(span, step.context))

    def _of_attempt(self, attempt: Attempt, key: StepKey, described: Described) -> dict[str, Any]:
        target = attempt.target
        attributes: dict[str, Any] = {
            names.TARGET: target.name,
            names.ROLE: str(attempt.role),
            names.NUMBER: attempt.number,
            names.ATTEMPT_ID: attempt.id,
        }
        if len(target.domain) > 1:  # else it is the target's name
            attributes[names.DOMAIN] = "/".join(target.domain)
        if attempt.deadline < FOREVER:
            attributes[names.DEADLINE_LEFT] = attempt.deadline - attempt.started_at
        if key.model:
            provider = described.provider or "_OTHER"
            attributes[names.OPERATION] = "chat"
            attributes[names.PROVIDER] = provider
            attributes[names.REQUEST_MODEL] = described.model or key.model
            if not self._latest:
                attributes[names.SYSTEM_OLD] = provider
        if described.address:
            attributes[names.SERVER_ADDRESS] = described.address
            if described.port is not None:
                attributes[names.SERVER_PORT] = described.port
        return attributes

    def _cancel_sent(self, event: CancelSent) -> None:
        step = self._steps.get(event.step_id)
        open_ = None if step is None else step.attempts.get(event.attempt.id)
        if step is not None and open_ is not None:
            open_.cancelled_at = event.at
            open_.cause = event.cause
            open_.span.add_event(names.CANCEL_SENT, None, step.ns(event.at))

    def _attempt_ended(self, event: AttemptEnded) -> None:
        step = self._steps.get(event.step_id)
        open_ = None if step is None else step.attempts.get(event.attempt.id)
        if step is None or open_ is None:
            return
        span, receipt = open_.span, event.receipt
        said: dict[str, Any] = {names.OUTCOME: str(event.verdict)}
        if event.latency is not None:
            said[names.TTFT] = event.latency
            if event.key.model:
                said[names.FIRST_CHUNK] = event.latency
            decode = event.at - event.attempt.started_at - event.latency
            if decode > 0:
                said[names.DECODE] = decode
        if receipt.phase:
            said[names.PHASE] = receipt.phase
        if open_.cancelled_at is not None:
            said[names.CAUSE] = open_.cause
            if receipt.released is not None:
                said[names.CANCEL_TO_RELEASE] = receipt.released - open_.cancelled_at
                span.add_event(names.RELEASED, None, step.ns(receipt.released))
        if event.verdict is Verdict.FAILED:
            said[names.ERROR_TYPE] = event.error or "_OTHER"
            if event.failure is not None:
                said[names.FAILURE] = str(event.failure)
            span.set_status(Status(StatusCode.ERROR))
        if receipt.usage is not None:
            said |= self._of_usage(receipt.usage, won=event.verdict is Verdict.WON)
        span.set_attributes(said)
        span.end(step.ns(event.at))
        del step.attempts[event.attempt.id]

    def _of_usage(self, usage: Usage, *, won: bool) -> dict[str, Any]:
        said: dict[str, Any] = {names.CERTAINTY: str(usage.certainty)}
        if usage.longest_gap:
            said[names.LONGEST_GAP] = usage.longest_gap
        if usage.response_id:
            said[names.RESPONSE_ID] = usage.response_id
        if usage.response_model:
            said[names.RESPONSE_MODEL] = usage.response_model
        if usage.finish:
            said[names.FINISH_REASONS] = (usage.finish,)
        if won and not self._counts_winner():
            return said
        if usage.certainty is not Certainty.EXACT:  # a lower bound is no usage: it would be added up as if it were
            if usage.output is not None:
                said[names.RECEIVED] = usage.output
            return said
        counts = {
            names.INPUT_TOKENS: usage.input,
            names.OUTPUT_TOKENS: usage.output,
            names.CACHE_READ_TOKENS: usage.cached,
        }
        return said | {name: count for name, count in counts.items() if count is not None}

    def _counts_winner(self) -> bool:
        if self._winner_usage is not None:
            return self._winner_usage
        return not any(module in sys.modules for module in OTHERS)


class Current:
    """Makes a context current while it is entered, in whatever task that is."""

    __slots__ = ("_context", "_token")

    def __init__(self, context: Context) -> None:
        self._context = context
        self._token: Any = None

    def __enter__(self) -> None:
        self._token = otel.attach(self._context)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if otel.get_current() is self._context:  # left where it was entered; elsewhere there is nothing to take back
            otel.detach(self._token)


def _of_key(key: StepKey) -> dict[str, Any]:
    return {names.NODE: key.node, names.MODEL: key.model} if key.model else {names.NODE: key.node}
