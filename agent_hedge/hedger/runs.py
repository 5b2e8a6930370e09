"""Runs: one deadline and one purse for all steps of them (R12, R13)."""

from __future__ import annotations

import sys
from collections.abc import Callable

from agent_hedge.core import checks
from agent_hedge.core.checks import KEY_LIMIT, NAME_LIMIT, check_text
from agent_hedge.core.scope import Run, rail, run_scope
from agent_hedge.engine.runbook import Record
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
        tokens: int | None = None,
        cost: float | None = None,
        tenant: str = "",
        principal: str = "",
        priority: str = "interactive",
        resume: bool | None = None,
    ) -> RunScope:
        """Open a run: ``async with hedger.run(deadline=30.0) as run`` (a plain ``with`` outside a loop).

        Args:
            key: names the run, for draws and reports, and for going on with it: a thread's id will do.
            deadline: seconds from now, for all steps together; 0 is already past.
            extra_attempts: hedges of the whole run (default: a rail for the declared `steps`, else for 20).
            steps: how many LLM steps the run will have one after another (parallel branches count once); undeclared,
                it is learnt from ended runs of `graph`, else read from the edges of a graph that was explained.
            tokens: prompt tokens that hedges may take together (estimated at four characters a token).
            cost: money that the prompts of hedges may take together, at the `price` of their targets.
            priority: ``interactive``, or ``batch``, which never hedges.
            resume: go on with the stored run of this key, or (False) start the next one; see below.

        A run inside a run shares the outer one's purses and cannot outlive its deadline.

        **A key names generations**, kept in the store. Leaving the scope stops the clock: what was left of the deadline
        counts from the next entry. Dying inside stops nothing: the deadline is an instant. A scope with the same key
        goes on with that generation (deadline, used purses, place) where LangGraph resumes (``Command`` or None as
        the input), where the process of an open run has died and nothing says otherwise, and while another process
        runs it (both share its purse). Any other input, or a run said to be over (`Run.end`), starts the next
        generation, with a deadline and purses of its own. ``resume=True`` goes on with whatever is not over;
        ``resume=False`` never does.

        Entering waits for the store half a second at most, and no step ever waits: until the store has answered, the
        run has the deadline it was given and hedges nothing.
        """
        for what, text in (("key", key), ("graph", graph)):
            check_text(text, what, KEY_LIMIT)
        for what, text in (("tenant", tenant), ("principal", principal)):  # both may stand on a claim
            check_text(text, what, NAME_LIMIT)
        if priority not in ("interactive", "batch"):
            raise ConfigurationError(f"priority must be 'interactive' or 'batch', got {priority!r}")
        seconds = self.deadline if deadline is None else checked_seconds("deadline", deadline)
        declared = checked_count("steps", steps, least=1)
        purse = checked_count("extra_attempts", extra_attempts)
        if purse is None:
            purse = self.extra_attempts
        if purse is None:
            purse = rail(declared or TYPICAL_STEPS, self.budget.share)
        if resume is not None and not isinstance(resume, bool):
            raise ConfigurationError(f"resume must be True, False or None, got {resume!r:.80}")
        if resume and not key:
            raise ConfigurationError("resume=True needs the key of the run to go on with")
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
            tokens=checked_count("tokens", tokens),
            cost=None if cost is None else checks.amount("cost", cost),
        )
        self._shared.rounds.ensure()
        record = self._shared.runbook.open(run, resume=resume) if key else None
        return RunScope(
            run, self._loops, self._background, self._run_ended, self._funnel, record=record, listen=_listen
        )

    def _run_ended(self, run: Run) -> None:
        if self.planner is not None:
            self.planner.ended(run)


def _listen(record: Record) -> Callable[[], None]:
    """Let LangGraph, where it is in use, tell the run whether the first graph inside is resumed."""
    if "langgraph" not in sys.modules:
        return lambda: None
    from agent_hedge.adapters.langgraph.invocation import listen

    return listen(record.see)
