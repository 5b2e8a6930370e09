"""A warm start: latencies of an earlier day, from a CSV file, so that a new book need not learn before it hedges."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

from agent_hedge.core.step import StepKey
from agent_hedge.errors import ConfigurationError
from agent_hedge.latency.bins import COMPLETED, code_of

if TYPE_CHECKING:
    from agent_hedge.latency.book import LatencyBook

_UNITS = {"ttft_s": 1.0, "ttft_ms": 1e-3}


def prime_csv(
    book: LatencyBook, path: str | Path, now: float, *, key: StepKey | None = None, target: str | None = None
) -> int:
    """Record the times to first token of a CSV file as of `now`, and return how many.

    The file has a header with ``ttft_s`` (seconds) or ``ttft_ms``, and may have ``target``, ``node``, ``model`` and
    ``size``; `key` and `target` stand in for the columns it has not. Latencies without a node count for every step of
    their target that has fewer than 200 of its own. All rows are read before any is recorded; a file without a latency
    or a target, or a row without a usable number, raises `ConfigurationError`.
    """
    samples: list[tuple[StepKey, str, float]] = []
    with Path(path).open(newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns = reader.fieldnames or ()
        unit = next((name for name in _UNITS if name in columns), None)
        if unit is None:
            raise ConfigurationError(f"{path}: no column {' or '.join(_UNITS)} among {', '.join(columns) or 'none'}")
        if target is None and "target" not in columns:
            raise ConfigurationError(f"{path}: name the target; there is no column target among {', '.join(columns)}")
        for row in reader:
            try:
                seconds = float(row[unit]) * _UNITS[unit]
                code_of(seconds, COMPLETED)
            except (TypeError, ValueError):
                raise ConfigurationError(f"{path}, line {reader.line_num}: {unit} is {row[unit]!r}") from None
            step = StepKey(
                node=_cell(row, "node", key.node if key else ""),
                model=_cell(row, "model", key.model if key else ""),
                size=_cell(row, "size", key.size if key else ""),
            )
            samples.append((step, _cell(row, "target", target or ""), seconds))
    for step, place, seconds in samples:
        book.record(step, place, seconds, now)
    return len(samples)


def _cell(row: dict[str, str], column: str, default: str) -> str:
    """Return a row's value; an empty one or a missing column gives the default."""
    return row.get(column) or default
