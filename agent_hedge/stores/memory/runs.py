"""Runs in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent_hedge.core.ports import RunRow

LIMIT = 4096
"""Generations kept; those not touched for longest go first."""


class MemoryRuns:
    """A `RunStore` in memory, of the newest `limit` generations. `epoch` gives epoch seconds."""

    def __init__(self, *, epoch: Callable[[], float] = time.time, limit: int = LIMIT) -> None:
        self._epoch = epoch
        self._limit = limit
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int], RunRow] = {}
        self._newest: dict[str, int] = {}

    async def load(self, run_key: str) -> RunRow | None:
        with self._lock:
            newest = self._newest.get(run_key)
            return None if newest is None else self._rows.get((run_key, newest))

    async def save(self, row: RunRow) -> None:
        with self._lock:
            key = row.run_key, row.generation
            now = self._epoch()
            if old := self._rows.pop(key, None):
                row = replace(
                    row,
                    hedges_granted=old.hedges_granted,
                    hedges_used=max(old.hedges_used, row.hedges_used),
                    recoveries_used=max(old.recoveries_used, row.recoveries_used),
                    steps=max(old.steps, row.steps),
                )
            self._rows[key] = replace(row, updated_at=now)
            self._newest[row.run_key] = max(row.generation, self._newest.get(row.run_key, 0))
            if len(self._rows) > self._limit:
                self._forget(next(iter(self._rows)))

    async def grant(self, run_key: str, generation: int, block: int) -> int:
        with self._lock:
            row = self._rows.get((run_key, generation))
            if row is None:
                return 0
            left = block if row.extra_attempts is None else row.extra_attempts - row.hedges_granted
            granted = max(0, min(block, left))
            self._rows[run_key, generation] = replace(row, hedges_granted=row.hedges_granted + granted)
            return granted

    async def release(self, run_key: str, generation: int, unspent: int) -> None:
        with self._lock:
            row = self._rows.get((run_key, generation))
            if row is not None:
                granted = max(row.hedges_used, row.hedges_granted - unspent)
                self._rows[run_key, generation] = replace(row, hedges_granted=granted)

    async def recent(self, limit: int) -> Sequence[RunRow]:
        with self._lock:
            return list(reversed(self._rows.values()))[:limit]

    async def prune(self, older_than: float) -> int:
        with self._lock:
            horizon = self._epoch() - older_than
            gone = [key for key, row in self._rows.items() if row.updated_at < horizon]
            for key in gone:
                self._forget(key)
            return len(gone)

    def _forget(self, key: tuple[str, int]) -> None:
        del self._rows[key]
        if self._newest[key[0]] == key[1]:
            del self._newest[key[0]]
