"""Latency slices in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from agent_hedge.core.checks import KEY_LIMIT, WORKER_LIMIT, check_text


class MemorySlices:
    """A `SliceStore` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, int, str], bytes] = {}

    async def put(self, worker: str, rows: Sequence[tuple[str, int, bytes]]) -> None:
        check_text(worker, "a worker", WORKER_LIMIT, empty=False)
        for key, _, _ in rows:
            check_text(key, "a step key", KEY_LIMIT, empty=False)
        with self._lock:
            self._rows.update({(key, epoch, worker): counts for key, epoch, counts in rows})

    async def since(self, epoch: int) -> Sequence[tuple[str, int, bytes]]:
        with self._lock:
            found = [(key, at, counts) for (key, at, _), counts in self._rows.items() if at >= epoch]
            return sorted(found, key=lambda row: row[1])

    async def prune(self, before: int) -> int:
        with self._lock:
            kept = {row: counts for row, counts in self._rows.items() if row[1] >= before}
            gone = len(self._rows) - len(kept)
            self._rows = kept
            return gone
