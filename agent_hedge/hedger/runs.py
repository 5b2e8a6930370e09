"""Runs: one deadline and one purse for all steps of them (R12, R13)."""

from __future__ import annotations

from agent_hedge.core.ports import KEY_LIMIT, check_text
from agent_hedge.core.scope import Run, rail, run_scope
from agent_hedge.engine.runscope import RunScope
from agent_hedge.errors import ConfigurationError
from agent_hedge.hedger.base import Base, running_clock
from agent_hedge.hedger.settings import checked_count, checked_seconds

TYPICAL_STEPS = 20
"""Steps of a run of which nothing is declared or learnt; sets the default purse of hedges (R13)."""


class Runs(Base):
    """Opens runs."""

    def run(
        self,
        *,
        key: str = "",
        deadline: float | None = None,
        extra_attempts: int | None = None,
        steps: int | None = None,
        graph: str = "",
        tenant: str = "",
        principal: str = "",
        priority: str = "interactive",
    ) -> RunScope:
        """Open a run: ``async with hedger.run(deadline=30.0) as run`` (a plain ``with`` outside a loop).

        Args:
            key: names the run, for draws and reports.
            deadline: seconds from now, for all steps together; 0 is already past.
            extra_attempts: hedges of the whole run (default: a rail for the declared `steps`, else for 20).
            steps: how many LLM steps the run will have in all; undeclared, it is learnt from ended runs of `graph`.
            priority: ``interactive``, or ``batch``, which never hedges.

        A run inside a run shares the outer one's purses and cannot outlive its deadline.
        """
        check_text(key, "key", KEY_LIMIT)
        if priority not in ("interactive", "batch"):
            raise ConfigurationError(f"priority must be 'interactive' or 'batch', got {priority!r}")
        seconds = self.deadline if deadline is None else checked_seconds("deadline", deadline)
        declared = checked_count("steps", steps)
        purse = checked_count("extra_attempts", extra_attempts)
        if purse is None:
            purse = self.extra_attempts
        if purse is None:
            purse = rail(declared or TYPICAL_STEPS, self.budget.share)
        clock = running_clock()
        run = Run(
            key,
            clock=clock,
            deadline=clock() + seconds,
            extra_attempts=purse,
            tenant=tenant,
            principal=principal,
            priority=priority,
            parent=run_scope.get(),
            declared_steps=declared,
            graph=graph,
        )
        return RunScope(run, self._loops, self._background, self._run_ended, self._funnel)

    def _run_ended(self, run: Run) -> None:
        if self.planner is not None:
            self.planner.ended(run)
