"""Every question the kernel and the driver ask, as protocols with a handful of verbs.

Ports of the kernel are synchronous and take `now` (seconds on the run loop's clock): nothing that decides about a
race may wait (R14). What may wait is asynchronous: the other side's ports below, and the stores (`core/stores.py`).
Each port has an in-memory implementation that ships, and a suite under `agent_hedge.testing.suites` that every
implementation runs. The kernel's ports name one another in a circle (a view shows a run, a policy reads a view), so
they stand in one file.
"""

from __future__ import annotations

from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from agent_hedge.core.events import Event, Reason
from agent_hedge.core.step import Ahead, Attempt, Effect, Ended, Failure, Place, Role, StepKey

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
    def ahead(self) -> Ahead | None:
        """What the structure of a graph says of the steps to come; None where it says nothing."""
        ...

    @property
    def time_left(self) -> Callable[[], float] | None:
        """Says for how many seconds from now what is around the step lets it run; None where nothing limits it."""
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


@dataclass(slots=True)
class Choice:
    """A place to go, not before an instant (a server's `Retry-After`). (Not frozen, for every call makes one.)"""

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
    """A planned delay in seconds (infinity: never); `estimated` when the number of steps left is not declared.

    `slack`: the seconds that the run had to its deadline when the step began.
    """

    delay: float
    estimated: bool
    slack: float


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
    def deadline(self) -> float:
        """An instant on the run's own clock, which need not be that of a step's loop."""
        ...

    @property
    def remaining(self) -> float:
        """Seconds from now to the deadline, never negative."""
        ...

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
        """The steps the run will have on its longest path, where declared."""
        ...

    @property
    def beside(self) -> int:
        """Those of the steps begun so far that ran beside others: on the path through the run they do not count."""
        ...

    @property
    def hedges_left(self) -> int:
        """Hedges that its purse, and those of the runs around it, still hold."""
        ...

    sticky_target: str
    """Where the run's next step starts (empty: no preference)."""
    stays_until: float
    """Until when (an instant) only a hedge win moves the run."""
    last_step: LastStep | None
    """How the last step was answered, until somebody has drawn the consequences."""

    @property
    def graph(self) -> str:
        """What kind of run it is: runs of one graph share a distribution of lengths."""
        ...

    def answer(self, target: str) -> None:
        """Hear that this target has answered a step."""
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
    def waiter(self) -> Awaitable[None]:
        """Return a one-shot flag that one task awaits."""
        ...

    def wake(self, waiter: Awaitable[None]) -> None:
        """Set a flag of `waiter`; it may be set more than once."""
        ...


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


class EffectSource(Protocol):
    """What is known of a tool, from the in-memory snapshot; never blocks."""

    def effect(self, name: str, namespace: str = "") -> Effect: ...
