"""Runs in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from agent_hedge.core.ports import Block
from agent_hedge.core.stores import RunRow

_COUNTS = ("steps", "hedges_used", "tokens_used", "cost_used", "recoveries_used")
_GRANTED = ("hedges_granted", "tokens_granted", "cost_granted")

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
            old = self._rows.pop(key, RunRow(run_key=row.run_key))
            granted = {name: getattr(old, name) for name in _GRANTED}
            counted = {name: getattr(old, name) + getattr(row, name) for name in _COUNTS}
            row = replace(row, **granted, **counted)
            self._rows[key] = replace(row, updated_at=now)
            self._newest[row.run_key] = max(row.generation, self._newest.get(row.run_key, 0))
            if len(self._rows) > self._limit:
                self._forget(next(iter(self._rows)))

    async def grant(self, run_key: str, generation: int, wanted: Block) -> Block:
        with self._lock:
            row = self._rows.get((run_key, generation))
            if row is None:
                return Block()
            before = _granted(row)
            granted = wanted.at_most(before.left_of(row.extra_attempts, row.tokens, row.cost))
            self._rows[run_key, generation] = _with(row, before.plus(granted))
            return granted

    async def release(self, run_key: str, generation: int, unspent: Block) -> None:
        with self._lock:
            row = self._rows.get((run_key, generation))
            if row is not None:
                used = Block(row.hedges_used, row.tokens_used, row.cost_used)
                self._rows[run_key, generation] = _with(row, _granted(row).minus(unspent).at_least(used))

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


def _granted(row: RunRow) -> Block:
    return Block(row.hedges_granted, row.tokens_granted, row.cost_granted)


def _with(row: RunRow, granted: Block) -> RunRow:
    return replace(row, hedges_granted=granted.hedges, tokens_granted=granted.tokens, cost_granted=granted.cost)
