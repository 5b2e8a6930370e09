"""The facts a race reports. Frozen, cheap, free of content; nothing here knows who listens (R5, R18).

Every event carries the logical request (`step_id`), its key and its instant in seconds on the run loop's clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from agent_hedge.core.step import Attempt, Failure, Receipt, Role, StepKey, Verdict

NO_STEP = StepKey(node="")
"""The key of what belongs to no step."""


class Reason(StrEnum):
    """Why an attempt was not launched. The words of status, spans, reports and tables."""

    COLD = "cold"
    DEADLINE = "deadline"
    TOO_LATE = "too_late"
    NO_TARGET = "no_target"
    UNHEALTHY = "unhealthy"
    LOAD_UNKNOWN = "load_unknown"
    OVERLOADED = "overloaded"
    PUSHBACK = "pushback"
    RATE_LIMITED = "rate_limited"
    DRAINING = "draining"
    RESUMED = "resumed"
    BARRED = "barred"
    GRAPH_UNSEEN = "graph_unseen"
    NO_FIRST_CHUNK = "no_first_chunk"
    STALLED = "stalled"
    RUN_BUDGET = "run_budget"
    FLEET_BUDGET = "fleet_budget"
    TENANT_BUDGET = "tenant_budget"
    TOKENS = "tokens"
    COST = "cost"
    BATCH = "batch"
    OFF = "off"
    SHADOW = "shadow"
    SHARE = "share"
    HOLDOUT = "holdout"
    STORE_LOST = "store_lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """A fact about one step."""

    step_id: str
    key: StepKey
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStarted(Event):
    """A logical request was opened. `deadline` is an instant; `run_key` is empty outside any run."""

    deadline: float
    run_key: str = ""
    generation: int = 0
    tenant: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReopened(Event):
    """The step is run again after its winner broke (R3): the same logical request, another race."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlanned(Event):
    """The first hedge of the step was planned by what its run has left, whether or not one will be due.

    `d0`: the delay without a plan, in seconds (None: it hedges nothing). `slack`: seconds to the deadline when the step
    began. `price`: seconds of expected lateness that a hedge must save.
    """

    d0: float | None
    slack: float
    price: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerArmed(Event):
    """A hedge is due at `due_at` unless a first meaningful token comes before."""

    due_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TriggerLate(Event):
    """The timer fired `late` seconds late: the loop stood still, so the trigger was moved to `due_at` (R4)."""

    late: float
    due_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStarted(Event):
    """An attempt is about to be dispatched. Heard in the attempt's own task, before its first await."""

    attempt: Attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRefused(Event):
    """A gate, the policy or the choice of a target said no. Silence for the caller."""

    role: Role
    reason: Reason
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstToken(Event):
    """The first meaningful token of an attempt, `latency` seconds after its launch."""

    attempt: Attempt
    latency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed(Event):
    """The winner is elected. `by_claim`: through a side effect, not through a token or a result."""

    attempt: Attempt
    by_claim: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced(Event):
    """Something in an attempt wanted to win before a side effect (R10). `passed`: it had won, or has won by this.

    Heard in the thread of the tool. `tool` is empty where the code did not say which.
    """

    attempt: Attempt
    passed: bool
    tool: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claimed(Event):
    """The ledger has answered a call (R11). Belongs to no step; heard in the thread of the tool.

    `answer`: ``run`` (it is dispatched now), ``replayed``, ``in_doubt``, ``barred``, ``running`` (elsewhere, past the
    deadline) or ``store_lost``; and ``in_doubt`` once more where the dispatched call has raised. `attempt` is the one
    that the call was made in, `run` the run's number in `RunStarted`, where there is one.
    """

    tool: str
    answer: str
    attempt: Attempt | None = None
    run: int | None = None
    step_id: str = ""
    key: StepKey = NO_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelSent(Event):
    """An attempt was told to stop, and why."""

    attempt: Attempt
    cause: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptEnded(Event):
    """An attempt has really ended (or was given up: `ABANDONED`). `error` is the type's name, never its text."""

    attempt: Attempt
    verdict: Verdict
    receipt: Receipt
    failure: Failure | None = None
    error: str = ""
    latency: float | None = None
    censored_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEnded(Event):
    """The caller has its answer (or its error). `elapsed` in seconds since the step began."""

    winner: Attempt | None
    launched: int
    elapsed: float
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepClosed(Event):
    """Every attempt of the step has ended or was abandoned: nothing more will be said of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """A run's scope was entered. Belongs to no step; `run` is the same in `RunEnded` and unique in the process.

    Heard in the caller's own context; a context manager that is returned is left with the scope.
    """

    run: int
    run_key: str
    generation: int
    deadline: float
    tenant: str = ""
    step_id: str = ""
    key: StepKey = NO_STEP


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnded(Event):
    """A run's scope was left; `error` is the type's name of what ended it.

    `hedges_left` is what its purse still holds, `remaining` the seconds to its deadline.
    """

    run: int
    steps: int
    hedges: int
    recoveries: int
    hedges_left: int | None = None
    remaining: float = math.inf
    error: str = ""
    step_id: str = ""
    key: StepKey = NO_STEP
