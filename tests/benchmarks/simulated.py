"""A hedger in simulated time: the shipped kernel, policies, gates and book, driven by the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agent_hedge import Effect, Hedger, Target
from agent_hedge.core.events import Event
from agent_hedge.core.scope import Run, run_scope
from agent_hedge.core.step import Attempt, Role, StepKey
from agent_hedge.testing.simulator import simulate


@dataclass(slots=True)
class Draw:
    """What an attempt meets: seconds to its first token, which is its result here."""

    delay: float
    result: Any = "ok"
    first_token: float | None = None


class Simulated:
    """One hedger's steps, one after another, on a clock of its own (seconds)."""

    def __init__(self, hedger: Hedger, targets: Sequence[Target[Any] | str], node: str = "step") -> None:
        self.now = 0.0
        self.steps = self.hedges = self.hedge_wins = 0
        self._lane = hedger.lane(StepKey(node=node), targets, effect=Effect.READ_ONLY)
        self._key = self._lane.key

    def clock(self) -> float:
        return self.now

    def run(self, **settings: Any) -> Run:
        return Run(clock=self.clock, **settings)

    def step(
        self,
        serve: Callable[[Attempt], Draw],
        *,
        run: Run | None = None,
        node: str | None = None,
        observe: Callable[[Event], object] | None = None,
    ) -> float:
        """Run one step from now on; return the seconds to its first token and move the clock there."""
        token = run_scope.set(run)
        try:
            key = self._key if node is None else StepKey(node=node)
            race = self._lane.race(self.clock, key, Effect.READ_ONLY)
        finally:
            run_scope.reset(token)
        start = self.now
        _, self.now = simulate(race, serve, start=start, observe=observe)
        self.steps += 1
        self.hedges += race.hedges
        if race.winner is not None and race.attempts[race.winner].role is Role.HEDGE:
            self.hedge_wins += 1
        return self.now - start
