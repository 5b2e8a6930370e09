"""Labels of metrics are few by construction: beyond a limit, a value that was not seen before is called ``_other``."""

from __future__ import annotations

LIMIT = 100
"""Distinct values of one label; a fleet has tens of nodes and targets."""
OTHER = "_other"


class Few:
    """The values of one label."""

    __slots__ = ("_known", "_limit")

    def __init__(self, limit: int = LIMIT) -> None:
        self._known: dict[str, str] = {}
        self._limit = limit

    def __call__(self, value: str) -> str:
        known = self._known.get(value)
        if known is None:
            known = value if len(self._known) < self._limit else OTHER
            if known is not OTHER:
                self._known[value] = known
        return known
