"""The demo's page: one HTML file that needs nothing else, readable on a phone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template

from agent_hedge.cli.demo import words
from agent_hedge.cli.demo.figures import Figures
from agent_hedge.cli.demo.notes import RunNote
from agent_hedge.cli.demo.svg import curves, waterfall
from agent_hedge.cli.demo.table import LINES, TITLES
from agent_hedge.cli.demo.words import Setting


def page(setting: Setting, runs: Mapping[str, Sequence[RunNote]], figures: Mapping[str, Figures]) -> str:
    """Return the page as HTML text."""
    scale = setting.tempo.compression
    ttft = {name: [step.ttft * scale for run in made for step in run.steps] for name, made in runs.items()}
    elapsed = {name: [run.elapsed * scale for run in made] for name, made in runs.items()}
    shown = most_saved(runs)
    return Template(files(__package__).joinpath("page.html").read_text(encoding="utf-8")).substitute(
        headline=escape(words.headline(figures)),
        summary=escape(words.summary(setting)),
        table=_table(figures),
        learning=escape(words.learning(setting)),
        key=_key(figures),
        run_curves=curves(elapsed, "runs", "time a run took"),
        ttft_curves=curves(ttft, "calls", "time to the first token of a call"),
        run_caption=escape(words.one_run(setting, shown, runs)),
        waterfall=waterfall(shown, scale),
        method=escape(words.method(setting)),
    )


def most_saved(runs: Mapping[str, Sequence[RunNote]]) -> RunNote:
    """Return the run under Quantile in which hedging saved most waiting."""
    pairs = zip(runs["none"], runs["quantile"], strict=True)
    return max(pairs, key=lambda pair: pair[0].ttft_sum - pair[1].ttft_sum)[1]


def _table(figures: Mapping[str, Figures]) -> str:
    head = "".join(f'<th><b class="{name}">{escape(TITLES[name])}</b></th>' for name in figures)
    rows = [f"<tr><th></th>{head}</tr>"]
    for line in LINES:
        cells = "".join(f"<td>{escape(line.shown(figure))}</td>" for figure in figures.values())
        matters = ' class="matters"' if line.matters else ""
        rows.append(f"<tr{matters}><td>{escape(line.name)}</td>{cells}</tr>")
    return "<table>\n" + "\n".join(rows) + "\n</table>"


def _key(figures: Mapping[str, Figures]) -> str:
    items = "".join(f'<li><b class="{name}">{escape(TITLES[name])}</b></li>' for name in figures)
    return f'<ul class="key">{items}</ul>'
