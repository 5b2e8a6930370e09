"""Pictures as SVG text: latency curves, and the waterfall of one run. Colours come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import ceil, floor, log10

from agent_hedge.cli.demo.notes import AttemptNote, RunNote

WIDTH = 420
"""Units of the picture's width: on a phone a unit is about a pixel, so letters of 11 units can be read."""
LEFT, RIGHT, TOP, BOTTOM = 40, 10, 10, 34
CURVES_HEIGHT = 260
ROW, BAR, ROW_LEFT = 17, 6, 26
MOST_POINTS = 400
"""Points of a curve; more cannot be seen."""


def curves(series: Mapping[str, Sequence[float]], what: str, axis: str) -> str:
    """Draw for each policy the share of values slower than x (a survival curve), both axes logarithmic."""
    ordered = {name: sorted(values) for name, values in series.items()}
    least = min(values[0] for values in ordered.values())
    most = max(values[-1] for values in ordered.values())
    count = max(len(values) for values in ordered.values())
    low, high = log10(least), max(log10(most), log10(least) + 0.1)
    depth = max(0.5, ceil(log10(count) * 2) / 2)

    def x(value: float) -> float:
        return LEFT + (log10(value) - low) / (high - low) * (WIDTH - LEFT - RIGHT)

    def y(share: float) -> float:
        return TOP - log10(share) / depth * (CURVES_HEIGHT - TOP - BOTTOM)

    parts = [_line("axis", LEFT, y(10**-depth), WIDTH - RIGHT, y(10**-depth))]
    for power in range(floor(depth) + 1):
        share = 10.0**-power
        parts.append(_line("grid", LEFT, y(share), WIDTH - RIGHT, y(share)))
        parts.append(_text(LEFT - 5, y(share) + 4, f"{share:.{max(0, power - 2)}%}", "end"))
    for value in _ticks(least, most):
        parts.append(_line("grid", x(value), TOP, x(value), y(10**-depth)))
        parts.append(_text(x(value), CURVES_HEIGHT - BOTTOM + 14, f"{value:g} s", "middle"))
    parts.append(_text(WIDTH - RIGHT, CURVES_HEIGHT - 5, axis, "end"))
    for name, values in ordered.items():
        points = [(x(value), y((len(values) - index) / len(values))) for index, value in _thinned(values)]
        path = "M" + "L".join(f"{px:.1f} {py:.1f}" for px, py in points)
        parts.append(f'<path class="curve {escape(name)}" d="{path}"/>')
    return _svg(CURVES_HEIGHT, f"share of {what} slower than x, per policy", parts)


def waterfall(run: RunNote, compression: float) -> str:
    """Draw one run: a row a step, the primary above its hedge; what lost is hollow and ends where cancelled."""
    height = TOP + len(run.steps) * ROW + BOTTOM
    total = run.elapsed * compression

    def x(instant: float) -> float:
        return ROW_LEFT + (instant - run.started) * compression / total * (WIDTH - ROW_LEFT - RIGHT)

    floor_y = height - BOTTOM + 4
    parts = [_line("axis", ROW_LEFT, floor_y, WIDTH - RIGHT, floor_y)]
    for value in _even_ticks(total):
        at = ROW_LEFT + value / total * (WIDTH - ROW_LEFT - RIGHT)
        parts.append(_line("grid", at, TOP, at, floor_y))
        parts.append(_text(at, floor_y + 13, f"{value:g} s", "middle"))
    for number, step in enumerate(run.steps):
        top = TOP + number * ROW
        parts.append(_text(ROW_LEFT - 5, top + 11, str(number + 1), "end"))
        for attempt in step.attempts:
            first, last = x(attempt.started), x(_end(attempt, step.answered or attempt.started))
            role = "hedge" if attempt.hedge else "primary"
            fate = "won" if attempt.won else "lost"
            y = top + 2 + (BAR + 1 if attempt.hedge else 0)
            width = max(last - first, 1.5)
            parts.append(
                f'<rect class="{role} {fate}" x="{first:.1f}" y="{y}" width="{width:.1f}" height="{BAR}" rx="1">'
                f"<title>{escape(attempt.target)}, {role}, {fate}</title></rect>"
            )
    return _svg(height, "one run, step by step", parts)


def _end(attempt: AttemptNote, answered: float) -> float:
    """Return when an attempt stopped being waited for."""
    if attempt.won:
        return attempt.first_token or answered
    return attempt.cancelled or answered


def _thinned(values: Sequence[float]) -> Iterator[tuple[int, float]]:
    """Yield indices and values of a sorted sequence, denser towards its end, where the tail is."""
    count, index = len(values), 0
    while index < count - 1:
        yield index, values[index]
        index += max(1, (count - index) * 12 // MOST_POINTS)
    yield count - 1, values[-1]


def _ticks(least: float, most: float) -> list[float]:
    """Return round values on a logarithmic axis, fewer over a wide range."""
    decades = log10(most / least)
    steps: tuple[float, ...] = (1,) if decades > 2 else (1, 2, 5) if decades > 1 else (1, 1.5, 2, 3, 4, 6, 8)
    powers = range(floor(log10(least)), ceil(log10(most)) + 1)
    return [step * 10.0**power for power in powers for step in steps if least <= step * 10.0**power <= most]


def _even_ticks(total: float) -> list[float]:
    """Return up to seven round values from 0 to `total`."""
    rough = total / 6
    unit = 10.0 ** floor(log10(rough))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= rough)
    return [index * step for index in range(floor(total / step) + 1)]


def _line(kind: str, x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _svg(height: float, label: str, parts: Sequence[str]) -> str:
    body = "\n".join(parts)
    return f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(label)}">\n{body}\n</svg>'
