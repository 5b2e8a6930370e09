"""The demo's figures as a table: one column a policy, one line a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from rich.table import Table

from agent_hedge.cli.demo.figures import DEADLINE_S, Figures

TITLES = {"none": "no hedging", "fixed": "Fixed(2 s)", "quantile": "Quantile()"}
"""How the policies are called where people read."""


class Line(NamedTuple):
    """One figure, as it is shown."""

    name: str
    shown: Callable[[Figures], str]
    matters: bool = False


LINES = (
    Line("runs", lambda f: f"{f.runs}"),
    Line("run p50", lambda f: f"{f.run_p50_s:.1f} s"),
    Line("run p95", lambda f: f"{f.run_p95_s:.1f} s"),
    Line("run p99", lambda f: f"{f.run_p99_s:.1f} s", True),
    Line("summed TTFT per run, p99", lambda f: f"{f.ttft_sum_p99_s:.1f} s", True),
    Line("TTFT per call p50", lambda f: f"{f.ttft_p50_s:.2f} s"),
    Line("TTFT per call p99", lambda f: f"{f.ttft_p99_s:.2f} s"),
    Line(f"runs over {DEADLINE_S:g} s", lambda f: f"{f.deadline_misses}"),
    Line("hedges per call", lambda f: f"{f.hedge_rate:.1%}", True),
    Line("hedges that won", lambda f: _share(f.win_rate)),
    Line("tokens computed for losers", lambda f: f"{f.wasted_tokens:,}"),
    Line("cancel to release p50", lambda f: _milliseconds(f.release_p50_s)),
    Line("cancel to release p99", lambda f: _milliseconds(f.release_p99_s)),
)


def table(figures: Mapping[str, Figures]) -> Table:
    """Return the table of all policies."""
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    drawn.add_column("")
    for name in figures:
        drawn.add_column(TITLES[name], justify="right")
    for line in LINES:
        drawn.add_row(line.name, *map(line.shown, figures.values()), style="bold" if line.matters else None)
    return drawn


def _share(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.0%}"


def _milliseconds(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"
