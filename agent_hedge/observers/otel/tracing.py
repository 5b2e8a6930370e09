"""Spans: run -> step -> attempts. A loser's status is unset, and only attempts carry usage (DESIGN 5.15).

The step ends when its caller has the answer; the attempts end when they really end, which may be later. A span is
started, never made current, but for two: the run's inside its scope, and an attempt's inside its own task, so that
what the attempt does (an instrumented client, a worker thread) becomes its child.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
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
    TracerProvider,
    get_current_span,
    get_tracer,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from agent_hedge.core.events import (
    AttemptEnded,
    AttemptRefused,
    AttemptStarted,
    CancelSent,
    Claimed,
    Committed,
    Event,
    Fenced,
    RunEnded,
    RunStarted,
    StepClosed,
    StepEnded,
    StepReopened,
    StepStarted,
    TriggerArmed,
    TriggerLate,
)
from agent_hedge.core.ports import Portal
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Attempt, Role, Verdict
from agent_hedge.observers.described import Describe, describe_nothing
from agent_hedge.observers.otel import beside, names
from agent_hedge.observers.otel.attributes import (
    Attributes,
    of_answer,
    of_attempt,
    of_content,
    of_end,
    of_request,
    of_run,
    of_run_end,
    of_step,
    of_usage,
)
from agent_hedge.observers.otel.opened import Opened
from agent_hedge.observers.otel.visits import Visit, Visits

Scope = AbstractContextManager[object] | None

KEPT_BROKEN = 256
"""Steps whose winner broke, remembered so that the race that runs them again can be linked."""

_PROPAGATOR = TraceContextTextMapPropagator()
_BY_CLAIM: Attributes = {names.BY_CLAIM: True}


class _Step(Opened):
    __slots__ = ("context", "due_at", "hedges", "primary", "races", "refused", "started_at", "visit")

    def __init__(self, span: Span, said: Attributes, offset: int, started_at: float) -> None:
        super().__init__(span, said, offset)
        self.context = set_span_in_context(span)
        self.started_at = started_at
        self.due_at: float | None = None
        self.refused = ""
        self.hedges = 0
        self.primary: SpanContext | None = None
        self.visit: Visit | None = None
        """The span of its run, where configuration has opened that."""
        self.races = 1
        """Open races: a step that is run again may still have losers of its first race."""


class Tracing:
    """The observer that makes spans. Everything it knows of a step it forgets when the step is closed.

    `winner_usage`: whether a winner's span carries its tokens; by default it does unless another instrumentation of
    LangChain is loaded, whose span of the same call carries them. `content`: whether prompts and answers stand there
    too. `run_here` gives the run around a step where configuration has opened it, `portal` ends its span in time.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        describe: Describe = describe_nothing,
        winner_usage: bool | None = None,
        content: bool = False,
        run_here: Callable[[], Run | None] | None = None,
        portal: Portal | None = None,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._start = get_tracer(names.SCOPE, tracer_provider=tracer_provider).start_span
        self._describe = describe
        self._winner_usage = winner_usage
        self._content = content
        self._wall_ns = wall_ns
        self._latest = names.latest()
        self._visits = None if run_here is None else Visits(self._start, run_here, wall_ns, portal)
        self._runs: dict[int, Opened] = {}
        self._steps: dict[str, _Step] = {}
        self._attempts: dict[int, Opened] = {}
        """By their nonces."""
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
            Fenced: self._fenced,
            Claimed: self._claimed,
            AttemptEnded: self._attempt_ended,
            StepEnded: self._step_ended,
            StepClosed: self._step_closed,
        }
        _alive.add(self)

    def on_event(self, event: Event) -> Scope:
        heard = self._kinds.get(type(event))
        return None if heard is None else heard(event)

    def headers(self, attempt: Attempt, /) -> Mapping[str, str]:
        """Return ``traceparent`` (and ``tracestate``) of the attempt that runs here. Baggage is not for providers."""
        carrier: dict[str, str] = {}
        _PROPAGATOR.inject(carrier)
        return carrier

    def close(self) -> None:
        """End the spans of runs that nobody else will end."""
        if self._visits is not None:
            self._visits.end()

    def _after_fork(self) -> None:
        """What the parent has opened, the parent ends."""
        for opened in (self._runs, self._steps, self._attempts):
            opened.clear()
        if self._visits is not None:
            self._visits.after_fork()

    # --- runs -----------------------------------------------------------------------------------------------------

    def _run_started(self, event: RunStarted) -> Scope:
        span = self._start(names.RUN, beside.parent())
        self._runs[event.run] = Opened(span, of_run(event))
        return Current(set_span_in_context(span))

    def _run_ended(self, event: RunEnded) -> None:
        if (run := self._runs.pop(event.run, None)) is not None:
            run.said |= of_run_end(event)
            run.end()

    # --- steps ----------------------------------------------------------------------------------------------------

    def _step_started(self, event: StepStarted) -> None:
        self._open(event)

    def _step_reopened(self, event: StepReopened) -> None:
        previous = self._steps.get(event.step_id)
        broken = self._broken.pop(event.step_id, None)
        step = self._open(event, [] if broken is None else [Link(broken)])
        if previous is not None:
            step.races += previous.races

    def _open(self, event: StepStarted | StepReopened, links: Sequence[Link] = ()) -> _Step:
        now, parent, visit = self._wall_ns(), beside.parent(), None
        if self._visits is not None and parent is None and not beside.graph_has_a_span():
            visit, parent = self._visits.begin(event)
        span = self._start(f"{names.STEP} {event.key.node}", parent, links=links, start_time=now)
        step = self._steps[event.step_id] = _Step(span, of_step(event), now - int(event.at * 1e9), event.at)
        step.visit = visit
        return step

    def _trigger_armed(self, event: TriggerArmed) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            step.due_at = event.due_at
            if not step.hedges:  # armed again for the next one: said when that one is due
                step.said[names.TRIGGER] = event.due_at - event.at
                step.note(names.TRIGGER_ARMED, event.at)

    def _trigger_late(self, event: TriggerLate) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            step.due_at = event.due_at
            step.note(names.TRIGGER_LATE, event.at, {names.LATE_BY: event.late, names.DUE_IN: event.due_at - event.at})

    def _refused(self, event: AttemptRefused) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            self._due(step, event.role, event.at)
            step.refused = str(event.reason)
            said = {names.REASON: step.refused, names.ROLE: str(event.role)}
            if event.detail:
                said[names.DETAIL] = event.detail
            step.note(names.REFUSED, event.at, said)

    def _due(self, step: _Step, role: Role, at: float) -> None:
        if role is Role.HEDGE and step.due_at is not None and at >= step.due_at:
            step.note(names.HEDGE_DUE, at)
            step.due_at = None

    def _committed(self, event: Committed) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            step.note(names.COMMIT, event.at, _BY_CLAIM if event.by_claim else None)

    def _step_ended(self, event: StepEnded) -> None:
        step = self._steps.get(event.step_id)
        if step is None:
            return
        step.said |= of_answer(event, hedges=step.hedges, refused=step.refused)
        step.end(event.at)
        if step.visit is not None and self._visits is not None:
            self._visits.over(step.visit)
        if event.error and event.winner is not None:
            self._broken[event.step_id] = step.span.get_span_context()
            if len(self._broken) > KEPT_BROKEN:
                self._broken.popitem(last=False)

    def _step_closed(self, event: StepClosed) -> None:
        if (step := self._steps.get(event.step_id)) is not None:
            step.races -= 1
            if not step.races:
                del self._steps[event.step_id]

    # --- attempts -------------------------------------------------------------------------------------------------

    def _attempt_started(self, event: AttemptStarted) -> Scope:
        step, attempt, key = self._steps.get(event.step_id), event.attempt, event.key
        if step is None:
            return None
        self._due(step, attempt.role, event.at)
        said = of_attempt(attempt)
        links: Sequence[Link] = ()
        if attempt.role is not Role.PRIMARY:
            said[names.TRIGGER_DELAY] = attempt.started_at - step.started_at
        if attempt.role is Role.HEDGE and step.primary is not None:
            step.hedges += 1
            links = (Link(step.primary),)
            said[names.HEDGE_OF] = f"{step.primary.span_id:016x}"
        described = self._describe(attempt.target.name)
        asked = of_request(key, described, latest=self._latest) if key.model or described.address else None
        span = self._start(
            f"chat {key.model}" if key.model else f"{names.ATTEMPT} {key.node}",
            step.context,
            SpanKind.CLIENT,
            asked,
            links,
            step.offset + int(attempt.started_at * 1e9),
        )
        self._attempts[attempt.nonce] = Opened(span, said, step.offset)
        if step.primary is None:
            step.primary = span.get_span_context()
        return Current(set_span_in_context(span, step.context))

    def _cancel_sent(self, event: CancelSent) -> None:
        if (open_ := self._attempts.get(event.attempt.nonce)) is not None:
            open_.note(names.CANCEL_SENT, event.at)
            if event.cause != Verdict.SUPERSEDED:  # its outcome says that
                open_.said[names.CAUSE] = event.cause

    def _fenced(self, event: Fenced) -> None:
        if (open_ := self._attempts.get(event.attempt.nonce)) is not None:
            said: Attributes = {names.PASSED: event.passed}
            if event.tool:
                said[names.TOOL] = event.tool
            open_.note(names.FENCE, event.at, said)

    def _claimed(self, event: Claimed) -> None:
        """Say it where it happened: in an attempt, else in the run, else in whatever span is current."""
        said = {names.TOOL: event.tool, names.ANSWER: event.answer}
        if event.attempt is not None and (open_ := self._attempts.get(event.attempt.nonce)) is not None:
            open_.note(names.CLAIM, event.at, said)
        elif event.run is not None and (run := self._run_of(event.run)) is not None:
            run.span.add_event(names.CLAIM, said)
        else:
            get_current_span().add_event(names.CLAIM, said)

    def _run_of(self, number: int) -> Opened | None:
        known = self._runs.get(number)
        return self._visits.of(number) if known is None and self._visits is not None else known

    def _attempt_ended(self, event: AttemptEnded) -> None:
        open_ = self._attempts.pop(event.attempt.nonce, None)
        if open_ is None:
            return
        open_.said |= of_end(event)
        released, usage = event.receipt.released, event.receipt.usage
        if released is not None:
            open_.note(names.RELEASED, released)
        if usage is not None:
            counted = event.verdict is not Verdict.WON or self._counts_winner()
            open_.said |= of_usage(usage, counted=counted)
            if self._content and counted and open_.span.is_recording():
                open_.said |= of_content(usage)
        open_.end(event.at)

    def _counts_winner(self) -> bool:
        return not beside.winner_is_counted() if self._winner_usage is None else self._winner_usage


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


_alive: weakref.WeakSet[Tracing] = weakref.WeakSet()


def _after_fork() -> None:
    for tracing in list(_alive):
        tracing._after_fork()


os.register_at_fork(after_in_child=_after_fork)
