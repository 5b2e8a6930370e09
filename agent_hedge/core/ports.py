"""Every question the kernel and the driver ask, as protocols with a handful of verbs.

Ports of the kernel are synchronous and take `now` (seconds on the run loop's clock): nothing that decides about a
race may wait (R14). Ports of the background (stores, cancellers) are asynchronous and run on the background loop.
Each port has an in-memory implementation that ships, and a suite under `agent_hedge.testing.suites` that every
implementation runs.
"""

from __future__ import annotations

import re
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, Protocol, TypeAlias, TypedDict, TypeVar

from agent_hedge.core.events import Event, Reason
from agent_hedge.core.step import Attempt, Effect, Ended, Failure, Place, Role, StepKey
from agent_hedge.errors import ConfigurationError

T = TypeVar("T")

# --- what a race shows, and what it is told ---------------------------------------------------------------------


class RaceView(Protocol):
    """All that a policy, gate or chooser sees of a race. Plain values, read-only; the race itself implements it."""

    @property
    def step_id(self) -> str: ...
    @property
    def key(self) -> StepKey: ...
    @property
    def effect(self) -> Effect: ...
    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, estimated; 0: not known."""
        ...

    @property
    def now(self) -> float: ...
    @property
    def started_at(self) -> float: ...
    @property
    def deadline(self) -> float:
        """The absolute deadline of the step; `math.inf` when there is none."""
        ...

    @property
    def launched(self) -> int:
        """Attempts dispatched so far."""
        ...

    @property
    def hedges(self) -> int:
        """Hedges among them."""
        ...

    @property
    def in_flight(self) -> int: ...
    @property
    def winner(self) -> int | None:
        """The number of the attempt that has won, if one has."""
        ...

    @property
    def last_launch_at(self) -> float: ...
    @property
    def last_target(self) -> str:
        """Where the newest attempt went (empty before the first)."""
        ...

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Every attempt launched, in launch order."""
        ...

    def is_running(self, number: int) -> bool:
        """Whether this attempt may still bring something."""
        ...

    @property
    def excluded(self) -> frozenset[str]:
        """Targets that are out for this step: a failure was fatal for them."""
        ...

    @property
    def candidates(self) -> Sequence[Place]: ...
    @property
    def latency(self) -> LatencyView: ...
    @property
    def run(self) -> RunView | None: ...
    @property
    def fleet(self) -> FleetView: ...
    @property
    def plans(self) -> PlanView | None:
        """The plans of runs with a deadline; None where none are made."""
        ...

    @property
    def barred(self) -> Refused | None:
        """Why the unit must not be duplicated, or None (R9); filled by who knows the tools behind the step."""
        ...


@dataclass(frozen=True, slots=True)
class Refused:
    """A no, with its reason and a short detail free of content (``37 of 200``)."""

    reason: Reason
    detail: str = ""


class Grounds(NamedTuple):
    """What the plan of a step's first hedge rests on, for people (see the event `StepPlanned`)."""

    d0: float | None
    slack: float
    price: float


class HedgePolicy(Protocol):
    """When is the next attempt due? A frozen value.

    A policy that plans may have a method `grounds(view) -> Grounds | None`; it is asked where somebody listens.
    """

    def next_launch_at(self, view: RaceView) -> float | Refused | None:
        """Return an instant, a refusal with its reason, or None: nothing more is due on the timer."""
        ...


class Permit(Protocol):
    """One gate's yes to one attempt; hears what became of it. Both verbs are called at most once.

    A permit whose class says `losses_only = True` has nothing to learn from a win, and may not be told of one.
    """

    def committed(self, *, at: float) -> None:
        """The attempt won."""
        ...

    def settle(self, end: Ended, *, at: float) -> None:
        """The attempt has really ended, or was never launched because a later gate refused it."""
        ...


class Gate(Protocol):
    """May this attempt start? Asked for every attempt; a primary can only be refused by its deadline.

    A gate whose class says `extras_only = True` has nothing to say to a primary, nor to hear of it, and is not asked.
    """

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A place to go, not before an instant (a server's `Retry-After`)."""

    target: Place
    not_before: float = 0.0


class Chooser(Protocol):
    """Where does the next attempt go? Independent of what is in flight, healthy, sticky."""

    def choose(self, role: Role, view: RaceView) -> Choice | Refused: ...


class HealthView(Protocol):
    """Which targets must be left alone, by name: out after failures, under pushback, or drained by an operator."""

    def refusal(self, target: str, now: float) -> Refused | None:
        """Return why nothing extra may go there now (`UNHEALTHY`, `PUSHBACK`, `DRAINING`), or None: it is well."""
        ...

    def not_before(self, target: str, now: float) -> float:
        """Return the instant until which the target asked to be left alone (`Retry-After`); 0.0: it did not."""
        ...


class Classifier(Protocol):
    """How far does a failure reach (R1)? None: not a failure but control flow, passed through as the winner (R7)."""

    def __call__(self, error: BaseException, /) -> Failure | None: ...


class Observer(Protocol):
    """Hears every event. May return a context manager, entered and left in that attempt's own task."""

    def on_event(self, event: Event) -> AbstractContextManager[object] | None: ...


# --- what policies and gates read -------------------------------------------------------------------------------


class LatencyView(Protocol):
    """Time to the first meaningful token, in seconds, by step key and target. Reads are cached numbers."""

    def quantile(self, key: StepKey, target: str, q: float, now: float) -> float | None:
        """Return the q-quantile of the 5-minute window, or None while it is being learnt."""
        ...

    def long_quantile(self, key: StepKey, target: str, q: float, now: float) -> float | None:
        """Return the q-quantile of the last 24 hours, or None while it is being learnt."""
        ...

    def learning(self, key: StepKey, target: str, now: float) -> tuple[int, int]:
        """Return (samples known, samples needed)."""
        ...


class LatencyBook(LatencyView, Protocol):
    """A latency view that can be told (R16: a cancelled or failed attempt is censored, never dropped)."""

    def record(self, key: StepKey, target: str, latency: float, now: float, *, cold: bool = False) -> None: ...
    def record_censored(self, key: StepKey, target: str, waited: float, now: float, *, cold: bool = False) -> None: ...


class LoadView(Protocol):
    """The load of a failure domain as a ratio of its capacity (R15)."""

    def load(self, domain: tuple[str, ...], now: float) -> float | None:
        """Return the load, or None when a configured probe is stale or failing; 0.0 where none is configured."""
        ...


class Planned(NamedTuple):
    """A planned delay in seconds (infinity: never); `estimated` when the number of steps left is not declared."""

    delay: float
    estimated: bool


class PriceView(Protocol):
    """What a hedge must save, in seconds of expected lateness."""

    @property
    def value(self) -> float: ...


class PlanView(Protocol):
    """The planned delay of a step from the steps and the slack that its run has left."""

    @property
    def price(self) -> PriceView: ...

    def delay(self, view: RaceView) -> Planned | None:
        """Return the delay for the step in `view`, or None where no plan can be made (yet)."""
        ...


LastStep: TypeAlias = tuple[StepKey, str, float, int]
"""How a step was answered: its key, by which target, how many seconds after that attempt's launch, of how many
attempts. (A bare tuple: every step of a run makes one.)"""


class RunView(Protocol):
    """The run a step belongs to: one deadline and two purses for all of its steps (R12, R13)."""

    @property
    def key(self) -> str: ...
    @property
    def generation(self) -> int: ...
    @property
    def deadline(self) -> float: ...
    @property
    def priority(self) -> str: ...
    @property
    def tenant(self) -> str: ...
    @property
    def steps(self) -> int:
        """Steps begun so far, the current one included."""
        ...

    @property
    def declared_steps(self) -> int | None:
        """The steps the run will have in all, where declared."""
        ...

    @property
    def hedges_left(self) -> int:
        """Hedges that its purse, and those of the runs around it, still hold."""
        ...

    sticky_target: str
    """Where the run's next step starts (empty: no preference)."""
    last_step: LastStep | None
    """How the last step was answered, until somebody has drawn the consequences."""

    @property
    def graph(self) -> str:
        """What kind of run it is: runs of one graph share a distribution of lengths."""
        ...

    def end_step(self, tokens: int) -> None:
        """Hear, once a step, that its caller has the answer; `tokens`: of its prompt."""
        ...

    def take(self, role: Role, now: float) -> Reason | None:
        """Take one extra dispatch from the purse of its role; return the reason when it is empty."""
        ...

    def give_back(self, role: Role) -> None:
        """Return a dispatch that a later gate refused."""
        ...

    def spend(self, tokens: int, cost: float | None) -> Refused | None:
        """Take what a hedge will read from the caps of the run, in estimated tokens and in money."""
        ...

    def unspend(self, tokens: int, cost: float | None) -> None: ...
    def begin(self, step: object, now: float) -> float | None:
        """Hear that a step's primary starts; return the seconds since the last first token of a sequential run."""
        ...

    def spoke(self, step: object, at: float | None) -> None:
        """Hear that the step's first token has come, or (None) that it never will."""
        ...


class FleetView(Protocol):
    """Counts of the last 60 minutes over the fleet, as far as this process knows them."""

    @property
    def budget(self) -> float:
        """The allowed ratio of hedges to logical requests."""
        ...

    def requests(self, now: float) -> int: ...
    def second_hedge_rate(self, now: float) -> float:
        """Second and later hedges of a step per logical request."""
        ...

    def eligible_share(self, now: float) -> float:
        """Share of the logical requests that may be hedged at all, in (0, 1]."""
        ...


_NO_CAP = 2**60


class Block(NamedTuple):
    """A part of a run's purse: hedges, and the prompt tokens (estimated) and the money that hedges take."""

    hedges: int = 0
    tokens: int = 0
    cost: float = 0.0

    def plus(self, other: Block) -> Block:
        return Block(self.hedges + other.hedges, self.tokens + other.tokens, self.cost + other.cost)

    def minus(self, other: Block) -> Block:
        """Return what is left of this without `other`; no part of it is negative."""
        return Block(
            max(0, self.hedges - other.hedges), max(0, self.tokens - other.tokens), max(0.0, self.cost - other.cost)
        )

    def left_of(self, hedges: int | None, tokens: int | None, cost: float | None) -> Block:
        """Return what these caps (None: no cap) leave when this much is taken."""
        caps = Block(
            _NO_CAP if hedges is None else hedges,
            _NO_CAP if tokens is None else tokens,
            float(_NO_CAP) if cost is None else cost,
        )
        return caps.minus(self)

    def at_most(self, other: Block) -> Block:
        return Block(min(self.hedges, other.hedges), min(self.tokens, other.tokens), min(self.cost, other.cost))

    def at_least(self, other: Block) -> Block:
        return Block(max(self.hedges, other.hedges), max(self.tokens, other.tokens), max(self.cost, other.cost))


class RunRecord(Protocol):
    """A run's place in the store, as its steps see it: local and synchronous (R14)."""

    def begin(self, resumed: bool | None, tokens: int) -> None:
        """Hear that a step with a prompt of so many tokens begins; `resumed`: whether its graph was, if known."""
        ...

    def over(self, tokens: int) -> None:
        """Hear that such a step has its answer."""
        ...

    def take(self, wanted: Block) -> Reason | None:
        """Take from what the store has granted, all of it or nothing; return the reason where it is not enough."""
        ...

    def give_back(self, unspent: Block) -> None: ...
    def paused(self) -> None:
        """Hear that the run waits for a person: its clock stands still."""
        ...

    def resumed(self) -> None:
        """Hear that the person has answered: its clock goes on."""
        ...

    def end(self) -> None:
        """Hear that the run is over: a resume under its key starts afresh."""
        ...

    def close(self) -> None:
        """Hear that this process is done with the run, for now or for good."""
        ...


class BudgetLease(Protocol):
    """A local block of a fleet-wide allowance, refilled in the background."""

    def take(self, now: float) -> bool: ...


# --- the run loop -----------------------------------------------------------------------------------------------


class TaskHandle(Protocol):
    """A running attempt."""

    def cancel(self) -> object: ...
    def done(self) -> bool: ...
    def add_done_callback(self, callback: Callable[[Any], object], /) -> object:
        """Have `callback(task)` called when the task is done, however it ends: also before its first step."""
        ...

    def remove_done_callback(self, callback: Callable[[Any], object], /) -> object: ...


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Waiter(Awaitable[None], Protocol):
    """A one-shot flag that one task awaits. `set` may be called more than once."""

    def set(self) -> None: ...


class Spawner(Protocol):
    """Tasks and timers of one run loop (asyncio or trio)."""

    @property
    def cancelled(self) -> type[BaseException]:
        """What this loop raises in a task that is cancelled."""
        ...

    def now(self) -> float: ...
    def is_cancelled(self) -> bool:
        """Whether somebody else has cancelled the running task (it may also have raised `cancelled` by itself)."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> TaskHandle:
        """Start a task of its own, in a copy of the caller's context."""
        ...

    async def join(self, tasks: Collection[TaskHandle]) -> None:
        """Wait until all of them are done; never raises their errors."""
        ...

    def call_at(self, when: float, callback: Callable[[], object]) -> TimerHandle: ...
    def call_soon(self, callback: Callable[[], object]) -> object: ...
    def call_soon_threadsafe(self, callback: Callable[[], object]) -> object: ...
    def waiter(self) -> Waiter: ...


class Portal(Protocol):
    """Runs a coroutine on the background loop, from any thread."""

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Block this thread until it is done; cancelled with the caller."""
        ...

    def iterate(self, generate: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Iterate an async generator from this thread; closed with the iterator."""
        ...

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        """Start it and go on; its errors are logged."""
        ...


# --- the other side ---------------------------------------------------------------------------------------------


class Canceller(Protocol):
    """Ends an attempt at the engine, beyond closing its connection, or watches the engine let go of it."""

    async def cancel(self, attempt: Attempt) -> bool:
        """Return whether the engine has let go: True counts as seen now. Asked when our connection is closed."""
        ...


class Headers(Protocol):
    """Headers of one attempt: traceparent, request id, deadline."""

    def __call__(self, attempt: Attempt, /) -> Mapping[str, str]: ...


class Codec(Protocol):
    """Stored results of guarded tools."""

    def encode(self, value: object) -> bytes: ...
    def decode(self, data: bytes) -> object: ...


# --- stores (asynchronous, on the background loop) --------------------------------------------------------------
#
# Rows check their own text when they are made, so that what a database would choke on, cut or read differently (NUL,
# lone surrogates, endless names) is a `ConfigurationError` before any statement is built (R20). Every verb raises
# `StoreUnavailable` when the store cannot be reached, answers too late, or cannot be trusted.

NAME_LIMIT = 255
"""Longest name of a tool, namespace, target or principal, in characters."""
KEY_LIMIT = 512
"""Longest run key, thread id, step key or scope, in characters."""
WORKER_LIMIT = 64
"""Longest id of a worker process, in characters."""
NOTE_LIMIT = 2000
"""Longest free text of a person (notes, reasons), in characters."""
_SHA256 = re.compile(r"[0-9a-f]{64}")


def check_text(value: object, what: str, limit: int, *, empty: bool = True) -> None:
    """Refuse text that not every store can hold as it is. The error never quotes the text."""
    if not isinstance(value, str):
        raise ConfigurationError(f"{what} must be a string, not {type(value).__name__}")
    if not value and not empty:
        raise ConfigurationError(f"{what} must not be empty")
    if len(value) > limit:
        raise ConfigurationError(f"{what} is {len(value)} characters long; at most {limit} are allowed")
    if "\0" in value or (not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value)):
        raise ConfigurationError(f"{what} holds a NUL or a lone surrogate")


def check_digest(value: str, what: str) -> None:
    """Refuse anything but SHA-256 hex: nothing readable goes into a key column."""
    if not isinstance(value, str) or not _SHA256.fullmatch(value):
        raise ConfigurationError(f"{what} must be SHA-256 hex")


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectRow:
    """One source's word on one tool."""

    namespace: str
    name: str
    effect: Effect
    source: str
    """``operator``, ``code`` or ``mcp``."""
    trusted: bool = True
    repeat_allowed: bool = True
    schema_hash: str = ""
    rules: Mapping[str, Mapping[str, str]] | None = None
    settings: Mapping[str, Any] | None = None
    """What else was declared and can be stored: key, scope, commutes, retention, key_param, at_least_once."""
    note: str = ""
    revision: int = 0
    updated_at: float = 0.0
    """Epoch seconds."""
    updated_by: str = ""
    withdrawn: bool = False
    """Only in history: the line that took the entry away."""
    problem: str = ""
    """Why the stored row makes no sense; its effect is then `UNKNOWN`."""

    def __post_init__(self) -> None:
        check_text(self.namespace, "a namespace", NAME_LIMIT)
        check_text(self.name, "a tool name", NAME_LIMIT, empty=False)
        check_text(self.note, "a note", NOTE_LIMIT)
        check_text(self.updated_by, "an author", NAME_LIMIT)


class EffectStore(Protocol):
    """The registry's rows; every write is a new revision and a line of history."""

    async def read(self) -> tuple[int, Sequence[EffectRow]]:
        """Return the newest revision and all rows. A row that makes no sense comes back with its `problem`."""
        ...

    async def revision(self) -> int: ...
    async def write(self, rows: Sequence[EffectRow], *, by: str) -> int:
        """Insert or replace the rows of (namespace, name, source); return the revision they got."""
        ...

    async def withdraw(self, namespace: str, name: str, source: str, *, by: str) -> int:
        """Take one entry away and keep its history; return the revision (unchanged when there was none)."""
        ...

    async def history(self, namespace: str, name: str) -> Sequence[EffectRow]:
        """Return every version there was, oldest first."""
        ...


class EffectSource(Protocol):
    """What is known of a tool, from the in-memory snapshot; never blocks."""

    def effect(self, name: str, namespace: str = "") -> Effect: ...


class ClaimState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    IN_DOUBT = "in_doubt"
    FAILED = "failed"
    """It is known that nothing happened: the row may be taken over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The row that lets exactly one execution of a side effect go ahead. Keys and fingerprints are SHA-256 hex."""

    effect_key: str
    tool: str
    args_fingerprint: str
    owner: str
    """The incarnation of the process: unique per start."""
    attempt_id: str
    """Unique per execution; a row is ours iff it carries our attempt id."""
    effect: Effect = Effect.ONCE
    run_key: str = ""
    thread: str = ""
    call_id: str = ""
    principal: str = ""
    state: ClaimState = ClaimState.RUNNING
    confirmed: bool = False
    executions: int = 1
    """How often the effect was dispatched under this key: 1 + take-overs."""
    lease_left: float = 0.0
    """Seconds until the owner may be called dead, on the database's clock; negative: expired."""
    age: float = 0.0
    """Seconds since the first claim of this key, on the database's clock."""
    claimed_at: float = 0.0
    """Epoch seconds of the first claim, for people; nothing is decided by it."""
    result: bytes | None = None
    note: str = ""

    def __post_init__(self) -> None:
        check_digest(self.effect_key, "an effect key")
        if self.args_fingerprint:
            check_digest(self.args_fingerprint, "an argument fingerprint")
        check_text(self.tool, "a tool name", NAME_LIMIT, empty=False)
        check_text(self.owner, "an owner", NAME_LIMIT, empty=False)
        check_text(self.attempt_id, "an attempt id", NAME_LIMIT, empty=False)
        check_text(self.run_key, "a run key", KEY_LIMIT)
        check_text(self.thread, "a thread id", KEY_LIMIT)
        check_text(self.call_id, "a call id", KEY_LIMIT)
        check_text(self.principal, "a principal", NAME_LIMIT)
        check_text(self.note, "a note", NOTE_LIMIT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """A restored backup: claims made in [`since`, `until`] may be missing. Epoch seconds on the database's clock."""

    since: float
    until: float


class ClaimStore(Protocol):
    """Claims. `claim` is durable before it returns: no claim, no dispatch (R11).

    Every verb may be repeated after a lost reply: the attempt id tells whose row stands. Rows that are running or in
    doubt are never deleted.
    """

    async def claim(self, claim: Claim, *, lease: float) -> Claim:
        """Insert unless the key exists; return the row that stands (ours iff its `attempt_id` is)."""
        ...

    async def renew(self, effect_key: str, attempt_id: str, *, lease: float) -> bool:
        """Extend the lease of our running row to `lease` seconds from now. False: it is not ours or not running."""
        ...

    async def settle(
        self, effect_key: str, attempt_id: str, state: ClaimState, *, result: bytes | None = None, note: str = ""
    ) -> bool:
        """Move the row of this attempt to `state`, from running or, to done or failed, from in_doubt.

        A late owner and a person with an answer use it alike. True also when it already stands so (a row in doubt then
        takes the new `note`); False: not ours.
        """
        ...

    async def mark_in_doubt(self, effect_key: str, *, if_expired: bool = True) -> Claim | None:
        """Move a running row (whose lease has run out) to in_doubt; return the row if it is in doubt now."""
        ...

    async def take_over(self, claim: Claim, *, previous_attempt: str, lease: float) -> Claim:
        """Claim a row again whose previous execution may be repeated (compare-and-set on its attempt id).

        Takes failed, in-doubt and expired rows, never a live or done one. Returns the row that stands.
        """
        ...

    async def confirm(self, effect_keys: Iterable[str]) -> None:
        """Remember that the checkpointer has returned these calls."""
        ...

    async def get(self, effect_key: str) -> Claim | None: ...
    async def of_thread(self, thread: str) -> Sequence[Claim]:
        """Return the claims of a thread, oldest first, without their results."""
        ...

    async def of_run(self, run_key: str) -> Sequence[Claim]:
        """Return the claims of a run, oldest first, without their results."""
        ...

    async def recent(self, limit: int, *, states: Sequence[ClaimState] = ()) -> Sequence[Claim]:
        """Return the newest claims (in these states), newest first, without their results."""
        ...

    async def prune(self, older_than: float) -> int:
        """Delete done and failed rows settled more than `older_than` seconds ago; return how many."""
        ...

    async def fence(self, since: float) -> Fence:
        """Remember that claims since this epoch may have been lost with a restored backup."""
        ...

    async def fenced(self) -> Fence | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as stored: what another process needs to go on with it. Epoch seconds, remaining seconds, counts."""

    run_key: str
    generation: int = 0
    deadline_epoch: float | None = None
    remaining: float | None = None
    extra_attempts: int | None = None
    """The purse of hedges; None: not limited by the run."""
    hedges_used: int = 0
    hedges_granted: int = 0
    tokens: int | None = None
    """What hedges may read in all, in estimated prompt tokens; None: not limited."""
    tokens_used: int = 0
    tokens_granted: int = 0
    cost: float | None = None
    """What the prompts of hedges may cost in all; None: not limited."""
    cost_used: float = 0.0
    cost_granted: float = 0.0
    recoveries_used: int = 0
    steps: int = 0
    state: str = "open"
    sticky_target: str = ""
    updated_at: float = 0.0
    """Epoch seconds; set by the store."""

    def __post_init__(self) -> None:
        check_text(self.run_key, "a run key", KEY_LIMIT, empty=False)
        check_text(self.state, "a run state", NAME_LIMIT, empty=False)
        check_text(self.sticky_target, "a target name", NAME_LIMIT)


class RunStore(Protocol):
    async def load(self, run_key: str) -> RunRow | None:
        """Return the newest generation of a run."""
        ...

    async def save(self, row: RunRow) -> None:
        """Insert or update a generation. Its counts (`steps`, `*_used`) are added to the stored ones.

        Several processes may serve one run, and each knows only what it has used itself. `*_granted` is not written:
        it moves by `grant` and `release`. A save whose reply was lost and that is repeated may count twice.
        """
        ...

    async def grant(self, run_key: str, generation: int, wanted: Block) -> Block:
        """Grant up to that much of the run's purse durably; return how much (nothing for an unknown run)."""
        ...

    async def release(self, run_key: str, generation: int, unspent: Block) -> None:
        """Take back grants that were not spent. Never repeated: what a lost reply leaves out is forfeited."""
        ...

    async def recent(self, limit: int) -> Sequence[RunRow]:
        """Return the runs touched last, newest first."""
        ...

    async def prune(self, older_than: float) -> int:
        """Delete runs not touched for `older_than` seconds; return how many."""
        ...


class StepFacts(TypedDict, total=False):
    """Columns of a logical request. `_at`: epoch seconds; `_s`: seconds; `d0`, `price`: DESIGN 5.7 and 5.8."""

    step_id: str
    run_key: str
    generation: int
    tenant: str
    node: str
    step: int
    path: str
    key: str
    started_at: float
    ended_at: float
    elapsed_s: float
    deadline_s: float
    d0: float
    trigger_s: float
    slack_s: float
    price: float
    decision: str
    reason: str
    detail: str
    outcome: str
    error: str
    winner: str
    launched: int
    hedges: int
    ttft_s: float
    longest_gap_s: float
    coalesced_with: str


class AttemptFacts(TypedDict, total=False):
    """Columns of a physical attempt. Tokens are counts, `_certainty` is a `Certainty`, `receipt` is JSON."""

    attempt_id: str
    step_id: str
    number: int
    role: str
    target: str
    domain: str
    node: str
    started_at: float
    ended_at: float
    ttft_s: float
    outcome: str
    error: str
    phase: str
    cancel_sent_s: float
    released_s: float
    engine_request_id: str
    tokens_input: int
    tokens_computed: int
    computed_certainty: str
    tokens_billed: int
    billed_certainty: str
    cost: float
    currency: str
    receipt: str


STEP_COLUMNS = frozenset(StepFacts.__annotations__)
ATTEMPT_COLUMNS = frozenset(AttemptFacts.__annotations__)

_COLUMN_LIMITS = {"run_key": KEY_LIMIT, "step_id": NAME_LIMIT, "attempt_id": NAME_LIMIT}


def check_columns(row: Mapping[str, Any], allowed: frozenset[str], key: str) -> None:
    """Refuse a row without its id, or with a column no store has."""
    check_text(row.get(key), f"the {key} of a row", NAME_LIMIT, empty=False)
    if unknown := sorted(set(row) - allowed):
        raise ConfigurationError(f"no such column: {', '.join(unknown)}")
    for column, value in row.items():
        if isinstance(value, str):
            check_text(value, f"column {column}", _COLUMN_LIMITS.get(column, NOTE_LIMIT))


class StepStore(Protocol):
    """Logical requests and physical attempts, settled exactly once (R18).

    Rows are column -> value mappings with `step_id` or `attempt_id`; a later row for the same id fills in what was
    not known before. Once an `outcome` or a `decision` is stored it stays.
    """

    async def add_steps(self, rows: Sequence[Mapping[str, Any]]) -> None: ...
    async def add_attempts(self, rows: Sequence[Mapping[str, Any]]) -> None: ...
    async def steps_of(self, run_key: str) -> Sequence[Mapping[str, Any]]: ...
    async def attempts_of(self, run_key: str) -> Sequence[Mapping[str, Any]]: ...
    async def since(self, epoch: float, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return the steps started since then, newest first."""
        ...

    async def attempts_since(self, epoch: float, limit: int) -> Sequence[Mapping[str, Any]]:
        """Return the attempts started since then, newest first."""
        ...

    async def prune(self, before: float) -> int:
        """Delete steps and attempts started before this epoch; return how many steps."""
        ...


class SliceStore(Protocol):
    """Latency slices of all workers: mergeable counts by key, slice and worker."""

    async def put(self, worker: str, rows: Sequence[tuple[str, int, bytes]]) -> None:
        """Insert or replace this worker's slices: (key, epoch of the slice, counts)."""
        ...

    async def since(self, epoch: int) -> Sequence[tuple[str, int, bytes]]:
        """Return the slices of all workers from `epoch` on, oldest first."""
        ...

    async def prune(self, before: int) -> int: ...


SCOPE_KINDS = ("fleet", "target", "node", "tenant")
SWITCH_MODES = ("on", "shadow", "off", "drain")


@dataclass(frozen=True, slots=True, kw_only=True)
class Switch:
    """One row of the `switches` table (R21). `until` is an epoch in seconds; None: until changed."""

    scope_kind: str
    """``fleet``, ``target``, ``node`` or ``tenant``."""
    scope: str
    mode: str
    """``on``, ``shadow``, ``off`` or ``drain``."""
    reason: str = ""
    until: float | None = None

    def __post_init__(self) -> None:
        if self.scope_kind not in SCOPE_KINDS:
            raise ConfigurationError(f"a switch stands for one of {', '.join(SCOPE_KINDS)}")
        if self.mode not in SWITCH_MODES:
            raise ConfigurationError(f"a switch is set to one of {', '.join(SWITCH_MODES)}")
        check_text(self.scope, "a scope", KEY_LIMIT)
        check_text(self.reason, "a reason", NOTE_LIMIT)


class SwitchStore(Protocol):
    async def switches(self) -> Sequence[Switch]:
        """Return the switches in force (those past their `until` left out).

        A stored row that makes no sense comes back as ``off``, with the reason.
        """
        ...

    async def set(self, switch: Switch) -> None: ...


class Stores(Protocol):
    """The store ports of one database (or one memory), opened and closed together.

    The background loop owns them: `open` raises what is wrong at start (`ConfigurationError`: say so and stop;
    `StoreUnavailable`: go on without, every verb tries again by itself).
    """

    @property
    def effects(self) -> EffectStore: ...
    @property
    def claims(self) -> ClaimStore: ...
    @property
    def runs(self) -> RunStore: ...
    @property
    def steps(self) -> StepStore: ...
    @property
    def slices(self) -> SliceStore: ...
    @property
    def switches(self) -> SwitchStore: ...
    async def open(self) -> None: ...
    async def close(self) -> None: ...
