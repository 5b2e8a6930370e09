"""The stores as ports: rows, and the few verbs of each store. Asynchronous, on the background loop.

Rows check their own text when they are made, so that what a database would choke on, cut or read differently (NUL,
lone surrogates, endless names) is a `ConfigurationError` before any statement is built (R20). Every verb raises
`StoreUnavailable` when the store cannot be reached, answers too late, or cannot be trusted. Each store has an
in-memory twin that ships, and a suite under `agent_hedge.testing.suites` that every backend runs. One file for all, so
that what a backend has to bring is read in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol, TypedDict

from agent_hedge.core.checks import KEY_LIMIT, NAME_LIMIT, NOTE_LIMIT, check_digest, check_text
from agent_hedge.core.ports import Block
from agent_hedge.core.step import Effect
from agent_hedge.errors import ConfigurationError


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
