"""Why a hedge was refused, and what to do if that was not wanted. One line for each `Reason`."""

from __future__ import annotations

from agent_hedge.core.events import Reason

REMEDIES: dict[Reason, str] = {
    Reason.COLD: "Still learning. `hedger.prime(...)` gives it a start; `Quantile(cold=Fixed(s))` hedges meanwhile.",
    Reason.DEADLINE: "The run's deadline had passed. Raise `deadline`, or look for the step that took its time.",
    Reason.TOO_LATE: "It could not have finished before the deadline or its node's time-out. Raise it, or lower q.",
    Reason.NO_TARGET: "No other place to go. Give a second target, or `Target(copies=n)` for n replicas.",
    Reason.UNHEALTHY: "The other targets are failing or resting after failures. Look at their errors.",
    Reason.LOAD_UNKNOWN: "The load probe of the other target is stale or failing. Repair the probe.",
    Reason.OVERLOADED: "The other target is overloaded. More capacity helps; hedging would not.",
    Reason.PUSHBACK: "The other target said Retry-After. Ask for a higher rate limit, or spread the load.",
    Reason.RATE_LIMITED: "The member's own rate_limiter had no turn to give. Raise its rate.",
    Reason.DRAINING: "An operator drains the target, or the process is shutting down. Nothing to do.",
    Reason.RESUMED: "A resumed task is not hedged: what it did before is not known. Nothing to do.",
    Reason.BARRED: "A tool that must not run twice may run there. See `agent-hedge explain`; annotate tools that may.",
    Reason.GRAPH_UNSEEN: "bar='downstream' hedges only graphs it has seen. Call `hedger.wrap_graph` or `explain`.",
    Reason.NO_FIRST_CHUNK: "No first token can be seen. Let the member stream, or say trigger='total'.",
    Reason.STALLED: "The event loop stood still, so the trigger could not be believed. Look for blocking calls.",
    Reason.RUN_BUDGET: "The run's purse is empty. Raise `extra_attempts`, or declare `steps`.",
    Reason.FLEET_BUDGET: "The fleet's budget is used up. That is its purpose; `FleetBudget(share)` raises it.",
    Reason.TENANT_BUDGET: "The tenant's own budget is used up.",
    Reason.TOKENS: "The run's budget of prompt tokens is used up. Raise `tokens`.",
    Reason.COST: "The budget of money is used up. Raise `cost`.",
    Reason.BATCH: "priority='batch' never hedges. Nothing to do.",
    Reason.OFF: "Hedging is switched off. `agent-hedge on` takes a switch back, but not code or AGENT_HEDGE_MODE.",
    Reason.SHADOW: "Shadow mode: it would have been dispatched. Switch to mode='on' when the figures convince.",
    Reason.SHARE: "The run was not drawn to hedge. Raise `share` as trust grows.",
    Reason.HOLDOUT: "The control group: not hedged on purpose, to know what hedging is worth.",
    Reason.STORE_LOST: "The store did not answer, so nothing may be duplicated. Look at the database.",
}


def remedy(reason: str) -> str:
    """Return the remedy for a stored reason; a word of a later version has none."""
    return REMEDIES[Reason(reason)] if reason in Reason._value2member_map_ else ""
