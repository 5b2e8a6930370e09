"""The report's pictures as SVG text. Colours come from the page; a unit is about a pixel on a phone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from math import ceil, floor, log10

from agent_hedge.cli.report.figures import Figures, Row
from agent_hedge.latency import Sketch

WIDTH = 420
LEFT, RIGHT, TOP, BOTTOM = 42, 10, 10, 32
CURVES, TIMELINE, ROW = 230, 120, 18
BUCKETS = 60
MOST_ROWS = 50
MOST_LETTERS, LETTER = 24, 7
"""Of a node's name in the waterfall, and how wide one is at most."""


def curves(series: dict[str, Sketch]) -> str:
    """Draw the share of steps whose first token came later than x: as seen, and by primaries alone."""
    drawn = {name: points for name, sketch in series.items() if (points := _survival(sketch))}
    if not drawn:
        return ""
    every = [point for points in drawn.values() for point in points]
    least, most = min(x for x, _ in every), max(x for x, _ in every)
    low, high = log10(least), max(log10(most), log10(least) + 0.3)
    depth = max(1.0, -log10(min(share for _, share in every)))

    def x(value: float) -> float:
        return LEFT + (log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return TOP - log10(share) / depth * (CURVES - TOP - BOTTOM)

    parts = []
    for power in range(floor(depth) + 1):
        parts += [_line("grid", LEFT, y(10.0**-power), WIDTH - RIGHT, y(10.0**-power))]
        parts.append(_text(LEFT - 5, y(10.0**-power) + 4, f"{10.0**-power:.{max(0, power - 2)}%}", "end"))
    for value in (step * 10.0**power for power in range(floor(low), ceil(high) + 1) for step in (1, 3)):
        if low <= log10(value) <= high:
            parts.append(_line("grid", x(value), TOP, x(value), CURVES - BOTTOM))
            parts.append(_text(x(value), CURVES - BOTTOM + 14, f"{value:g} s", "middle"))
    for name, points in drawn.items():
        path = "M" + "L".join(f"{x(value):.1f} {y(share):.1f}" for value, share in points)
        parts.append(f'<path class="curve {name}" d="{path}"/>')
    return _svg(CURVES, "share of steps whose first token came later than x", parts)


def timeline(figures: Figures) -> str:
    """Draw steps over time, and how many of them were hedged or refused a hedge."""
    if not figures.steps:
        return ""
    first, last = figures.steps[0]["started_at"], figures.steps[-1]["started_at"]
    width = max(last - first, 1.0) / BUCKETS
    counts = [[0, 0, 0] for _ in range(BUCKETS)]
    for step in figures.steps:
        bucket = counts[min(int((step["started_at"] - first) / width), BUCKETS - 1)]
        bucket[0] += 1
        bucket[1] += step["decision"] == "hedged"
        bucket[2] += step["decision"] == "refused"
    most = max(bucket[0] for bucket in counts)
    bar = (WIDTH - LEFT - RIGHT) / BUCKETS
    scale = (TIMELINE - TOP - BOTTOM) / most
    parts = [_text(LEFT - 5, TOP + 8, str(most), "end")]
    for index, (steps, hedged, refused) in enumerate(counts):
        for kind, count, below in (("steps", steps, 0), ("refused", refused, hedged), ("hedged", hedged, 0)):
            if count:
                top = TIMELINE - BOTTOM - (count + below) * scale
                parts.append(_rect(kind, LEFT + index * bar, top, bar * 0.85, count * scale, f"{count} {kind}"))
    parts.append(_line("axis", LEFT, TIMELINE - BOTTOM, WIDTH - RIGHT, TIMELINE - BOTTOM))
    parts.append(_text(LEFT, TIMELINE - BOTTOM + 14, f"{_ago(last - first)} before the end", "start"))
    parts.append(_text(WIDTH - RIGHT, TIMELINE - BOTTOM + 14, "the end", "end"))
    return _svg(TIMELINE, "steps over time, hedged and refused", parts)


def slowest_run(figures: Figures) -> tuple[str, Sequence[Row]]:
    """Return the run with the largest sum of waits, and its steps; without runs, the slowest steps as they are."""
    runs: dict[str, list[Row]] = {}
    for step in figures.steps:
        runs.setdefault(step["run_key"] or "", []).append(step)
    named = {key: steps for key, steps in runs.items() if key}
    if not named:
        return "", sorted(figures.steps, key=lambda step: step["elapsed_s"] or 0.0)[-10:]
    key = max(named, key=lambda key: sum(step["elapsed_s"] or 0.0 for step in named[key]))
    return key, named[key][:MOST_ROWS]


def waterfall(figures: Figures, steps: Sequence[Row]) -> str:
    """Draw each step as a row, its attempts as bars; what lost is hollow. A node is named where it begins."""
    spans = [(step, [row for row in figures.attempts.get(step["step_id"], ()) if row["ended_at"]]) for step in steps]
    ends = [row["ended_at"] for _, rows in spans for row in rows]
    if not ends:
        return ""
    begin = float(min(step["started_at"] for step in steps))
    total = max(float(max(ends)) - begin, 1e-3)
    height = TOP + len(spans) * ROW + BOTTOM

    def x(instant: float) -> float:
        return LEFT + (instant - begin) / total * (WIDTH - LEFT - RIGHT)

    parts = [_line("axis", LEFT, height - BOTTOM, WIDTH - RIGHT, height - BOTTOM)]
    for tick in range(5):
        at = LEFT + tick / 4 * (WIDTH - LEFT - RIGHT)
        parts.append(_text(at, height - BOTTOM + 14, f"{total * tick / 4:.3g} s", "end" if tick == 4 else "middle"))
    named = None
    for number, (step, rows) in enumerate(spans):
        top = TOP + number * ROW
        parts.append(_text(LEFT - 5, top + 11, str(number + 1), "end"))
        bars = [(x(row["started_at"]), max(x(row["ended_at"]), x(row["started_at"]) + 1.5)) for row in rows]
        if bars and step["node"] != named:
            named = step["node"]
            parts.append(_beside(named or "", min(left for left, _ in bars), max(right for _, right in bars), top + 11))
        for row, (left, right) in zip(rows, bars, strict=True):
            kind = f"{row['role'] or 'primary'} {'won' if row['outcome'] == 'won' else 'lost'}"
            offset = 0 if row["role"] == "primary" else 7
            said = f"{step['node']}: {row['role']} at {row['target']}, {row['outcome']}"
            parts.append(_rect(kind, left, top + 2 + offset, right - left, 6, said))
    return _svg(height, "the steps of one run", parts)


def _beside(name: str, left: float, right: float, y: float) -> str:
    """Write a name after a row's bars, or before them where there is no room."""
    shown = name if len(name) <= MOST_LETTERS else f"{name[: MOST_LETTERS - 1]}…"
    if right + LETTER * len(shown) < WIDTH - RIGHT:
        return _text(right + 4, y, shown, "start")
    return _text(left - 4, y, shown, "end")


def _survival(sketch: Sketch) -> list[tuple[float, float]]:
    curve = sketch.curve()
    if curve is None:
        return []
    points = [(value, 1.0 - reached) for value, reached in zip(curve.values, curve.reached, strict=True)]
    kept = [point for point in points if point[1] > 0.5 / sketch.count and point[0] > 0]
    return kept[:: max(1, len(kept) // 400)]


def _ago(seconds: float) -> str:
    return (
        f"{seconds / 3600:.1f} h"
        if seconds >= 3600
        else f"{seconds / 60:.0f} min"
        if seconds >= 60
        else f"{seconds:.0f} s"
    )


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _rect(kind: str, x: float, y: float, width: float, height: float, words: str) -> str:
    return (
        f'<rect class="{escape(kind)}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}">'
        f"<title>{escape(words)}</title></rect>"
    )


def _svg(height: float, label: str, parts: Iterable[str]) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">\n{body}\n</svg>'
