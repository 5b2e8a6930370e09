"""What the tables say of hedging: counts, waits and tokens, per node and the target its primaries went to.

The wait that a primary alone would have given is estimated from all primaries: one that was cancelled because its hedge
won is known to have been still waiting, no more (Kaplan and Meier; R16).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_hedge.cli.report.extra import Extra
from agent_hedge.core.events import Reason
from agent_hedge.core.step import Certainty
from agent_hedge.latency import Sketch

Row = Mapping[str, Any]

P99_STEPS = 500
"""Steps below which a p99 is an anecdote: five lie beyond it."""


@dataclass(slots=True)
class Group:
    """The steps of one node whose primaries went to one target."""

    node: str
    target: str
    steps: int = 0
    due: int = 0
    """Steps whose trigger fired: a hedge was dispatched, or refused at that moment."""
    hedged: int = 0
    hedges: int = 0
    won: int = 0
    recoveries: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    refusals: Counter[str] = field(default_factory=Counter)
    seen: Sketch = field(default_factory=Sketch)
    alone: Sketch = field(default_factory=Sketch)
    held_out: list[float] = field(default_factory=list)
    """Waits of steps that were due and, as the control group, not hedged."""
    helped: list[float] = field(default_factory=list)
    """Waits of steps that were due and hedged."""

    @property
    def dispatch_rate(self) -> float:
        return self.hedges / self.steps if self.steps else 0.0

    @property
    def trigger_rate(self) -> float:
        return self.due / self.steps if self.steps else 0.0

    @property
    def win_rate(self) -> float | None:
        return self.won / self.hedges if self.hedges else None

    def p99(self) -> tuple[float | None, float | None]:
        """Return the p99 in seconds as seen and by primaries alone; None where the data cannot say."""
        return _p99(self.seen), _p99(self.alone)


@dataclass(slots=True)
class Tokens:
    """Tokens and money of all attempts. A total is exact only where nothing is a bound or unknown."""

    attempts: int = 0
    computed: Counter[str] = field(default_factory=Counter)
    """Completion tokens by certainty."""
    wasted: Counter[str] = field(default_factory=Counter)
    """Those of attempts that did not win."""
    unknown: int = 0
    """Attempts of which no count is known."""
    cost: float = 0.0
    priced: int = 0
    unpriced: int = 0

    @property
    def exact(self) -> bool:
        return not self.unknown and set(self.computed) <= {Certainty.EXACT}

    def as_dict(self) -> dict[str, Any]:
        """Return plain data; ``at least`` stands where ``exact`` does not."""
        return {
            "attempts": self.attempts,
            "computed": sum(self.computed.values()),
            "computed_by_certainty": dict(self.computed),
            "wasted": sum(self.wasted.values()),
            "wasted_by_certainty": dict(self.wasted),
            "attempts_of_unknown_count": self.unknown,
            "certainty": "exact" if self.exact else "at_least",
            "cost": self.cost if self.priced else None,
            "cost_certainty": "exact" if not self.unpriced else "at_least",
        }


@dataclass(slots=True)
class Figures:
    """Everything a report is made of."""

    groups: list[Group]
    tokens: Tokens
    extra: Extra
    steps: Sequence[Row]
    attempts: Mapping[str, Sequence[Row]]
    """The attempts of each step, in order."""
    cancels: list[float]
    """Seconds from a cancel to the end of the attempt's task."""
    releases: list[float]
    """Seconds from a cancel to the engine's release, where it was observed."""

    @property
    def refusals(self) -> Counter[str]:
        return sum((group.refusals for group in self.groups), Counter())

    @property
    def total(self) -> Group:
        """All groups in one."""
        total = Group("all", "")
        for group in self.groups:
            for name in ("steps", "due", "hedged", "hedges", "won", "recoveries"):
                setattr(total, name, getattr(total, name) + getattr(group, name))
            total.outcomes += group.outcomes
            total.refusals += group.refusals
            total.seen.merge(group.seen)
            total.alone.merge(group.alone)
            total.held_out += group.held_out
            total.helped += group.helped
        return total


def figures(steps: Iterable[Row], attempts: Iterable[Row]) -> Figures:
    """Return the figures of these rows of the ``steps`` and ``attempts`` tables."""
    of_step: dict[str, list[Row]] = defaultdict(list)
    tokens, extra, cancels, releases = Tokens(), Extra(), list[float](), list[float]()
    for row in attempts:
        of_step[row["step_id"] or ""].append(row)
        _count_tokens(tokens, row)
        if row["cancel_sent_s"] is not None and row["ended_at"] is not None:
            cancels.append(row["ended_at"] - row["started_at"] - row["cancel_sent_s"])
            if row["released_s"] is not None:
                releases.append(row["released_s"] - row["cancel_sent_s"])
    for rows in of_step.values():
        rows.sort(key=lambda row: row["number"] or 0)
        if len(rows) > 1:
            extra.add([(row, _receipt(row)) for row in rows])
    groups: dict[tuple[str, str], Group] = {}
    known = sorted((row for row in steps if row["started_at"] is not None), key=lambda row: float(row["started_at"]))
    for step in known:
        mine = of_step.get(step["step_id"], [])
        target = str(mine[0]["target"]) if mine else ""
        group = groups.setdefault((step["node"] or "", target), Group(step["node"] or "", target))
        _count_step(group, step, mine)
    ordered = sorted(groups.values(), key=lambda group: (-group.steps, group.node, group.target))
    return Figures(ordered, tokens, extra, known, of_step, cancels, releases)


def _count_step(group: Group, step: Row, attempts: Sequence[Row]) -> None:
    group.steps += 1
    group.outcomes[step["outcome"] or "open"] += 1
    hedges = [row for row in attempts if row["role"] == "hedge"]
    group.hedges += len(hedges)
    group.hedged += bool(hedges)
    group.won += sum(row["outcome"] == "won" for row in hedges)
    group.recoveries += sum(row["role"] == "recovery" for row in attempts)
    refused = step["reason"] if step["decision"] == "refused" else None
    if refused:
        group.refusals[refused] += 1
    due = bool(hedges) or (refused is not None and step["trigger_s"] is not None)
    group.due += due
    waited = step["ttft_s"]
    if waited is not None:
        group.seen.add(waited)
        if due:
            if hedges:
                group.helped.append(waited)
            elif refused == Reason.HOLDOUT:
                group.held_out.append(waited)
    elif step["elapsed_s"] is not None:
        group.seen.add_censored(step["elapsed_s"])
    if attempts:
        _count_primary(group.alone, attempts[0])


def _count_primary(alone: Sketch, row: Row) -> None:
    if row["ttft_s"] is not None:
        alone.add(row["ttft_s"])
        return
    censored = _receipt(row).get("censored_s")
    if isinstance(censored, int | float):
        alone.add_censored(float(censored))


def _count_tokens(tokens: Tokens, row: Row) -> None:
    tokens.attempts += 1
    if row["cost"] is None:
        tokens.unpriced += 1
    else:
        tokens.priced += 1
        tokens.cost += row["cost"]
    count = row["tokens_computed"]
    if count is None:
        tokens.unknown += 1
        return
    certainty = row["computed_certainty"] or str(Certainty.UNKNOWN)
    tokens.computed[certainty] += count
    if row["outcome"] != "won":
        tokens.wasted[certainty] += count


def _receipt(row: Row) -> Mapping[str, Any]:
    try:
        receipt = json.loads(row["receipt"] or "{}")
    except ValueError:
        return {}
    return receipt if isinstance(receipt, dict) else {}


def _p99(sketch: Sketch) -> float | None:
    if sketch.count < P99_STEPS:
        return None
    estimate = sketch.quantile(0.99)
    return estimate.seconds if estimate.identified else None
