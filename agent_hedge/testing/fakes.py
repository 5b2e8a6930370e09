"""Plain values in place of a race and of what it reads, to test a policy, a gate or a chooser of your own.

view = View(candidates=[place("a"), place("b")], latency=FakeLatency({0.5: 1.0, 0.95: 4.0}))
view.launch("a", at=0.0)
assert MyPolicy().next_launch_at(view) == 4.0
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_hedge.core.ports import Refused, RunView
from agent_hedge.core.step import Ahead, Attempt, Effect, Place, Role, StepKey


@dataclass(frozen=True, slots=True)
class FakePlace:
    """A place with a name and a path of failure domains."""

    name: str
    domain: tuple[str, ...]


def place(name: str, *domain: str) -> FakePlace:
    """Return a place; without `domain` it is a failure domain of its own."""
    return FakePlace(name, domain or (name,))


@dataclass(slots=True)
class FakeLatency:
    """A latency book of fixed quantiles (seconds by q), for every key and target; without any it is still learning.

    `by_target` overrides `quantiles` for single targets; `long` are those of 24 hours; `asked` counts questions;
    what it is told is kept in `recorded` and `censored` as (target, seconds), and changes no quantile.
    """

    quantiles: Mapping[float, float] = field(default_factory=dict)
    long: Mapping[float, float] = field(default_factory=dict)
    by_target: Mapping[str, Mapping[float, float]] = field(default_factory=dict)
    samples: int = 0
    needed: int = 200
    asked: int = 0
    recorded: list[tuple[str, float]] = field(default_factory=list)
    censored: list[tuple[str, float]] = field(default_factory=list)

    def quantile(self, key: StepKey, target: str, q: float, now: float) -> float | None:
        self.asked += 1
        known = self.by_target.get(target, self.quantiles)
        return min((value for level, value in known.items() if level >= q - 1e-12), default=None)

    def long_quantile(self, key: StepKey, target: str, q: float, now: float) -> float | None:
        self.asked += 1
        return min((value for level, value in self.long.items() if level >= q - 1e-12), default=None)

    def learning(self, key: StepKey, target: str, now: float) -> tuple[int, int]:
        return self.samples, self.needed

    def record(self, key: StepKey, target: str, latency: float, now: float, *, cold: bool = False) -> None:
        self.recorded.append((target, latency))

    def record_censored(self, key: StepKey, target: str, waited: float, now: float, *, cold: bool = False) -> None:
        self.censored.append((target, waited))


@dataclass(slots=True)
class FakeFleet:
    """Fixed counts of the last 60 minutes."""

    budget: float = 0.05
    count: int = 0
    second: float = 0.0
    eligible: float = 1.0

    def requests(self, now: float) -> int:
        return self.count

    def second_hedge_rate(self, now: float) -> float:
        return self.second

    def eligible_share(self, now: float) -> float:
        return self.eligible


@dataclass(slots=True)
class FakeHealth:
    """Targets that refuse, and until when they asked to be left alone (instants)."""

    refusals: dict[str, Refused] = field(default_factory=dict)
    pushed_back: dict[str, float] = field(default_factory=dict)

    def refusal(self, target: str, now: float) -> Refused | None:
        return self.refusals.get(target)

    def not_before(self, target: str, now: float) -> float:
        return self.pushed_back.get(target, 0.0)


_KEY = StepKey(node="plan")


@dataclass(slots=True, kw_only=True)
class View:
    """A race as policies, gates and choosers see it. `launch` and `end` move it on; every field may be set."""

    step_id: str = "step"
    key: StepKey = _KEY
    effect: Effect = Effect.READ_ONLY
    now: float = 0.0
    started_at: float = 0.0
    deadline: float = math.inf
    candidates: Sequence[Place] = (FakePlace("a", ("a",)), FakePlace("b", ("b",)))
    latency: FakeLatency = field(default_factory=FakeLatency)
    fleet: FakeFleet = field(default_factory=FakeFleet)
    run: RunView | None = None
    barred: Refused | None = None
    excluded: frozenset[str] = frozenset()
    attempts: list[Attempt] = field(default_factory=list)
    ended: set[int] = field(default_factory=set)
    winner: int | None = None
    plans: Any = None
    ahead: Ahead | None = None
    time_left: Callable[[], float] | None = None
    prompt_tokens: int = 0

    @property
    def launched(self) -> int:
        return len(self.attempts)

    @property
    def hedges(self) -> int:
        return sum(attempt.is_hedge for attempt in self.attempts)

    @property
    def in_flight(self) -> int:
        return len(self.attempts) - len(self.ended)

    @property
    def last_launch_at(self) -> float:
        return self.attempts[-1].started_at if self.attempts else self.started_at

    @property
    def last_target(self) -> str:
        return self.attempts[-1].target.name if self.attempts else ""

    def is_running(self, number: int) -> bool:
        return number not in self.ended

    def attempt(self, role: Role = Role.PRIMARY, target: Place | str | None = None) -> Attempt:
        """Return the next attempt as a gate would be asked about it; nothing is launched."""
        if target is None:
            target = self.candidates[0]
        elif isinstance(target, str):
            target = next(place for place in self.candidates if place.name == target)
        return Attempt(len(self.attempts), role, target, self.now, self.deadline)

    def launch(
        self, target: Place | str | None = None, *, role: Role = Role.PRIMARY, at: float | None = None
    ) -> Attempt:
        """Move the clock to `at` and launch an attempt there."""
        self.now = self.now if at is None else at
        attempt = self.attempt(role, target)
        self.attempts.append(attempt)
        return attempt

    def end(self, number: int) -> None:
        """The attempt is no longer in flight."""
        self.ended.add(number)
