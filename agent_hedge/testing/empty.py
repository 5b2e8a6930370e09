"""Ports that know nothing: a book that never learns, a fleet nobody uses. For scenarios and unit tests."""

from __future__ import annotations

from dataclasses import dataclass, field

from agent_hedge.core.step import StepKey


@dataclass(slots=True)
class EmptyBook:
    """A latency book without thresholds; it keeps what it was told, in order."""

    recorded: list[tuple[str, float]] = field(default_factory=list)
    censored: list[tuple[str, float]] = field(default_factory=list)

    def quantile(self, key: StepKey, target: str, q: float, now: float) -> float | None:
        return None

    def long_quantile(self, key: StepKey, target: str, q: float, now: float) -> float | None:
        return None

    def learning(self, key: StepKey, target: str, now: float) -> tuple[int, int]:
        return len(self.recorded) + len(self.censored), 200

    def record(self, key: StepKey, target: str, latency: float, now: float, *, cold: bool = False) -> None:
        self.recorded.append((target, latency))

    def record_censored(self, key: StepKey, target: str, waited: float, now: float, *, cold: bool = False) -> None:
        self.censored.append((target, waited))


@dataclass(frozen=True, slots=True)
class QuietFleet:
    """No traffic, the default budget."""

    budget: float = 0.05

    def requests(self, now: float) -> int:
        return 0

    def second_hedge_rate(self, now: float) -> float:
        return 0.0

    def eligible_share(self, now: float) -> float:
        return 1.0
