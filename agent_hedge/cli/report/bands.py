"""What the figures mean: bands, each with one line of advice when a figure lies outside the healthy one.

A win rate is always read with the trigger rate: many triggers say that something is slow, and the wins say whether the
other side is slow too (DESIGN 5.11).
"""

from __future__ import annotations

from dataclasses import dataclass

from agent_hedge.cli.report.figures import P99_STEPS, Group

MIN_STEPS = 100
"""Below this a dispatch rate says nothing: one hedge is a percent."""
MIN_HEDGES = 30
"""Below this the 95 % interval of a win rate is wider than two bands."""
OFTEN = 2.0
"""A trigger rate of more than twice the budget: the gauge of slowness."""

THIN, FINE = "too thin to judge", "fine"


@dataclass(frozen=True, slots=True)
class Judgement:
    """A figure, the band it lies in, and what to do (empty: nothing)."""

    figure: str
    value: float | None
    band: str
    advice: str = ""


def judge(group: Group, budget: float) -> list[Judgement]:
    """Judge one group; `budget` is the fleet's allowed ratio of hedges to logical requests."""
    return [_dispatch(group, budget), _win(group, budget), _tail(group)]


def _dispatch(group: Group, budget: float) -> Judgement:
    rate = group.dispatch_rate
    if group.steps < MIN_STEPS:
        return Judgement("dispatch rate", rate, THIN, f"{group.steps} of {MIN_STEPS} steps")
    if rate > budget * 1.2:  # the budget is the fleet's: one node may well take a little more than its share
        return Judgement(
            "dispatch rate", rate, "above the budget's share", "More than its share: a higher q hedges less."
        )
    return Judgement("dispatch rate", rate, FINE)


def _win(group: Group, budget: float) -> Judgement:
    rate = group.win_rate
    if group.hedges < MIN_HEDGES:
        return Judgement("win rate", rate, THIN, f"{group.hedges} of {MIN_HEDGES} hedges")
    assert rate is not None
    often = group.trigger_rate > OFTEN * budget
    if rate > 0.8:
        advice = (
            f"{group.trigger_rate:.0%} of the steps trigger: {group.target or 'it'} is slow. Put another target first."
            if often
            else "The trigger is late: lower q. Or the primary is worse than the hedge: let them change places."
        )
        return Judgement("win rate", rate, "late trigger or bad primary", advice)
    if rate >= 0.6:
        return Judgement("win rate", rate, "healthy")
    if rate >= 0.4:
        advice = (
            "Triggers are many and about half win: the primaries are slow; move them."
            if often
            else "Hedges start too early: raise q, and the same wins cost fewer dispatches."
        )
        return Judgement("win rate", rate, "eager", advice)
    if rate >= 0.2:
        advice = (
            "The hedge is slow for the same reason as the primary: choose a target of another domain, or hedge less."
        )
        return Judgement("win rate", rate, "shared or inherent slowness", advice)
    advice = (
        "Hedging does not help here: primary and hedge share what is slow. Look at load, or set Never() for the node."
    )
    return Judgement("win rate", rate, "correlated", advice)


def _tail(group: Group) -> Judgement:
    seen, alone = group.p99()
    if seen is None or alone is None or alone <= 0:
        if group.steps < P99_STEPS:
            return Judgement("p99 drop", None, THIN, f"{group.steps} of {P99_STEPS} steps")
        why = "Every slow primary was cut short by its hedge: a control group (holdout=0.05) would tell."
        return Judgement("p99 drop", None, THIN, why)
    drop = 1.0 - seen / alone
    if drop >= 0.6:
        return Judgement("p99 drop", drop, "as good as others report (60 to 80 %)")
    if drop >= 0.2:
        return Judgement("p99 drop", drop, "some")
    if group.hedges:
        return Judgement("p99 drop", drop, "little", "See why hedges were refused, and the win rate.")
    return Judgement("p99 drop", drop, "none: nothing was hedged")
