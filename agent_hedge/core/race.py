"""The race: all attempts of one step, as a state machine. Facts in, commands out; no I/O and no clock.

    open ──► committed ──► closed
      └──────(failed)───────┘

1. The first *acceptable* outcome wins; an error never beats an attempt that can still succeed (R1).
2. While open, the policy says when the next attempt is due (a *hedge*); a failure makes one due at once (a
   *recovery*). Every attempt asks the chooser for a place and every gate for a permit; a refused hedge is silence.
3. The election happens once, under a lock, and is final: by the first meaningful token, by an accepted result, or by
   `claim` from any thread before a side effect (R10). After it nothing is launched and nothing is exchanged (R3).
4. When nothing is in flight and nothing more is due, the step has failed: the caller gets the primary's own error.
5. A timer that is late means that the loop stood still: the trigger moves, and the sample is not believed (R4).
6. The race is closed when every attempt has really ended, or was abandoned. Each attempt settles exactly once.
7. Facts of one instant are taken in a fixed order: acceptable ones first, then by attempt number, timers last.

Everything but `claim` is called by the thread of the run loop that drives the race. `engine/driver.py` carries the
commands out with tasks, `testing/simulator.py` with a heap. The file is long because every transition reads and writes
the same few fields: in two files neither could be read alone.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import getrandbits
from typing import Any, NamedTuple, TypeAlias

from agent_hedge.core.events import (
    AttemptEnded,
    AttemptRefused,
    AttemptStarted,
    CancelSent,
    Committed,
    Event,
    FirstToken,
    Reason,
    StepClosed,
    StepEnded,
    StepPlanned,
    StepReopened,
    StepStarted,
    TriggerArmed,
    TriggerLate,
)
from agent_hedge.core.ports import (
    Chooser,
    FleetView,
    Gate,
    HedgePolicy,
    LatencyBook,
    Permit,
    PlanView,
    Refused,
    RunView,
)
from agent_hedge.core.step import (
    MAX_ATTEMPTS,
    Ahead,
    Attempt,
    Effect,
    Ended,
    Failure,
    Outcome,
    Place,
    Receipt,
    Role,
    StepKey,
    Verdict,
    instant,
)
from agent_hedge.errors import AllAttemptsFailed, DeadlineExceeded, HedgeError, NotDispatched

LATE_S = 0.020
"""A timer later than this means that the run loop stood still (R4)."""
LATE_GRACE_S = 0.050
"""What the trigger moves on top of the lateness, so that an answer that is already there can be read (R4)."""
MAX_REARMS = 3

_PRIMARY_REFUSALS = frozenset({Reason.DEADLINE, Reason.TOO_LATE})
_NO_RECEIPT = Receipt()


class Pass:
    """A permit of a gate that does not care how the attempt ends. Use the constant `PASS`."""

    def committed(self, *, at: float) -> None: ...
    def settle(self, end: Ended, *, at: float) -> None: ...


PASS = Pass()


# Commands. Not frozen, and no tuples: either would cost twice as much to make, and every call makes three of them.
@dataclass(slots=True)
class Launch:
    """Dispatch this attempt in a task of its own."""

    attempt: Attempt


@dataclass(slots=True)
class Cancel:
    """Stop this attempt; it has lost (``superseded``), or its time is over (``deadline``, ``caller``)."""

    number: int
    cause: str


@dataclass(slots=True)
class Commit:
    """This attempt has won: its stream, or its result to come, is the caller's."""

    number: int


@dataclass(slots=True)
class Answer:
    """Give this to the caller now. `cause` explains an error that stands for several."""

    outcome: Outcome[Any]
    cause: BaseException | None = None


@dataclass(slots=True)
class Report:
    """Tell the observers."""

    event: Event


Command: TypeAlias = Launch | Cancel | Commit | Answer | Report


class Token(NamedTuple):
    """Fact: the first meaningful token of an attempt."""

    number: int


class Done(NamedTuple):
    """Fact: an attempt brought an outcome."""

    number: int
    outcome: Outcome[Any]


Fact: TypeAlias = Token | Done


class State(StrEnum):
    OPEN = "open"
    COMMITTED = "committed"
    FAILED = "failed"


# An attribute of an enum costs 75 ns on Python 3.11, a global 10; these stand on the path of every call.
_PRIMARY, _HEDGE, _RECOVERY = Role.PRIMARY, Role.HEDGE, Role.RECOVERY
_OPEN, _COMMITTED, _FAILED = State.OPEN, State.COMMITTED, State.FAILED
_WON = Verdict.WON
_FOREVER = math.inf
_NONE: frozenset[str] = frozenset()


_log = logging.getLogger("agent_hedge.race")
_complained: set[type] = set()


def _complain(policy: HedgePolicy) -> None:
    """Log what a policy has raised, once per type."""
    kind = type(policy)
    if kind not in _complained:
        _complained.add(kind)
        _log.exception("policy %s raised, so nothing is hedged by it; logged once", kind.__name__)


class _Leg:
    """What the race knows of one attempt."""

    __slots__ = ("attempt", "cancelled", "censored_at", "ended", "latency", "losses_only", "outcome", "permits")

    def __init__(self, attempt: Attempt, permits: Sequence[Permit], losses_only: bool) -> None:
        self.attempt = attempt
        self.permits = permits
        self.losses_only = losses_only
        self.latency: float | None = None
        self.censored_at: float | None = None
        self.outcome: Outcome[Any] | None = None
        self.cancelled = ""
        self.ended = False

    @property
    def running(self) -> bool:
        return self.outcome is None and not self.cancelled

    @property
    def failure(self) -> Failure | None:
        return self.outcome.failure if self.outcome and not self.cancelled else None


class Race:
    """One race. Its public attributes are what policies, gates and choosers see (`RaceView`)."""

    __slots__ = (
        "_claimed", "_commands", "_due", "_elected", "_legs", "_lock", "_observed", "_rearms", "_recover_at",
        "_settled", "_spoken", "_step_id", "_unfinished", "ahead", "barred", "candidates", "chooser", "commit_on_token",
        "deadline", "effect", "effect_key", "excluded", "fleet", "gates", "hedges", "in_flight", "key",
        "last_launch_at", "last_target", "latency", "launched", "max_attempts", "now", "opening", "plans", "policy",
        "primary_gates", "prompt_tokens", "run", "stalled", "started_at", "state", "time_left", "wake_at", "winner",
    )  # fmt: skip

    def __init__(
        self,
        key: StepKey,
        policy: HedgePolicy,
        chooser: Chooser,
        candidates: Sequence[Place],
        latency: LatencyBook,
        fleet: FleetView,
        gates: Sequence[Gate] = (),
        primary_gates: Sequence[Gate] | None = None,
        run: RunView | None = None,
        plans: PlanView | None = None,
        ahead: Ahead | None = None,
        effect: Effect = Effect.UNKNOWN,
        barred: Refused | None = None,
        prompt_tokens: int = 0,
        deadline: float = math.inf,
        commit_on_token: bool = False,
        observed: bool = False,
        time_left: Callable[[], float] | None = None,
        *,
        effect_key: str | None = None,
        max_attempts: int = MAX_ATTEMPTS,
        step_id: str | None = None,
    ) -> None:
        self.key = key
        self.policy = policy
        self.chooser = chooser
        self.candidates = candidates
        self.latency = latency
        self.fleet = fleet
        self.gates = gates
        self.primary_gates = gates if primary_gates is None else primary_gates
        """Those of `gates` that a primary has to ask: the others let every primary pass, which takes time, too."""
        self.run = run
        self.plans = plans
        self.ahead = ahead
        self.effect = effect
        self.effect_key = effect_key
        self.barred = barred
        self.prompt_tokens = prompt_tokens
        self.deadline = deadline
        self.time_left = time_left
        self.commit_on_token = commit_on_token
        self.max_attempts = max_attempts
        self._step_id = step_id
        self.state = _OPEN
        self.winner: int | None = None
        self.now = self.started_at = self.last_launch_at = 0.0
        self.last_target = ""
        self.launched = self.hedges = self.in_flight = 0
        self.excluded = _NONE
        self.opening = _PRIMARY
        """`RECOVERY` where the step is run again after its winner broke (R3): then the first attempt may be refused."""
        self.stalled = False
        self.wake_at: float | None = None
        self._observed = observed
        self._legs: list[_Leg] = []
        self._commands: list[Command] = []
        self._due: float | None = None
        self._recover_at: float | None = None
        self._rearms = self._unfinished = 0
        self._spoken = self._settled = self._claimed = self._elected = False
        self._lock = threading.Lock()

    def follow(self, broken: Race) -> None:
        """Run the same step again after its winner broke: the same request, as a recovery, with what is left (R3)."""
        self._step_id = broken.step_id
        self.opening = Role.RECOVERY
        self.excluded = broken.excluded
        if broken.winner is not None:  # whoever broke it is not asked again while there is another place
            left = {place.name for place in self.candidates} - self.excluded
            broke = {broken.attempts[broken.winner].target.name}
            self.excluded |= broke if left - broke else frozenset()
        self.max_attempts = broken.max_attempts - broken.launched

    # --- what others see ----------------------------------------------------------------------------------------

    @property
    def step_id(self) -> str:
        """The id of the logical request, made when it is first asked for."""
        if self._step_id is None:
            self._step_id = f"ahs-{getrandbits(64):016x}"
        return self._step_id

    @property
    def attempts(self) -> Sequence[Attempt]:
        return [leg.attempt for leg in self._legs]

    @property
    def claimed(self) -> bool:
        """Whether the commit came through a side effect: the step must not be run again by itself."""
        return self._claimed

    @property
    def closed(self) -> bool:
        return self._settled and self._unfinished == 0

    def is_running(self, number: int) -> bool:
        """Whether this attempt may still bring something."""
        return self._legs[number].running

    def latency_of(self, number: int) -> float | None:
        """The seconds from this attempt's launch to its first meaningful token, if it has come."""
        return self._legs[number].latency

    def is_cancelled(self, number: int) -> bool:
        """Whether this attempt was told to stop."""
        return bool(self._legs[number].cancelled)

    # --- facts --------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Command]:
        """Open the race: dispatch the primary, arm the trigger."""
        self.now = self.started_at = now
        if self._observed:
            self._report_opening()
        if refused := self._launch(self.opening):
            error: HedgeError = DeadlineExceeded(elapsed=0.0)
            if refused.reason not in _PRIMARY_REFUSALS:
                error = NotDispatched(
                    f"No attempt could be dispatched: {refused.reason} {refused.detail}".rstrip() + "."
                )
            self._settle(Outcome(error=error, accepted=False))
        return self._take()

    def on_timer(self, now: float) -> list[Command]:
        """The instant `wake_at` has come (or passed)."""
        self.now = now
        if self.wake_at is None or now < self.wake_at:
            return []
        if now >= self.deadline:
            self._stop("deadline")
        elif self._due is not None and now >= self._due:
            late = now - self._due
            if late > LATE_S and self._rearms < MAX_REARMS:
                self._rearms += 1
                self.stalled = True
                self._due = instant(now + late + LATE_GRACE_S)
                if self._observed:
                    self._report(TriggerLate, late=late, due_at=self._due)
            else:
                self._due = None
                self._launch(_HEDGE)
        else:
            self._recover()
            self._fail_if_nothing_is_left()
        return self._take()

    def on_facts(self, facts: Iterable[Fact], now: float) -> list[Command]:
        """Take the facts of one instant in the order of rule 7."""
        commands: list[Command] = []
        for fact in sorted(facts, key=self._rank):
            if type(fact) is Token:
                commands += self.on_token(fact.number, now)
            else:
                commands += self.on_outcome(fact.number, fact.outcome, now)  # type: ignore[union-attr]
        return commands

    def on_token(self, number: int, now: float) -> list[Command]:
        """The first meaningful token of an attempt has come: it commits, or (with `accept`) disarms the trigger."""
        self.now = now
        leg = self._legs[number]
        if leg.latency is None and leg.running:
            self._saw_token(leg)
            if self.commit_on_token:
                self._elect(number)
            else:
                self._spoken = True
                self._due = None
        return self._take()

    def on_outcome(self, number: int, outcome: Outcome[Any], now: float) -> list[Command]:
        """An attempt brought a result, failed, or (as the winner) ended its stream."""
        self.now = now
        self._hear(self._legs[number], outcome)
        return self._take()

    def on_finished(self, number: int, outcome: Outcome[Any], now: float, receipt: Receipt) -> list[Command]:
        """`on_outcome` and `on_ended` of one instant: an attempt that runs alone is done, and so is its task."""
        self.now = now
        leg = self._legs[number]
        self._hear(leg, outcome)
        self._end(leg, receipt)
        return self._take()

    def _hear(self, leg: _Leg, outcome: Outcome[Any]) -> None:
        if leg.outcome is not None or leg.cancelled:
            return
        number = leg.attempt.number
        leg.outcome = outcome
        self.in_flight -= 1
        if self.state is _OPEN and outcome.accepted:
            if leg.latency is None:
                self._saw_token(leg)
            self._elect(number)
        if self.winner == number:
            if not self._elected:
                self._collect()
            self._settle(outcome)
        elif self.state is _OPEN:
            self._failed(leg, outcome)

    def on_cancel(self, now: float) -> list[Command]:
        """The caller has left: everything in flight is told to stop (R7)."""
        self.now = now
        self._stop("caller")
        return self._take()

    def on_ended(
        self, number: int, now: float, receipt: Receipt = _NO_RECEIPT, *, abandoned: bool = False
    ) -> list[Command]:
        """An attempt's task has really ended, or was given up by the reaper."""
        self.now = now
        self._end(self._legs[number], receipt, abandoned)
        return self._take()

    def _end(self, leg: _Leg, receipt: Receipt, abandoned: bool = False) -> None:
        if leg.ended:
            return
        leg.ended = True
        self._unfinished -= 1
        verdict = self._verdict(leg, abandoned)
        if verdict is _WON and leg.losses_only:
            leg.permits = ()
        elif leg.permits:
            self._settle_permits(leg, verdict)
        if self._observed:
            self._report_end(leg, verdict, receipt)

    def claim(self, number: int) -> bool:
        """Elect this attempt before a side effect, from any thread; final. The driver then calls `on_claim`."""
        with self._lock:
            if self.winner is not None:
                return self.winner == number
            if self.state is not _OPEN or not self._legs[number].running:
                return False
            self.state = _COMMITTED
            self.winner = number
            self._claimed = True
        return True

    def on_claim(self, now: float) -> list[Command]:
        """Carry out what a `claim` has decided: cancel the others."""
        self.now = now
        self._collect()
        return self._take()

    # --- the election -------------------------------------------------------------------------------------------

    def _elect(self, number: int) -> None:
        with self._lock:
            if self.state is not _OPEN:
                return
            self.state = _COMMITTED
            self.winner = number
        self._collect()

    def _collect(self) -> None:
        """Turn a fresh election into commands; does nothing the second time."""
        if self.winner is None or self._elected:
            return
        self._elected = True
        winner = self._legs[self.winner]
        self._due = self._recover_at = None
        self._commands.append(Commit(self.winner))
        if self.run is not None and winner.latency is not None:
            self.run.last_step = (self.key, winner.attempt.target.name, winner.latency, self.launched)
        if not winner.losses_only:
            for permit in winner.permits:
                permit.committed(at=self.now)
        if self._observed:
            self._report(Committed, attempt=winner.attempt, by_claim=self._claimed)
        if self._unfinished > 1:
            self._cancel_all("superseded", but=self.winner)

    # --- launching ----------------------------------------------------------------------------------------------

    def _launch(self, role: Role) -> Refused | None:
        """Dispatch the next attempt, or report why not. Then ask the policy when the next one is due."""
        number, now = self.launched, self.now
        if number >= self.max_attempts:
            return Refused(Reason.RUN_BUDGET, f"{self.max_attempts} attempts")
        if now >= self.deadline:
            return self._refuse(role, Refused(Reason.DEADLINE))
        choice = self.chooser.choose(role, self)
        if type(choice) is Refused:
            return self._refuse(role, choice)
        if choice.not_before > now:  # type: ignore[union-attr]
            if role is _RECOVERY and choice.not_before < self.deadline:  # type: ignore[union-attr]
                self._recover_at = instant(choice.not_before)  # type: ignore[union-attr]
                return None
            return self._refuse(role, Refused(Reason.PUSHBACK))
        attempt = Attempt(number, role, choice.target, now, self.deadline, self.effect_key, getrandbits(64))  # type: ignore[union-attr]
        permits: list[Permit] = []
        losses_only = True
        for gate in self.primary_gates if role is _PRIMARY else self.gates:
            answer = gate.admit(attempt, self)
            if answer is PASS:
                continue
            if type(answer) is Refused:
                if role is _PRIMARY and answer.reason not in _PRIMARY_REFUSALS:
                    continue
                self._void(permits, attempt)
                return self._refuse(role, answer)
            permits.append(answer)  # type: ignore[arg-type]
            if losses_only and not getattr(answer, "losses_only", False):
                losses_only = False
        with self._lock:
            open_ = self.state is _OPEN
            if open_:
                self._legs.append(_Leg(attempt, permits, losses_only))
        if not open_:
            self._void(permits, attempt)
            return None
        self._unfinished += 1
        self.launched = number + 1
        self.in_flight += 1
        self.hedges += role is _HEDGE
        self.last_launch_at = now
        self.last_target = attempt.target.name
        if self._observed:
            self._report(AttemptStarted, attempt=attempt)
        self._commands.append(Launch(attempt))
        self._arm()
        return None

    def _arm(self) -> None:
        self._due = None
        if self._spoken or self.launched >= self.max_attempts:
            return
        try:
            due = self.policy.next_launch_at(self)
            if self._observed and self.launched == 1:
                self._report_grounds()
        except Exception:  # somebody's own: it may cost the hedge, never the step
            _complain(self.policy)
            return
        if due is None:
            return
        if type(due) is Refused:
            self._refuse(_HEDGE, due)
            return
        self._due = instant(due)  # type: ignore[arg-type]
        if self._due <= self.now:
            self._due = None
            self._launch(_HEDGE)
        elif self._observed:
            self._report(TriggerArmed, due_at=self._due)

    def _refuse(self, role: Role, refused: Refused) -> Refused:
        if self._observed:
            self._report(AttemptRefused, role=role, reason=refused.reason, detail=refused.detail)
        return refused

    def _settle_permits(self, leg: _Leg, verdict: Verdict) -> None:
        retry_after = leg.outcome.retry_after if leg.outcome else None
        end = Ended(leg.attempt, verdict, leg.failure, leg.latency, leg.censored_at, True, retry_after)
        permits, leg.permits = leg.permits, ()  # some hold this race: no cycle is left for the collector
        for permit in permits:
            permit.settle(end, at=self.now)

    def _void(self, permits: Iterable[Permit], attempt: Attempt) -> None:
        for permit in permits:
            permit.settle(Ended(attempt, Verdict.UNKNOWN, launched=False), at=self.now)

    # --- failing ------------------------------------------------------------------------------------------------

    def _failed(self, leg: _Leg, outcome: Outcome[Any]) -> None:
        if leg.latency is None:
            self._censor(leg)
        if outcome.error is not None:  # (an empty stream may still become the answer)
            self._settle_permits(leg, Verdict.FAILED)  # health hears of it before it is asked again
        if outcome.failure is Failure.REQUEST:
            self._due = self._recover_at = None
            self.max_attempts = self.launched
        else:
            if outcome.failure is Failure.TARGET:
                self.excluded |= {leg.attempt.target.name}
            self._recover()
        self._fail_if_nothing_is_left()

    def _recover(self) -> None:
        self._recover_at = None
        self._launch(_RECOVERY)

    def _fail_if_nothing_is_left(self) -> None:
        if self.in_flight or self._recover_at is not None or self.state is not _OPEN:
            return
        outcomes = [leg.outcome for leg in self._legs if leg.outcome is not None]
        for number, outcome in enumerate(outcomes):
            if outcome.empty:  # a clean end without anything meaningful is an answer when nothing else is (R2)
                self._elect(number)
                self._settle(outcome)
                return
        with self._lock:
            if self.state is not _OPEN:
                return
            self.state = _FAILED
        errors = [outcome.error for outcome in outcomes if isinstance(outcome.error, Exception)]
        cause = None
        if len(errors) > 1:
            cause = AllAttemptsFailed(errors)
            cause.__cause__ = errors[0].__cause__
        self._settle(outcomes[0], cause)

    def _stop(self, cause: str) -> None:
        """The deadline has passed or the caller has left, before or after the commit."""
        if self._settled:
            return
        with self._lock:
            if self.state is _OPEN:
                self.state = _FAILED
        running = [str(leg.attempt) for leg in self._legs if leg.running]
        self._cancel_all(cause)
        if cause == "deadline":
            error = DeadlineExceeded(elapsed=self.now - self.started_at, running=running)
            self._settle(Outcome(error=error, accepted=False))
        else:
            self._settle(Outcome(accepted=False), error="Cancelled")

    def _cancel_all(self, cause: str, but: int | None = None) -> None:
        for number, leg in enumerate(self._legs):
            if number != but and leg.running:
                leg.cancelled = cause
                self.in_flight -= 1
                if leg.latency is None:
                    self._censor(leg)
                self._commands.append(Cancel(number, cause))
                if self._observed:
                    self._report(CancelSent, attempt=leg.attempt, cause=cause)

    # --- settling -----------------------------------------------------------------------------------------------

    def _settle(self, outcome: Outcome[Any], cause: BaseException | None = None, *, error: str = "") -> None:
        """The caller's answer is known."""
        if self._settled:
            return
        self._settled = True
        if self.run is not None:
            if self.opening is _PRIMARY:
                self.run.end_step(self.prompt_tokens)
            if self.winner is not None and outcome.error is None:
                self.run.answer(self._legs[self.winner].attempt.target.name)
        self._commands.append(Answer(outcome, cause))
        if self._observed:
            self._report(
                StepEnded,
                winner=None if self.winner is None else self._legs[self.winner].attempt,
                launched=self.launched,
                elapsed=self.now - self.started_at,
                error=error or (type(outcome.error).__name__ if outcome.error is not None else ""),
            )
            if self.closed:
                self._report(StepClosed)

    def _verdict(self, leg: _Leg, abandoned: bool) -> Verdict:
        if abandoned:
            return Verdict.ABANDONED
        if leg.cancelled:
            return Verdict.SUPERSEDED if leg.cancelled == "superseded" else Verdict.CANCELLED
        outcome = leg.outcome
        if outcome is None:
            return Verdict.UNKNOWN
        if leg.attempt.number == self.winner:
            return _WON if outcome.accepted or outcome.empty else Verdict.FAILED
        return Verdict.SUPERSEDED if outcome.accepted else Verdict.FAILED

    # --- latency ------------------------------------------------------------------------------------------------

    def _saw_token(self, leg: _Leg) -> None:
        if self._due is not None and self.now - self._due > LATE_S:
            self.stalled = True
        attempt = leg.attempt
        leg.latency = self.now - attempt.started_at
        if not self.stalled:
            self.latency.record(self.key, attempt.target.name, leg.latency, self.now)
        if self._observed:
            self._report(FirstToken, attempt=attempt, latency=leg.latency)

    def _censor(self, leg: _Leg) -> None:
        leg.censored_at = self.now - leg.attempt.started_at
        if not self.stalled:
            self.latency.record_censored(self.key, leg.attempt.target.name, leg.censored_at, self.now)

    # --- commands -----------------------------------------------------------------------------------------------

    def _report_opening(self) -> None:
        run = self.run
        if self.opening is not _PRIMARY:
            self._report(StepReopened)
        elif run is None:
            self._report(StepStarted, deadline=self.deadline)
        else:
            self._report(
                StepStarted, deadline=self.deadline, run_key=run.key, generation=run.generation, tenant=run.tenant
            )

    def _report_grounds(self) -> None:
        grounds = getattr(self.policy, "grounds", None)
        if grounds is not None and (known := grounds(self)) is not None:
            self._report(StepPlanned, d0=known.d0, slack=known.slack, price=known.price)

    def _report_end(self, leg: _Leg, verdict: Verdict, receipt: Receipt) -> None:
        error = leg.outcome.error if leg.outcome else None
        self._report(
            AttemptEnded,
            attempt=leg.attempt,
            verdict=verdict,
            receipt=receipt,
            failure=leg.failure,
            error="" if error is None else type(error).__name__,
            latency=leg.latency,
            censored_at=leg.censored_at,
        )
        if self.closed:
            self._report(StepClosed)

    def _report(self, kind: type[Event], **facts: Any) -> None:
        self._commands.append(Report(kind(step_id=self.step_id, key=self.key, at=self.now, **facts)))

    def _take(self) -> list[Command]:
        """Hand out the commands gathered so far, and say when to wake up next."""
        if self._settled:
            self.wake_at = None
        else:
            wake = self.deadline
            if self._due is not None and self._due < wake:
                wake = self._due
            if self._recover_at is not None and self._recover_at < wake:
                wake = self._recover_at
            self.wake_at = wake if wake < _FOREVER else None
        commands, self._commands = self._commands, []
        return commands

    def _rank(self, fact: Fact) -> tuple[bool, int]:
        acceptable = self.commit_on_token if type(fact) is Token else fact.outcome.accepted  # type: ignore[union-attr]
        return not acceptable, fact.number
