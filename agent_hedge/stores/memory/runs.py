"""Runs in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent_hedge.core.ports import RunRow


class MemoryRuns:
    """A `RunStore` in memory. `epoch` gives epoch seconds."""

    def __init__(self, *, epoch: Callable[[], float] = time.time) -> None:
        self._epoch = epoch
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int], RunRow] = {}

    async def load(self, run_key: str) -> RunRow | None:
        with self._lock:
            generations = [row for (key, _), row in self._rows.items() if key == run_key]
            return max(generations, key=lambda row: row.generation, default=None)

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

    async def grant(self, run_key: str, generation: int, block: int) -> int:
        with self._lock:
            row = self._rows.get((run_key, generation))
            if row is None:
                return 0
            left = block if row.extra_attempts is None else row.extra_attempts - row.hedges_granted
            granted = max(0, min(block, left))
            self._rows[run_key, generation] = replace(row, hedges_granted=row.hedges_granted + granted)
            return granted

    async def recent(self, limit: int) -> Sequence[RunRow]:
        with self._lock:
            return list(reversed(self._rows.values()))[:limit]

    async def prune(self, older_than: float) -> int:
        with self._lock:
            horizon = self._epoch() - older_than
            gone = [key for key, row in self._rows.items() if row.updated_at < horizon]
            for key in gone:
                del self._rows[key]
            return len(gone)
