"""What is hedged: a step, the places it can go, its attempts, and how an attempt ended.

All times are seconds on the run loop's own clock, unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

T = TypeVar("T")

FOREVER = math.inf
_NANOSECONDS = 1e9  # in a second
_COARSE = 2.0**23
"""Seconds (97 days) from which on a float cannot tell two instants a nanosecond apart, so there is nothing to round."""
MAX_ATTEMPTS = 3
"""Attempts of one step, of any role (R13; SRE book: three attempts say enough about the other side)."""


def instant(at: float) -> float:
    """Round to a nanosecond: two facts less than that apart belong to one instant and are ordered by rule.

    (`round(at, 9)` goes through decimal digits, and takes five times as long.)
    """
    return round(at * _NANOSECONDS) / _NANOSECONDS if -_COARSE < at < _COARSE else at


class Effect(StrEnum):
    """What running a tool (or any unit) twice would do."""

    READ_ONLY = "read_only"
    """Changes nothing."""
    IDEMPOTENT = "idempotent"
    """A second run with the same arguments changes nothing more."""
    KEYED = "keyed"
    """Takes an idempotency key; the other side drops a second run with the same key."""
    ONCE = "once"
    """Every run is another side effect."""
    UNKNOWN = "unknown"
    """Nobody said; treated as `ONCE`."""

    repeatable: bool
    """Whether a second run may be started while the first is undecided (R9)."""

    def __init__(self, value: str) -> None:
        self.repeatable = value in ("read_only", "idempotent", "keyed")


class Role(StrEnum):
    """Why an attempt was launched."""

    PRIMARY = "primary"
    HEDGE = "hedge"
    """An earlier attempt was still running."""
    RECOVERY = "recovery"
    """An earlier attempt had failed."""


class Failure(StrEnum):
    """How far a failure reaches (R1)."""

    RECOVERABLE = "recoverable"
    """Another attempt may succeed, on this target too."""
    TARGET = "target"
    """This target is out for this step; the race goes on."""
    REQUEST = "request"
    """No target can answer this request: nothing more is launched."""


class Verdict(StrEnum):
    """How an attempt ended. A loser is superseded, never failed."""

    WON = "won"
    SUPERSEDED = "superseded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ABANDONED = "abandoned"
    UNKNOWN = "unknown"


class Certainty(StrEnum):
    """What a number of tokens means."""

    EXACT = "exact"
    AT_LEAST = "at_least"
    AT_MOST = "at_most"
    UNKNOWN = "unknown"


class StepKey(NamedTuple):
    """Steps with the same key share one latency history: node, model and prompt-size bucket. Give them by name.

    (A tuple, for its hash: every call looks its history up three times.)
    """

    node: str
    model: str = ""
    size: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.node, self.model, self.size) if part)


class Place(Protocol):
    """Somewhere an attempt can go. `domain` is the path of failure domains, widest first."""

    @property
    def name(self) -> str: ...
    @property
    def domain(self) -> tuple[str, ...]: ...


class Ahead(NamedTuple):
    """What is known, before a run has ended, of the steps that are ahead of one of its steps."""

    left: int | None
    """Steps on the longest path to the end of the run, this one included; None: not known."""
    critical: bool
    """Whether the run may have to wait for its branch: False where one beside it is longer."""


class Attempt(NamedTuple):
    """One physical dispatch of a step. (A tuple, as `Outcome` is: every call makes one, at half a dataclass's cost.)

    `number` counts from 0 (the primary) in launch order; `nonce` makes the `id` unique.
    """

    number: int
    role: Role
    target: Place
    started_at: float
    deadline: float
    effect_key: str | None = None
    nonce: int = 0

    @property
    def id(self) -> str:
        """A request id of its own, safe to send, no prefix of another's (R8: engines match ids by prefix)."""
        return f"ah-{self.nonce:016x}"

    @property
    def is_hedge(self) -> bool:
        return self.role is Role.HEDGE

    def __str__(self) -> str:
        return f"{self.target.name}#{self.number}"


class Outcome(NamedTuple, Generic[T]):
    """What an attempt brought: a value, or the error it raised. Errors are raised once, at the edge.

    `accepted` and `failure` exclude each other. `empty` marks a stream that ended cleanly with nothing meaningful:
    a failure while anything else can answer, the valid answer when nothing can (R2). `retry_after` is the server's
    wish in seconds.
    """

    value: T | None = None
    error: BaseException | None = None
    accepted: bool = True
    failure: Failure | None = None
    empty: bool = False
    retry_after: float | None = None

    def unwrap(self) -> T:
        """Return the value, or raise the captured error."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]


class Content(NamedTuple):
    """What was asked of a model and what it has answered, as messages in the form of the GenAI conventions."""

    asked: list[dict[str, Any]]
    answered: list[dict[str, Any]]


@dataclass(slots=True, kw_only=True)
class Usage:
    """What an adapter has counted of one attempt: tokens by the provider's word, else by what was received.

    `output` has a `certainty`: exact by the provider's word, at least what was received. `input` and `cached` are only
    ever the provider's word. Times are in seconds: `connect` to set up a connection (None: there was one, or nobody
    knows), `headers` from the start to the response's headers, `queue` in the engine's queue by its own word,
    `longest_gap` between chunks after the first.
    """

    input: int | None = None
    cached: int | None = None
    output: int | None = None
    certainty: Certainty = Certainty.UNKNOWN
    chunks: int = 0
    longest_gap: float = 0.0
    connect: float | None = None
    headers: float | None = None
    queue: float | None = None
    response_id: str = ""
    response_model: str = ""
    finish: str = ""

    def content(self) -> Content | None:
        """Return what was said, where somebody has asked for it to be kept."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What is known of the end of an attempt that did not win.

    `phase`: the last phase reached (``connect``, ``headers``, ``decode``, ``thread``), where that was seen.
    `cancel_sent` and `released` are instants; tokens are counts with their certainty; `tool_s` is the seconds that
    guarded tools have taken.
    """

    phase: str = ""
    cancel_sent: float | None = None
    released: float | None = None
    tokens: int | None = None
    certainty: Certainty = Certainty.UNKNOWN
    usage: Usage | None = None
    tool_s: float = 0.0


class Ended(NamedTuple):
    """The end of an attempt, as gates hear it. `launched` is False when a later gate refused it.

    `latency` is the time to the first meaningful token in seconds, None where there was none; `censored_at` is
    how long an attempt without one had been waiting when it was stopped or failed (R16).
    """

    attempt: Attempt
    verdict: Verdict
    failure: Failure | None = None
    latency: float | None = None
    censored_at: float | None = None
    launched: bool = True
    retry_after: float | None = None


def all_repeatable(effects: Sequence[Effect]) -> bool:
    """Whether a unit in which these effects may happen can be duplicated (an empty sequence can)."""
    return all(effect.repeatable for effect in effects)
