"""Every question the kernel and the driver ask, as protocols with a handful of verbs.

Ports of the kernel are synchronous and take `now` (seconds on the run loop's clock): nothing that decides about a
race may wait (R14). Ports of the background (stores, cancellers) are asynchronous and run on the background loop.
Each port has an in-memory implementation that ships, and a suite under `agent_hedge.testing.suites` that every
implementation runs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypeVar

from agent_hedge.core.events import Event, Reason
from agent_hedge.core.step import Attempt, Effect, Ended, Failure, Place, Role, StepKey

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
    def last_launch_at(self) -> float: ...
    @property
    def last_target(self) -> str:
        """Where the newest attempt went (empty before the first)."""
        ...

    @property
    def attempts(self) -> Sequence[Attempt]:
        """Every attempt launched, in launch order."""
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
    def barred(self) -> Refused | None:
        """Why the unit must not be duplicated, or None (R9); filled by who knows the tools behind the step."""
        ...


@dataclass(frozen=True, slots=True)
class Refused:
    """A no, with its reason and a short detail free of content (``37 of 200``)."""

    reason: Reason
    detail: str = ""


class HedgePolicy(Protocol):
    """When is the next attempt due? A frozen value."""

    def next_launch_at(self, view: RaceView) -> float | Refused | None:
        """Return an instant, a refusal with its reason, or None: nothing more is due on the timer."""
        ...


class Permit(Protocol):
    """One gate's yes to one attempt; hears what became of it. Both verbs are called at most once."""

    def committed(self, *, at: float) -> None:
        """The attempt won."""
        ...

    def settle(self, end: Ended, *, at: float) -> None:
        """The attempt has really ended, or was never launched because a later gate refused it."""
        ...


class Gate(Protocol):
    """May this attempt start? Asked for every attempt; a primary can only be refused by its deadline."""

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused: ...


@dataclass(frozen=True, slots=True)
class Choice:
    """A place to go, not before an instant (a server's `Retry-After`)."""

    target: Place
    not_before: float = 0.0


class Chooser(Protocol):
    """Where does the next attempt go? Independent of what is in flight, healthy, sticky."""

    def choose(self, role: Role, view: RaceView) -> Choice | Refused: ...


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


class PlanTable(Protocol):
    """The planned delay d*(k, s) for k steps left and s seconds of slack."""

    def delay(self, steps_left: int, slack: float) -> float | None:
        """Return the delay in seconds for `steps_left` steps and `slack` seconds to the deadline; None: never."""
        ...


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
    def take(self, role: Role, now: float) -> Reason | None:
        """Take one extra dispatch from the purse of its role; return the reason when it is empty."""
        ...

    def give_back(self, role: Role) -> None:
        """Return a dispatch that a later gate refused."""
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


class BudgetLease(Protocol):
    """A local block of a fleet-wide allowance, refilled in the background."""

    def take(self, now: float) -> bool: ...


# --- the run loop -----------------------------------------------------------------------------------------------


class TaskHandle(Protocol):
    """A running attempt."""

    def cancel(self) -> None: ...
    def done(self) -> bool: ...
    async def wait(self) -> None:
        """Wait until it is done; never raises its error."""
        ...


class TimerHandle(Protocol):
    def cancel(self) -> None: ...


class Waiter(Protocol):
    """A one-shot flag that one task waits for."""

    def set(self) -> None: ...
    async def wait(self) -> None: ...


class Spawner(Protocol):
    """Tasks and timers of one run loop (asyncio or trio)."""

    def now(self) -> float: ...
    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]], *, name: str) -> TaskHandle:
        """Start a task of its own, in a copy of the caller's context."""
        ...

    def call_at(self, when: float, callback: Callable[[], None]) -> TimerHandle: ...
    def call_soon(self, callback: Callable[[], None]) -> None: ...
    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None: ...
    def waiter(self) -> Waiter: ...


class Portal(Protocol):
    """Runs a coroutine on the background loop, from any thread."""

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        """Block this thread until it is done; cancelled with the caller."""
        ...

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        """Start it and go on; its errors are logged."""
        ...


# --- the other side ---------------------------------------------------------------------------------------------


class Canceller(Protocol):
    """Ends an attempt at the engine, beyond closing its connection."""

    async def cancel(self, attempt: Attempt) -> bool:
        """Return whether the engine confirmed the release."""
        ...


class Headers(Protocol):
    """Headers of one attempt: traceparent, request id, deadline."""

    def __call__(self, attempt: Attempt, /) -> Mapping[str, str]: ...


class Codec(Protocol):
    """Stored results of guarded tools."""

    def encode(self, value: object) -> bytes: ...
    def decode(self, data: bytes) -> object: ...


# --- stores (asynchronous, on the background loop) --------------------------------------------------------------


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
    note: str = ""
    revision: int = 0
    updated_at: float = 0.0
    updated_by: str = ""


class EffectStore(Protocol):
    """The registry's rows; every write is a new revision and a line of history."""

    async def read(self) -> tuple[int, Sequence[EffectRow]]:
        """Return the newest revision and all rows."""
        ...

    async def revision(self) -> int: ...
    async def write(self, rows: Sequence[EffectRow], *, by: str) -> int: ...
    async def history(self, namespace: str, name: str) -> Sequence[EffectRow]: ...


class EffectSource(Protocol):
    """What is known of a tool, from the in-memory snapshot; never blocks."""

    def effect(self, name: str, namespace: str = "") -> Effect: ...


class ClaimState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    IN_DOUBT = "in_doubt"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The row that lets exactly one execution of a side effect go ahead. Keys and fingerprints are SHA-256 hex."""

    effect_key: str
    tool: str
    args_fingerprint: str
    owner: str
    """The incarnation of the process: unique per start."""
    attempt_id: str
    run_key: str = ""
    thread: str = ""
    call_id: str = ""
    principal: str = ""
    state: ClaimState = ClaimState.RUNNING
    confirmed: bool = False
    lease_left: float = 0.0
    """Seconds until the owner may be called dead, on the database's clock; negative: expired."""
    age: float = 0.0
    """Seconds since the claim, on the database's clock."""
    result: bytes | None = None
    note: str = ""


class ClaimStore(Protocol):
    """Claims. `claim` is durable before it returns: no claim, no dispatch (R11)."""

    async def claim(self, claim: Claim, *, lease: float) -> Claim:
        """Insert unless the key exists; return the row that stands (ours iff its `attempt_id` is)."""
        ...

    async def renew(self, effect_key: str, attempt_id: str, *, lease: float) -> bool: ...
    async def settle(
        self, effect_key: str, attempt_id: str, state: ClaimState, *, result: bytes | None = None, note: str = ""
    ) -> bool:
        """Move the owner's row to `state`; a late owner may still move in_doubt to done. False: not ours."""
        ...

    async def mark_in_doubt(self, effect_key: str, *, if_expired: bool = True) -> Claim | None:
        """Move a running row whose lease has run out to in_doubt."""
        ...

    async def take_over(self, claim: Claim, *, previous_attempt: str, lease: float) -> Claim:
        """Claim a row again whose previous execution may be repeated (compare-and-set on its attempt id)."""
        ...

    async def confirm(self, effect_keys: Iterable[str]) -> None: ...
    async def get(self, effect_key: str) -> Claim | None: ...
    async def of_thread(self, thread: str) -> Sequence[Claim]: ...
    async def of_run(self, run_key: str) -> Sequence[Claim]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRow:
    """A run as stored: what another process needs to go on with it. Epoch seconds, remaining seconds, counts."""

    run_key: str
    generation: int = 0
    deadline_epoch: float | None = None
    remaining: float | None = None
    extra_attempts: int | None = None
    hedges_used: int = 0
    hedges_granted: int = 0
    recoveries_used: int = 0
    steps: int = 0
    state: str = "open"
    sticky_target: str = ""


class RunStore(Protocol):
    async def load(self, run_key: str) -> RunRow | None: ...
    async def save(self, row: RunRow) -> None: ...
    async def grant(self, run_key: str, generation: int, block: int) -> int:
        """Grant up to `block` hedges of the run's purse durably; return how many."""
        ...

    async def recent(self, limit: int) -> Sequence[RunRow]: ...


class StepStore(Protocol):
    """Logical requests and physical attempts, settled exactly once (R18). Rows are column -> value mappings."""

    async def add_steps(self, rows: Sequence[Mapping[str, Any]]) -> None: ...
    async def add_attempts(self, rows: Sequence[Mapping[str, Any]]) -> None: ...
    async def steps_of(self, run_key: str) -> Sequence[Mapping[str, Any]]: ...


class SliceStore(Protocol):
    """Latency slices of all workers: mergeable counts by key, slice and worker."""

    async def put(self, worker: str, rows: Sequence[tuple[str, int, bytes]]) -> None: ...
    async def since(self, epoch: int) -> Sequence[tuple[str, int, bytes]]: ...


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


class SwitchStore(Protocol):
    async def switches(self) -> Sequence[Switch]: ...
    async def set(self, switch: Switch) -> None: ...
