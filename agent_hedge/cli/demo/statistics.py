"""The one statistic the demo needs."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor


def percentile(values: Sequence[float], q: float) -> float:
    """Return the `q`-quantile of `values`, linear between the two nearest (Hyndman and Fan's type 7)."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * q
    below = floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
