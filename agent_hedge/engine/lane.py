"""A lane: everything that stays the same for all steps of one wrapped function or model.

A step of it costs a race, a driver and a task; whatever can be decided once is decided when the lane is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

from agent_hedge.core.classify import classify
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import (
    Chooser,
    Classifier,
    FleetView,
    Gate,
    Headers,
    HedgePolicy,
    LatencyBook,
    PlanView,
    Refused,
)
from agent_hedge.core.race import Race
from agent_hedge.core.scope import Run, StepContext, forced, run_scope, step_scope
from agent_hedge.core.step import Effect, Place, StepKey, instant
from agent_hedge.engine.driver import Call, Driver, accept_all
from agent_hedge.engine.funnel import Funnel
from agent_hedge.engine.loops import Loops

T = TypeVar("T")

_RESUMED = Refused(Reason.RESUMED)


class Lane:
    """Makes and drives the races of one wrapped function or model."""

    def __init__(
        self,
        key: StepKey,
        *,
        loops: Loops,
        policy: HedgePolicy,
        chooser: Chooser,
        candidates: Sequence[Place],
        latency: LatencyBook,
        fleet: FleetView,
        gates: Sequence[Gate],
        forced_policy: HedgePolicy,
        forced_gates: Sequence[Gate],
        funnel: Funnel,
        effect: Effect = Effect.UNKNOWN,
        barred: Refused | None = None,
        classifier: Classifier = classify,
        timeout: float = math.inf,
        commit_on_token: bool = False,
        nodes: Mapping[str, HedgePolicy] = MappingProxyType({}),
        context_of: Callable[[], StepContext | None] = step_scope.get,
        plans: PlanView | None = None,
        run_of: Callable[[], Run | None] = run_scope.get,
        headers: Headers | None = None,
    ) -> None:
        self.key = key
        self.loops = loops
        self.policy = policy
        self.chooser = chooser
        self.candidates = candidates
        self.latency = latency
        self.fleet = fleet
        self.gates = gates
        self._primary_gates: Sequence[Gate] = tuple(gate for gate in gates if not getattr(gate, "extras_only", False))
        self.forced_policy = forced_policy
        self.forced_gates = forced_gates
        self.funnel = funnel
        self.effect = effect
        self.barred = barred
        self.classifier = classifier
        self.timeout = timeout
        self.commit_on_token = commit_on_token
        self.nodes = nodes
        self.context_of = context_of
        self.plans = plans
        self.run_of = run_of
        self.headers = headers
        """Headers of one attempt, for adapters that can send them; asked in the attempt's own task."""

    def run(
        self, call: Call[T], accept: Callable[[T], bool] = accept_all, key: StepKey | None = None
    ) -> Coroutine[Any, Any, T]:
        """Run one step: `call` once per attempt; return the winner's value or raise the step's error."""
        return self.driver(call, accept, key).run()

    def driver(
        self,
        call: Call[T],
        accept: Callable[[T], bool] = accept_all,
        key: StepKey | None = None,
        *,
        effect: Effect | None = None,
        prompt_tokens: int = 0,
        after: Race | None = None,
    ) -> Driver[T]:
        """Return a driver for one step on the running loop, not yet started.

        `effect`: of this step alone, where it differs. `prompt_tokens`: its estimated size. `after`: the
        race of the same step whose winner broke (R3).
        """
        state = self.loops.current()
        race = self.race(state.spawner.now, key or self.key, effect or self.effect, after, prompt_tokens)
        return Driver(race, call, state.spawner, state.reaper, accept, self.classifier, self.funnel)

    def race(
        self,
        now_of: Callable[[], float],
        key: StepKey,
        effect: Effect,
        after: Race | None = None,
        prompt_tokens: int = 0,
    ) -> Race:
        """Return the race of one step, not yet started; `now_of` is the clock of whoever will drive it."""
        run, context = self.run_of(), self.context_of()
        if run is not None and after is None:
            run.begin_step(None if context is None else context.resumed, prompt_tokens)
        policy, barred, ahead, time_left = self.nodes.get(key.node, self.policy), self.barred, None, None
        if context is not None:
            time_left = context.time_left
            if run is not None and run.deadline < math.inf:
                ahead = context.ahead()
            policy = context.policy or policy
            barred = context.verdict or barred or (_RESUMED if context.resumed else None)
        gates, primary_gates = self.gates, self._primary_gates
        if (force := forced.get()) is not None and force.hedge:
            policy, gates, primary_gates = self.forced_policy, self.forced_gates, self.forced_gates
        race = Race(  # by place: by name, every call would pay for a dict of them all
            key,
            policy,
            self.chooser,
            self.candidates,
            self.latency,
            self.fleet,
            gates,
            primary_gates,
            run,
            self.plans,
            ahead,
            effect,
            barred,
            prompt_tokens,
            self._deadline(run, now_of) if after is None else after.deadline,
            self.commit_on_token,
            bool(self.funnel),
            time_left,
        )
        if after is not None:
            race.follow(after)
        return race

    def _deadline(self, run: Run | None, now_of: Callable[[], float]) -> float:
        """Return the step's deadline on the running loop's clock: the run's, or sooner by our own time-out."""
        deadline = math.inf
        if run is not None and run.deadline < math.inf:
            deadline = run.deadline if run.clock == now_of else now_of() + (run.deadline - run.clock())
        if self.timeout < math.inf:
            deadline = min(deadline, instant(now_of() + self.timeout))
        return deadline
