"""The registry's rows in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent_hedge.core.stores import EffectRow


class MemoryEffects:
    """An `EffectStore` in memory. `epoch` gives epoch seconds."""

    def __init__(self, *, epoch: Callable[[], float] = time.time) -> None:
        self._epoch = epoch
        self._lock = threading.Lock()
        self._revision = 0
        self._rows: dict[tuple[str, str, str], EffectRow] = {}
        self._history: list[EffectRow] = []

    async def read(self) -> tuple[int, Sequence[EffectRow]]:
        with self._lock:
            return self._revision, list(self._rows.values())

    async def revision(self) -> int:
        return self._revision

    async def write(self, rows: Sequence[EffectRow], *, by: str) -> int:
        with self._lock:
            if not rows:
                return self._revision
            self._revision += 1
            for row in rows:
                stored = replace(row, revision=self._revision, updated_at=self._epoch(), updated_by=by)
                self._rows[row.namespace, row.name, row.source] = stored
                self._history.append(stored)
            return self._revision

    async def withdraw(self, namespace: str, name: str, source: str, *, by: str) -> int:
        with self._lock:
            row = self._rows.pop((namespace, name, source), None)
            if row is not None:
                self._revision += 1
                self._history.append(
                    replace(row, revision=self._revision, updated_at=self._epoch(), updated_by=by, withdrawn=True)
                )
            return self._revision

    async def history(self, namespace: str, name: str) -> Sequence[EffectRow]:
        with self._lock:
            return [row for row in self._history if (row.namespace, row.name) == (namespace, name)]
