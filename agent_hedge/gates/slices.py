"""Counts over a sliding window, kept by slices of time."""

from __future__ import annotations

from collections import deque


class Slices:
    """Counts of several fields in the newest `keep` slices of `width` seconds, the running one included.

    Adding and reading are O(1); only slices in which something was asked or counted are stored. Time never runs
    backwards: an instant before the newest slice (another thread, another loop) counts as that slice. Not locked: its
    owner locks.
    """

    __slots__ = ("_closed", "_current", "_ends_at", "_fields", "_index", "_keep", "_rows", "_width")

    def __init__(self, fields: int, *, width: float, keep: int) -> None:
        self._fields = fields
        self._width = width
        self._keep = keep
        self._index = -1
        self._ends_at = float("-inf")
        self._current = [0] * fields
        self._rows: deque[tuple[int, list[int]]] = deque()
        self._closed = [0] * fields
        """Sums over the window without the running slice."""

    def add(self, field: int, now: float) -> int:
        """Count one; return the slice it was counted in, to be able to `take_back` it."""
        if now >= self._ends_at:
            self._advance(now)
        self._current[field] += 1
        return self._index

    def take_back(self, field: int, index: int) -> None:
        """Undo one `add`; without effect when its slice has left the window."""
        for at, row in reversed(self._rows):
            if at == index:
                row[field] -= 1
                if row is not self._current:
                    self._closed[field] -= 1
            if at <= index:
                return

    def total(self, field: int, now: float) -> int:
        """Return the sum of a field over the window."""
        if now >= self._ends_at:
            self._advance(now)
        return self._closed[field] + self._current[field]

    def newest(self, field: int, now: float, slices: int) -> int:
        """Return the sum over only the newest `slices` slices, the running one included."""
        if now >= self._ends_at:
            self._advance(now)
        oldest = self._index - slices
        total = 0
        for at, row in reversed(self._rows):
            if at <= oldest:
                break
            total += row[field]
        return total

    def _advance(self, now: float) -> None:
        """Close the running slice, open the one of `now`, let old ones fall out."""
        for field, count in enumerate(self._current):
            self._closed[field] += count
        self._index = max(int(now // self._width), self._index)
        self._ends_at = (self._index + 1) * self._width
        self._current = [0] * self._fields
        self._rows.append((self._index, self._current))
        oldest = self._index - self._keep
        while self._rows[0][0] <= oldest:
            for field, count in enumerate(self._rows.popleft()[1]):
                self._closed[field] -= count
