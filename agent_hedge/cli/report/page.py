"""The report as one HTML page: no script, nothing from elsewhere, readable on a phone."""

from __future__ import annotations

import re
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from agent_hedge.cli.report.bands import FINE, THIN
from agent_hedge.cli.report.figures import Figures
from agent_hedge.cli.report.pictures import curves, slowest_run, timeline, waterfall
from agent_hedge.cli.report.text import lines, shown

_GOOD = (FINE, "healthy", "as good as others report (60 to 80 %)", "some")
_NOTHING = '<p class="soft">Nothing to show.</p>'


def page(figures: Figures, data: dict[str, Any]) -> str:
    """Return the page of a report's figures and its data."""
    total = figures.total
    run, steps = slowest_run(figures)
    said = list(lines(data))
    template = Template((files(__package__) / "page.html").read_text(encoding="utf-8"))
    return template.substitute(
        headline=escape(_headline(data)),
        period=escape(said[0]),
        why_not=_why_not(data),
        groups="".join(_group(group) for group in shown(data)),
        curves=curves({"alone": total.alone, "seen": total.seen}) or _NOTHING,
        timeline=timeline(figures) or _NOTHING,
        run_title=escape(f"The slowest run: {run}" if run else "The slowest steps"),
        waterfall=waterfall(figures, steps) or _NOTHING,
        cost="".join(f"<p>{escape(line.strip())}</p>" for line in said[_last_blank(said) + 1 :]),
    )


def _headline(data: dict[str, Any]) -> str:
    whole = data["all"]
    if whole["p99_seen_s"] is not None and whole["p99_alone_s"]:
        return (
            f"p99 of the first token: {whole['p99_seen_s']:.2f} s, "
            f"without hedging {whole['p99_alone_s']:.2f} s, for {whole['dispatch_rate']:.1%} more requests"
        )
    return f"{data['steps']} steps, {whole['hedges']} hedges: too few to say what hedging is worth"


def _text(plain: str) -> str:
    """Return a sentence as HTML; what stands between backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(plain))


def _why_not(data: dict[str, Any]) -> str:
    rows = "".join(
        f"<dt>{escape(row['reason'])}<span>{row['steps']} steps, {row['share']:.1%}</span></dt>"
        f"<dd>{_text(row['remedy'])}</dd>"
        for row in data["why_not"]
    )
    return f"<dl>{rows}</dl>" if rows else '<p class="soft">No hedge was refused.</p>'


def _group(group: dict[str, Any]) -> str:
    name = f"{group['node']} @ {group['target']}" if group["target"] else group["node"]
    rows = "".join(_judgement(one) for one in group["judgements"])
    counts = f"{group['steps']} steps, {group['hedges']} hedges, triggered {group['trigger_rate']:.1%}"
    return f'<h3>{escape(name)}</h3><p class="soft">{escape(counts)}</p><dl>{rows}</dl>'


def _judgement(one: dict[str, Any]) -> str:
    value = "" if one["value"] is None or one["band"] == THIN else f"{one['value']:.1%}"
    kind = "" if one["band"] in (*_GOOD, THIN) else ' class="out"'
    advice = f"<br>{escape(one['advice'])}" if one["advice"] else ""
    return (
        f"<dt>{escape(one['figure'])}<span>{value}</span></dt><dd><span{kind}>{escape(one['band'])}</span>{advice}</dd>"
    )


def _last_blank(said: list[str]) -> int:
    return max((index for index, line in enumerate(said) if not line), default=len(said))
