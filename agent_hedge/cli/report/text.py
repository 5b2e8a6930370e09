"""The report as plain data and as lines for a terminal. It opens with why steps were *not* hedged."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import median
from typing import Any

from agent_hedge.cli.report.bands import THIN, judge
from agent_hedge.cli.report.figures import Figures, Group
from agent_hedge.cli.report.remedies import remedy
from agent_hedge.core.events import Reason


def as_data(figures: Figures, since_s: float, budget: float) -> dict[str, Any]:
    """Return the whole report as JSON-able data; seconds, ratios, counts."""
    total = figures.total
    return {
        "since_s": since_s,
        "budget": budget,
        "steps": total.steps,
        "why_not": [
            {"reason": reason, "steps": count, "share": count / total.steps, "remedy": remedy(reason)}
            for reason, count in figures.refusals.most_common()
        ],
        "shadow": {"would_have_been_hedged": figures.refusals[Reason.SHADOW]},
        "control": _control(total),
        "all": _group(total, budget),
        "groups": [_group(group, budget) for group in figures.groups],
        "tokens": figures.tokens.as_dict(),
        "extra_cost": figures.extra.as_dict(),
        "cancel_s": _spread(figures.cancels),
        "release_s": _spread(figures.releases),
    }


def _group(group: Group, budget: float) -> dict[str, Any]:
    seen, alone = group.p99()
    return {
        "node": group.node,
        "target": group.target,
        "steps": group.steps,
        "outcomes": dict(group.outcomes),
        "hedges": group.hedges,
        "hedges_won": group.won,
        "recoveries": group.recoveries,
        "trigger_rate": group.trigger_rate,
        "dispatch_rate": group.dispatch_rate,
        "win_rate": group.win_rate,
        "p99_seen_s": seen,
        "p99_alone_s": alone,
        "judgements": [
            {"figure": one.figure, "value": one.value, "band": one.band, "advice": one.advice}
            for one in judge(group, budget)
        ],
    }


def _control(total: Group) -> dict[str, Any] | None:
    if not total.held_out or not total.helped:
        return None
    return {
        "held_out": len(total.held_out),
        "hedged": len(total.helped),
        "median_held_out_s": median(total.held_out),
        "median_hedged_s": median(total.helped),
    }


def _spread(values: list[float]) -> dict[str, float] | None:
    if not values:
        return None
    ordered = sorted(values)
    return {"count": len(ordered), "median": median(ordered), "max": ordered[-1]}


def lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a terminal report."""
    yield f"{data['steps']} steps in the last {_span(data['since_s'])}"
    if not data["steps"]:
        yield "Nothing was recorded. Does the hedger have this store, and accounting='all'?"
        return
    yield ""
    yield "Why not: steps whose hedge was refused"
    if not data["why_not"]:
        yield "  none"
    for row in data["why_not"]:
        yield f"  {row['reason']:15} {row['steps']:6}  {row['share']:6.1%}  {row['remedy']}"
    if count := data["shadow"]["would_have_been_hedged"]:
        yield f"  Shadow: {count} steps would have been hedged."
    if control := data["control"]:
        yield (
            f"  Control group: {control['held_out']} due steps were not hedged on purpose, median "
            f"{control['median_held_out_s']:.2f} s; {control['hedged']} were, median "
            f"{control['median_hedged_s']:.2f} s."
        )
    for group in shown(data):
        yield ""
        yield from _group_lines(group)
    yield ""
    yield from _cost_lines(data)


def shown(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return what is shown: all together first, unless there is only one group."""
    groups: list[dict[str, Any]] = data["groups"]
    return groups if len(groups) == 1 else [data["all"], *groups]


def _group_lines(group: dict[str, Any]) -> Iterator[str]:
    name = f"{group['node']} @ {group['target']}" if group["target"] else group["node"]
    ends = ", ".join(f"{count} {outcome}" for outcome, count in sorted(group["outcomes"].items()))
    yield f"{name}: {group['steps']} steps ({ends})"
    yield (
        f"  triggered {group['trigger_rate']:.1%}, hedges {group['hedges']} of which won {group['hedges_won']}, "
        f"recoveries {group['recoveries']}"
    )
    if group["p99_seen_s"] is not None and group["p99_alone_s"] is not None:
        yield f"  p99 of the first token {group['p99_seen_s']:.2f} s, by primaries alone {group['p99_alone_s']:.2f} s"
    for one in group["judgements"]:
        value = "" if one["value"] is None or one["band"] == THIN else f" {one['value']:.1%}"
        advice = f": {one['advice']}" if one["advice"] else ""
        yield f"  {one['figure']}{value} - {one['band']}{advice}"


def _cost_lines(data: dict[str, Any]) -> Iterator[str]:
    yield from _token_lines(data)
    if cancel := data["cancel_s"]:
        yield f"Cancelled attempts ended after {cancel['median']:.3f} s (median), {cancel['max']:.3f} s at most"
    if release := data["release_s"]:
        yield f"Engines released them after {release['median']:.3f} s (median of {release['count']} observed)"


def _token_lines(data: dict[str, Any]) -> Iterator[str]:
    tokens = data["tokens"]
    least = "" if tokens["certainty"] == "exact" else "at least "
    if tokens["attempts_of_unknown_count"] == tokens["attempts"]:
        yield "Tokens: none were counted"
        return
    yield f"Completion tokens computed: {least}{tokens['computed']}, of which wasted {least}{tokens['wasted']}"
    if tokens["attempts_of_unknown_count"]:
        yield f"  {tokens['attempts_of_unknown_count']} of {tokens['attempts']} attempts are of unknown count"
    if tokens["cost"] is not None:
        least = "" if tokens["cost_certainty"] == "exact" else "at least "
        yield f"Cost: {least}{_money(tokens['cost'])}"
    if extra := data["extra_cost"]:
        low, high = (_money(extra[bound]) for bound in ("at_least", "at_most"))
        yield f"Hedges added {low if low == high else f'{low} to {high}'}: their prompts, and the completions of losers"
        if unpriced := extra["hedges_unpriced"]:
            yield f"  {unpriced} hedges are of unknown price or size"


def _money(amount: float) -> str:
    return f"{amount:.6f}".rstrip("0").rstrip(".")


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
