"""Hedging by what the run has left: early where its deadline is near, late where there is slack to spare.

The delay comes from the plans of the race (`agent_hedge.planning`): d*(k, s) for k steps and s seconds left, at a
price that the whole fleet shares. Mitigation is spent where it decides whether a run is in time, so at 5 % extra
dispatches misses of a deadline fall to about a half (20 steps) or a third (50 steps) of a static trigger's.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

from agent_hedge.core.ports import Grounds, HedgePolicy, RaceView, Refused
from agent_hedge.core.ports import Planned as Plan
from agent_hedge.errors import ConfigurationError
from agent_hedge.policies.quantile import Quantile


@dataclass(frozen=True, slots=True)
class Planned:
    """Launch the first hedge by the run's plan; `base` decides wherever there is none.

    No plan: outside a run with a deadline, before 2,000 latencies are known, for a second hedge, for a run that is
    late already (which is hedged as any other), and on a branch beside a longer one, which the run does not wait for.
    An estimated number of steps may only make a hedge earlier than `base` would: a wrong guess must not cost what a
    static trigger gives.
    """

    base: HedgePolicy = field(default_factory=Quantile)

    def __post_init__(self) -> None:
        if not callable(getattr(self.base, "next_launch_at", None)):
            raise ConfigurationError(f"base must be a policy such as Quantile(), got {self.base!r}")

    def next_launch_at(self, view: RaceView) -> float | Refused | None:
        """Return when the step's first hedge is due by plan, else what `base` says."""
        plan = _plan(view)
        if plan is None:
            return self.base.next_launch_at(view)
        due = view.last_launch_at + plan.delay
        if plan.estimated:
            static = self.base.next_launch_at(view)
            if isinstance(static, float):
                due = min(due, static)
        return due if due < inf else None

    def grounds(self, view: RaceView) -> Grounds | None:
        """Return what the plan for the step rests on; None where there is none."""
        plans, plan = view.plans, _plan(view)
        if plans is None or plan is None:
            return None
        static = self.base.next_launch_at(view)
        d0 = static - view.last_launch_at if isinstance(static, float) else None
        return Grounds(d0, plan.slack, plans.price.value)


def _plan(view: RaceView) -> Plan | None:
    if view.plans is None or view.launched != 1 or view.run is None or view.run.deadline == inf:
        return None
    return view.plans.delay(view)
