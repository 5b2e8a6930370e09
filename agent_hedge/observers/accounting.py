"""The books: every logical request and every physical attempt as a row, settled exactly once (R18).

An attempt's row is on the local spool before the attempt is dispatched, and in the ``steps`` and ``attempts`` tables
soon after. Tokens carry their certainty: exact by the provider's word, at least what was received, unknown. Computed
and billed are two numbers: what a provider bills for a cancelled attempt is its own affair (some bill all of it).
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Literal

from agent_hedge.core.events import (
    AttemptEnded,
    AttemptRefused,
    AttemptStarted,
    CancelSent,
    Event,
    FirstToken,
    StepClosed,
    StepEnded,
    StepPlanned,
    StepReopened,
    StepStarted,
    TriggerArmed,
)
from agent_hedge.core.step import Attempt, Certainty, Receipt, Role, Usage, Verdict
from agent_hedge.observers.outcome import outcome_of
from agent_hedge.observers.recorder import Recorder
from agent_hedge.observers.spool import Row, Table

Accounts = Literal["all", "hedged", "off"]
Prices = Callable[[str], Mapping[str, float] | None]
"""Target name -> money per million tokens (``input``, ``cached_input``, ``output``), or None."""

BROKEN_S = 2.0
"""How long a step whose winner broke may be run again before it counts as failed."""


class _Step:
    """What is known of an open step. `offset` turns the run loop's instants into epoch seconds."""

    __slots__ = (
        "answer", "armed_at", "attempts", "broken_at", "hedges", "held", "input", "offset", "plan", "races",
        "refused", "running", "started_at",
    )  # fmt: skip

    def __init__(self, started_at: float, offset: float) -> None:
        self.started_at = started_at
        self.offset = offset
        self.attempts: dict[str, _Attempt] = {}
        self.running = 0
        """Attempts that have not ended."""
        self.held: list[tuple[Table, Row]] = []
        """Rows of the step and its primary, until they are worth writing (``hedged``)."""
        self.armed_at: float | None = None
        self.plan: StepPlanned | None = None
        self.refused: AttemptRefused | None = None
        self.hedges = 0
        self.input: int | None = None
        self.answer: dict[str, Any] = {}
        self.broken_at: float | None = None
        self.races = 1
        """Open races: a step that is run again may still have losers of its first race."""


class _Attempt:
    __slots__ = ("attempt", "cancelled_at", "counted", "first_token_at")

    def __init__(self, attempt: Attempt) -> None:
        self.attempt = attempt
        self.cancelled_at: float | None = None
        self.first_token_at: float | None = None
        self.counted = False
        """Whether the provider has said how long its prompt was."""


class Accounting:
    """The observer that keeps the books, through a `Recorder`.

    ``all`` records every step, ``hedged`` those with more than one attempt (what is killed before that is not
    found again). `wall` gives epoch seconds.
    """

    def __init__(
        self,
        recorder: Recorder,
        *,
        accounts: Accounts = "all",
        prices: Prices = lambda _: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.recorder = recorder
        self._all = accounts == "all"
        self._prices = prices
        self._wall = wall
        self._steps: dict[str, _Step] = {}
        self._broken: dict[str, tuple[_Step, StepClosed]] = {}
        self._lock = threading.Lock()
        self._kinds: dict[type[Event], Callable[[Any], None]] = {
            StepStarted: self._step_started,
            StepReopened: self._step_reopened,
            StepPlanned: self._step_planned,
            TriggerArmed: self._trigger_armed,
            AttemptRefused: self._attempt_refused,
            AttemptStarted: self._attempt_started,
            FirstToken: self._first_token,
            CancelSent: self._cancel_sent,
            AttemptEnded: self._attempt_ended,
            StepEnded: self._step_ended,
            StepClosed: self._step_closed,
        }
        _alive.add(self)

    def on_event(self, event: Event) -> None:
        heard = self._kinds.get(type(event))
        if heard is not None:
            heard(event)

    @property
    def waiting(self) -> bool:
        """Whether there is something to ship."""
        return bool(self.recorder.waiting or self._broken)

    async def flush(self) -> None:
        """Ship everything that is known now."""
        self._settle_broken(-math.inf)
        await self.recorder.flush()

    # --- a step ---------------------------------------------------------------------------------------------------

    def _step_started(self, event: StepStarted) -> None:
        wall = self._wall()
        if self._broken:
            self._settle_broken(BROKEN_S)
        step = self._steps[event.step_id] = _Step(event.at, wall - event.at)
        row: dict[str, Any] = {
            "step_id": event.step_id,
            "run_key": event.run_key,
            "generation": event.generation,
            "node": event.key.node,
            "key": str(event.key),
            "started_at": wall,
        }
        if event.tenant:
            row["tenant"] = event.tenant
        if event.deadline < math.inf:
            row["deadline_s"] = event.deadline - event.at
        step.held.append(("steps", row))

    def _step_reopened(self, event: StepReopened) -> None:
        with self._lock:
            broken = self._broken.pop(event.step_id, None)
        if broken is not None:
            self._steps[event.step_id] = broken[0]
        if (step := self._steps.get(event.step_id)) is not None:
            step.broken_at = None
            step.races += 1

    def _step_planned(self, event: StepPlanned) -> None:
        step = self._steps.get(event.step_id)
        if step is not None:
            step.plan = event

    def _trigger_armed(self, event: TriggerArmed) -> None:
        step = self._steps.get(event.step_id)
        if step is not None and step.armed_at is None:
            step.armed_at = event.due_at

    def _attempt_refused(self, event: AttemptRefused) -> None:
        step = self._steps.get(event.step_id)
        if step is not None and (event.role is Role.HEDGE or step.refused is None):
            step.refused = event

    def _step_ended(self, event: StepEnded) -> None:
        step = self._steps.get(event.step_id)
        if step is None:
            return
        step.answer = {
            "ended_at": event.at + step.offset,
            "elapsed_s": event.at - step.started_at,
            "outcome": outcome_of(event),
            "error": event.error,
            "winner": event.winner.target.name if event.winner is not None else "",
        }
        if event.winner is None:
            return
        known = step.attempts.get(event.winner.id)
        if known is not None and known.first_token_at is not None:
            step.answer["ttft_s"] = known.first_token_at - step.started_at
        if event.error:
            step.broken_at = event.at

    def _step_closed(self, event: StepClosed) -> None:
        step = self._steps.get(event.step_id)
        if step is None:
            return
        step.races -= 1
        if step.races:
            return
        del self._steps[event.step_id]
        if step.broken_at is not None:
            with self._lock:
                self._broken[event.step_id] = (step, event)
            return
        self._settle(step, event.step_id)

    def _settle_broken(self, age: float) -> None:
        """Settle the steps whose winner broke and that nobody has run again."""
        now = self._wall()
        with self._lock:
            late = [step_id for step_id, (step, event) in self._broken.items() if now - (event.at + step.offset) >= age]
            settled = {step_id: self._broken.pop(step_id)[0] for step_id in late}
        for step_id, step in settled.items():
            self._settle(step, step_id)

    def _settle(self, step: _Step, step_id: str) -> None:
        if not self._all and len(step.attempts) < 2:
            return
        rows, step.held = step.held, []
        row = {"step_id": step_id, "launched": len(step.attempts), "hedges": step.hedges, **step.answer}
        if step.armed_at is not None:
            row["trigger_s"] = step.armed_at - step.started_at
        if step.plan is not None:
            row["d0"], row["slack_s"], row["price"] = step.plan.d0, step.plan.slack, step.plan.price
        if step.refused is not None:
            row["reason"], row["detail"] = str(step.refused.reason), step.refused.detail
        row["decision"] = self._decision(step)
        rows.append(("steps", {name: value for name, value in row.items() if value not in ("", None)}))
        for attempt_id, known in step.attempts.items():
            if not known.counted and step.input is not None:  # the same prompt, but was it computed?
                rows.append(("attempts", {"attempt_id": attempt_id, "tokens_input": step.input}))
        self.recorder.put(step_id, rows, last=True)

    @staticmethod
    def _decision(step: _Step) -> str:
        if step.hedges:
            return "hedged"
        if step.refused is not None and step.refused.role is Role.HEDGE:
            return "refused"
        return "not_due" if step.armed_at is not None else "none"

    # --- an attempt -----------------------------------------------------------------------------------------------

    def _attempt_started(self, event: AttemptStarted) -> None:
        step = self._steps.get(event.step_id)
        if step is None:
            return
        attempt = event.attempt
        step.attempts[attempt.id] = _Attempt(attempt)
        step.running += 1
        step.hedges += attempt.role is Role.HEDGE
        step.held.append(
            (
                "attempts",
                {
                    "attempt_id": attempt.id,
                    "step_id": event.step_id,
                    "number": len(step.attempts) - 1,
                    "role": str(attempt.role),
                    "target": attempt.target.name,
                    "domain": "/".join(attempt.target.domain),
                    "node": event.key.node,
                    "started_at": attempt.started_at + step.offset,
                },
            )
        )
        if self._all or len(step.attempts) > 1:
            rows, step.held = step.held, []
            self.recorder.put(event.step_id, rows)

    def _first_token(self, event: FirstToken) -> None:
        step = self._steps.get(event.step_id)
        if step is not None and (known := step.attempts.get(event.attempt.id)) is not None:
            known.first_token_at = event.at

    def _cancel_sent(self, event: CancelSent) -> None:
        step = self._steps.get(event.step_id)
        if step is not None and (known := step.attempts.get(event.attempt.id)) is not None:
            known.cancelled_at = event.at

    def _attempt_ended(self, event: AttemptEnded) -> None:
        step = self._steps.get(event.step_id)
        known = step.attempts.get(event.attempt.id) if step is not None else None
        if step is None or known is None:  # never dispatched
            return
        usage = event.receipt.usage
        if usage is not None and usage.input is not None:
            known.counted = True
            if step.input is None or event.verdict is Verdict.WON:
                step.input = usage.input
        row = self._settled(event, known, step.offset)
        step.running -= 1
        at_once = not step.running and step.answer and step.broken_at is None  # the step is closed next
        if step.held or at_once:  # not worth a write of its own (yet)
            step.held.append(("attempts", row))
        else:
            self.recorder.put(event.step_id, [("attempts", row)])

    def _settled(self, event: AttemptEnded, known: _Attempt, offset: float) -> dict[str, Any]:
        attempt, receipt = event.attempt, event.receipt
        usage = receipt.usage or Usage(output=receipt.tokens, certainty=receipt.certainty)
        exact = usage.certainty is Certainty.EXACT
        price, details = self._prices(attempt.target.name), _details(event, receipt)
        if price is not None and (attempt.is_hedge or event.verdict is not Verdict.WON):
            details["price"] = price  # what hedges added is known when the winner has said how long the prompt was
        row = {
            "attempt_id": attempt.id,
            "ended_at": event.at + offset,
            "ttft_s": event.latency,
            "outcome": str(event.verdict),
            "error": event.error,
            "phase": receipt.phase,
            "cancel_sent_s": _since(attempt, known.cancelled_at),
            "released_s": _since(attempt, receipt.released),
            "engine_request_id": usage.response_id,
            "tokens_input": usage.input,
            "tokens_computed": usage.output,
            "computed_certainty": str(usage.certainty),
            "tokens_billed": usage.output if exact else None,
            "billed_certainty": str(Certainty.EXACT if exact else Certainty.UNKNOWN),
            "cost": cost_of(usage, price),
            "receipt": json.dumps(details, separators=(",", ":")) if details else "",
        }
        return {name: value for name, value in row.items() if value not in ("", None)}

    def _after_fork(self) -> None:
        self._lock = threading.Lock()
        self._steps.clear()
        self._broken.clear()
        self.recorder.after_fork()


def cost_of(usage: Usage, price: Mapping[str, float] | None) -> float | None:
    """Return what an attempt cost, where its tokens are exact and a price is known (per million tokens)."""
    if price is None or usage.certainty is not Certainty.EXACT or usage.input is None or usage.output is None:
        return None
    cached = min(usage.cached or 0, usage.input)
    full = price.get("input", 0.0)
    return (
        (usage.input - cached) * full
        + cached * price.get("cached_input", full)
        + usage.output * price.get("output", 0.0)
    ) / 1e6


def _since(attempt: Attempt, at: float | None) -> float | None:
    return None if at is None else at - attempt.started_at


def _details(event: AttemptEnded, receipt: Receipt) -> dict[str, Any]:
    usage = receipt.usage
    details: dict[str, Any] = {"failure": event.failure, "censored_s": event.censored_at}
    if usage is not None:
        details |= {
            "chunks": usage.chunks or None,
            "cached": usage.cached,
            "longest_gap_s": usage.longest_gap or None,
            "finish": usage.finish or None,
        }
    return {name: value for name, value in details.items() if value is not None}


_alive: weakref.WeakSet[Accounting] = weakref.WeakSet()


def _after_fork() -> None:
    for accounting in list(_alive):
        accounting._after_fork()


os.register_at_fork(after_in_child=_after_fork)
