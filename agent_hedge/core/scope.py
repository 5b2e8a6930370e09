"""What surrounds a step: the run it belongs to, the attempt that runs now, the node it stands in.

Context variables carry all three, so they reach tasks, worker threads (which copy the context) and subgraphs. Most of
the file is `Run`, whose purses, clock and path change under one lock.
"""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Block, HedgePolicy, LastStep, Refused, RunRecord, TaskHandle
from agent_hedge.core.step import Ahead, Attempt, Certainty, Place, Role, Usage
from agent_hedge.core.stores import RunRow

RECOVERY_SHARE = 0.2
"""Recoveries a run may make for each of its steps (R13)."""
RECOVERY_FLOOR = 10
"""Recoveries a run may make before any step counts (R13)."""
ROUNDING = 1 + 1e-9
"""Sums of money are compared with so much indulgence: three times 0.1 are 0.3."""
_ONE_HEDGE = Block(hedges=1)


def rail(steps: int, share: float) -> int:
    """Return the hedges one run of `steps` may take from a fleet that spends `share` of its requests.

    ceil(n b + 2 sqrt(n b)): two standard deviations above the mean, so that the rail stops a run that runs away
    without costing a normal one its tail (DESIGN 5.10; a hard cap of n b alone takes p99 from 78.9 to 94.6 s).
    """
    mean = steps * share
    return math.ceil(mean + 2 * math.sqrt(mean))


class Run:
    """One run: one absolute deadline and two purses, shared by all of its steps in any task or thread.

    `deadline` is an instant on `clock`; `extra_attempts` counts hedges. `tokens` (estimated prompt tokens) and `cost`
    (money) cap what the hedges may take together; None: no cap. `record` keeps the run in a store. Implements the
    `RunView` port.
    """

    unscoped = False
    """Whether no scope will say when it is left: configuration has opened it."""

    def __init__(
        self,
        key: str = "",
        *,
        clock: Callable[[], float],
        deadline: float = math.inf,
        extra_attempts: int = 3,
        generation: int = 0,
        tenant: str = "",
        principal: str = "",
        priority: str = "interactive",
        parent: Run | None = None,
        declared_steps: int | None = None,
        graph: str = "",
        tokens: int | None = None,
        cost: float | None = None,
    ) -> None:
        self.key = key
        self.declared_steps = declared_steps
        self.graph = graph
        self.generation = generation
        self.clock = clock
        self.deadline: float = min(deadline, parent.deadline) if parent else deadline
        self.extra_attempts = extra_attempts
        self.tenant = tenant
        self.principal = principal or tenant
        self.priority = priority
        self.parent = parent
        self.opened_at = clock()
        self.record: RunRecord | None = None
        self._left_at_pause: float | None = None
        self.tokens = tokens
        self.cost = cost
        self.tokens_used = 0
        self.cost_used = 0.0
        self.steps = 0
        self.extra_attempts_used = 0
        self.answered: Counter[str] = Counter()
        """Steps by the target that answered them, in this scope."""
        self.recoveries_used = 0
        self.last_step: LastStep | None = None
        self.sticky_target = ""
        """Where the next step starts: the winner of the last hedge, or a place tried after a slow step."""
        self.stays_until = -math.inf
        self.beside = 0
        """Steps that ran beside others: the path through the run is so much shorter than its steps are many."""
        self._waiting: dict[int, int] = {}
        self._depth = self._depth_spoken = 0
        self._spoke_at: float | None = None
        self._lock = threading.Lock()

    @property
    def remaining(self) -> float:
        """Seconds to the deadline (`math.inf` without one), never negative."""
        if self._left_at_pause is not None:
            return self._left_at_pause
        return max(0.0, self.deadline - self.clock())

    @property
    def hedges_left(self) -> int:
        """Hedges that the purse, and those of the runs around this one, still hold."""
        own = self.extra_attempts - self.extra_attempts_used
        if self.parent:
            own = min(own, self.parent.hedges_left)
        return max(0, own)

    def begin_step(self, resumed: bool | None = None, tokens: int = 0) -> None:
        """Count one logical request; it feeds the purse of recoveries.

        `resumed`: whether its graph was, if known. `tokens`: of its prompt, estimated; 0: not known.
        """
        if self.record is not None:
            self.record.begin(resumed, tokens)
        with self._lock:
            self.steps += 1
        if self.parent:
            self.parent.begin_step(resumed, tokens)

    def answer(self, target: str) -> None:
        """Hear that this target has answered a step."""
        with self._lock:
            self.answered[target] += 1
        if self.parent:
            self.parent.answer(target)

    def end_step(self, tokens: int = 0) -> None:
        """Hear that a step that was begun has its answer."""
        if self.record is not None:
            self.record.over(tokens)
        if self.parent:
            self.parent.end_step(tokens)

    def pause(self, at: float | None = None) -> None:
        """Stop the clock: the run waits for a person, since the instant `at` (None: from now on)."""
        if self._left_at_pause is None:
            self._left_at_pause = self.remaining if at is None else max(0.0, self.deadline - at)
            if self.record is not None:
                self.record.paused()

    def go_on(self) -> None:
        """Start the clock again where it was stopped."""
        if self._left_at_pause is not None:
            self.deadline, self._left_at_pause = self.clock() + self._left_at_pause, None
            if self.record is not None:
                self.record.resumed()

    def take_over(self, row: RunRow, deadline: float) -> None:
        """Become that generation of the run: with its purse, its place and its deadline (an instant on `clock`)."""
        self.generation = row.generation
        self.deadline = min(deadline, self.parent.deadline) if self.parent else deadline
        if row.extra_attempts is not None:
            self.extra_attempts = row.extra_attempts
        self.tokens, self.cost = row.tokens, row.cost
        self.sticky_target = row.sticky_target or self.sticky_target

    def count_earlier(self, row: RunRow) -> None:
        """Add what this generation has used before, elsewhere."""
        with self._lock:
            self.steps += row.steps
            self.extra_attempts_used += row.hedges_used
            self.tokens_used += row.tokens_used
            self.cost_used += row.cost_used
            self.recoveries_used += row.recoveries_used

    def end(self) -> None:
        """Say that the run is over: whatever comes under its key starts the next generation, a resume too."""
        if self.record is not None:
            self.record.end()

    def begin(self, step: object, now: float) -> float | None:
        """Hear that a step's primary starts; return the seconds since the last first token.

        That is the decode and tool time of the step before, where steps follow each other; None where another step
        is still waiting for its first token (parallel branches), or before the first.
        """
        with self._lock:
            alone, spoke_at = not self._waiting, self._spoke_at
            depth = self._depth_spoken + 1  # after the deepest that has spoken, beside those that have not
            self.beside += depth <= self._depth
            self._depth = max(self._depth, depth)
            self._waiting[id(step)] = depth
        return now - spoke_at if alone and spoke_at is not None else None

    def spoke(self, step: object, at: float | None) -> None:
        """Hear that the step's first token has come, or (None) that it never will."""
        with self._lock:
            self._depth_spoken = max(self._depth_spoken, self._waiting.pop(id(step), 0))
            if at is not None:
                self._spoke_at = at

    def take(self, role: Role, now: float) -> Reason | None:
        """Take one extra dispatch from the purse of its role; return `RUN_BUDGET` when that purse is empty."""
        if self.parent and (refused := self.parent.take(role, now)):
            return refused
        refused = Reason.RUN_BUDGET
        with self._lock:
            if role is Role.HEDGE and self.extra_attempts_used < self.extra_attempts:
                refused = None if self.record is None else self.record.take(_ONE_HEDGE)
                if refused is None:
                    self.extra_attempts_used += 1
                    return None
            if role is Role.RECOVERY and self.recoveries_used < RECOVERY_SHARE * self.steps + RECOVERY_FLOOR:
                self.recoveries_used += 1
                return None
        if self.parent:
            self.parent.give_back(role)
        return refused

    def spend(self, tokens: int, cost: float | None) -> Refused | None:
        """Take what a hedge will read, in estimated prompt tokens and in money (None: it has no price).

        Refused where a cap would be passed, and where a cap is set and the size or the price is not known.
        """
        if self.parent and (refused := self.parent.spend(tokens, cost)):
            return refused
        with self._lock:
            refused = self._passes(tokens, cost) or self._not_granted(tokens, cost)
            if refused is None:
                self.tokens_used += tokens
                self.cost_used += cost or 0.0
                return None
        if self.parent:
            self.parent.unspend(tokens, cost)
        return refused

    def _passes(self, tokens: int, cost: float | None) -> Refused | None:
        if self.tokens is not None:
            if not tokens:
                return Refused(Reason.TOKENS, "prompt size unknown")
            if self.tokens_used + tokens > self.tokens:
                return Refused(Reason.TOKENS, f"{self.tokens_used} of {self.tokens} used, {tokens} wanted")
        if self.cost is not None:
            if not tokens or cost is None:
                return Refused(Reason.COST, "price unknown" if tokens else "prompt size unknown")
            if self.cost_used + cost > self.cost * ROUNDING:
                return Refused(Reason.COST, f"{self.cost_used:.6g} of {self.cost:.6g} used, {cost:.6g} wanted")
        return None

    def _not_granted(self, tokens: int, cost: float | None) -> Refused | None:
        if self.record is None or not self._capped:
            return None
        reason = self.record.take(Block(0, tokens, cost or 0.0))
        return None if reason is None else Refused(reason, "the store has granted no more of it here")

    @property
    def _capped(self) -> bool:
        return self.tokens is not None or self.cost is not None

    def unspend(self, tokens: int, cost: float | None) -> None:
        """Return what a hedge that was never sent would have read."""
        with self._lock:
            self.tokens_used -= tokens
            self.cost_used -= cost or 0.0
            if self.record is not None and self._capped:
                self.record.give_back(Block(0, tokens, cost or 0.0))
        if self.parent:
            self.parent.unspend(tokens, cost)

    def give_back(self, role: Role) -> None:
        """Return a dispatch that a later gate refused."""
        with self._lock:
            if role is Role.HEDGE:
                self.extra_attempts_used -= 1
                if self.record is not None:
                    self.record.give_back(_ONE_HEDGE)
            elif role is Role.RECOVERY:
                self.recoveries_used -= 1
        if self.parent:
            self.parent.give_back(role)

    def report(self) -> dict[str, object]:
        """Return what this generation of the run has used so far; times in seconds (`elapsed_s`: of this scope).

        `tokens_used` and `cost_used` are what hedges had to read: estimated prompt tokens, money at full input price.
        `answered`: steps by the target that answered them, in this scope.
        """
        return {
            "key": self.key,
            "generation": self.generation,
            "elapsed_s": self.clock() - self.opened_at,
            "remaining_s": self.remaining,
            "steps": self.steps,
            "extra_attempts": self.extra_attempts,
            "extra_attempts_used": self.extra_attempts_used,
            "recoveries_used": self.recoveries_used,
            "answered": dict(self.answered),
            "tokens_used": self.tokens_used,
            "cost_used": self.cost_used,
        }


class Racing(Protocol):
    """What an attempt may tell the race it runs in."""

    def claim(self, number: int, tool: str = "") -> bool: ...
    def first_token(self, number: int) -> None: ...


class Destination(Place, Protocol):
    """The place an attempt goes to, as the code of the attempt sees it: with the client it is to use."""

    @property
    def member(self) -> Any: ...


class ActiveAttempt:
    """The attempt that the current code runs for. Reachable by `current_attempt()`, also in worker threads."""

    __slots__ = (
        "_racing",
        "attempt",
        "cancelled",
        "certainty",
        "phase",
        "spoken",
        "started",
        "task",
        "tokens",
        "tool_s",
        "usage",
    )

    def __init__(self, attempt: Attempt, racing: Racing) -> None:
        self.attempt = attempt
        self.cancelled = False
        """Set before a cancel is sent: code that cannot be cancelled may look at it and stop."""
        self.started = False
        """Whether its task has taken its first step."""
        self.task: TaskHandle | None = None
        """Its task, once its race has one for it, until it has ended."""
        self.spoken = False
        """Whether its first meaningful token has come."""
        self.phase = ""
        """The last phase reached, for the receipt: ``connect``, ``headers``, ``decode``, ``end``, ``thread``."""
        self.tokens: int | None = None
        """Completion tokens seen, for the receipt, with their certainty."""
        self.certainty = Certainty.UNKNOWN
        self.usage: Usage | None = None
        """What the adapter counts of it, where somebody listens."""
        self.tool_s = 0.0
        """Seconds its guarded tools have taken, all calls together."""
        self._racing = racing

    @property
    def target(self) -> Destination:
        return cast("Destination", self.attempt.target)

    @property
    def number(self) -> int:
        return self.attempt.number

    @property
    def role(self) -> Role:
        return self.attempt.role

    @property
    def id(self) -> str:
        return self.attempt.id

    @property
    def deadline(self) -> float:
        return self.attempt.deadline

    def claim(self, tool: str = "") -> bool:
        """Win the race now, before a side effect: True for at most one attempt of a step. Callable in any thread.

        `tool`: who wants to, for those who watch.
        """
        return self._racing.claim(self.attempt.number, tool)

    def first_token(self) -> None:
        """Say that the first meaningful token has come (once is enough). Only in the run loop's thread."""
        if self.spoken:
            return
        self.spoken = True
        self._racing.first_token(self.attempt.number)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepContext:
    """Where in a graph the step stands; filled by an adapter from the framework's ambient configuration."""

    node: str = ""
    step: int = 0
    path: str = ""
    parent: tuple[str, ...] = ()
    thread: str = ""
    draining: Callable[[], bool] = field(default=lambda: False)
    resumed: bool = False
    durability: str = ""
    verdict: Refused | None = None
    policy: HedgePolicy | None = None
    """The node's own, where it has one."""
    ahead: Callable[[], Ahead | None] = field(default=lambda: None)
    """Says what the structure of the graph says of the steps to come; asked where a step begins."""
    time_left: Callable[[], float] | None = None
    """Says for how many seconds from now the framework lets the step run; None where it has no time-outs."""
    alias: str = ""
    """The framework's own name of this execution: tells two executions apart, but is no identity (DESIGN 5.13)."""


@dataclass(frozen=True, slots=True)
class Forced:
    """Set by the test kit: hedge every step at once and let attempt `winner` speak first, or hedge none."""

    hedge: bool
    winner: int = 0


run_scope: ContextVar[Run | None] = ContextVar("agent_hedge_run", default=None)
attempt_scope: ContextVar[ActiveAttempt | None] = ContextVar("agent_hedge_attempt", default=None)
step_scope: ContextVar[StepContext | None] = ContextVar("agent_hedge_step", default=None)
forced: ContextVar[Forced | None] = ContextVar("agent_hedge_forced", default=None)


def current_run() -> Run | None:
    """Return the run this code belongs to, or None."""
    return run_scope.get()


def current_attempt() -> ActiveAttempt | None:
    """Return the attempt this code runs for, or None outside any race."""
    return attempt_scope.get()
