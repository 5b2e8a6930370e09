"""Logical requests and physical attempts in memory."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any

from agent_hedge.core.stores import ATTEMPT_COLUMNS, STEP_COLUMNS, check_columns

_SETTLED = ("outcome", "decision")


class MemorySteps:
    """A `StepStore` in memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._steps: dict[str, dict[str, Any]] = {}
        self._attempts: dict[str, dict[str, Any]] = {}

    async def add_steps(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._add(self._steps, rows, STEP_COLUMNS, "step_id")

    async def add_attempts(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self._add(self._attempts, rows, ATTEMPT_COLUMNS, "attempt_id")

    def _add(
        self,
        table: dict[str, dict[str, Any]],
        rows: Sequence[Mapping[str, Any]],
        columns: frozenset[str],
        key: str,
    ) -> None:
        for row in rows:
            check_columns(row, columns, key)
        with self._lock:
            for row in rows:
                stored = table.setdefault(row[key], dict.fromkeys(sorted(columns)))
                for column, value in row.items():
                    if value is not None and not (column in _SETTLED and stored[column] is not None):
                        stored[column] = value

    async def steps_of(self, run_key: str) -> Sequence[Mapping[str, Any]]:
        with self._lock:
            return [dict(row) for row in self._steps.values() if row["run_key"] == run_key]

    async def attempts_of(self, run_key: str) -> Sequence[Mapping[str, Any]]:
        with self._lock:
            mine = {step_id for step_id, row in self._steps.items() if row["run_key"] == run_key}
            return [dict(row) for row in self._attempts.values() if row["step_id"] in mine]

    async def since(self, epoch: float, limit: int) -> Sequence[Mapping[str, Any]]:
        return self._newest(self._steps, epoch, limit)

    async def attempts_since(self, epoch: float, limit: int) -> Sequence[Mapping[str, Any]]:
        return self._newest(self._attempts, epoch, limit)

    def _newest(self, table: dict[str, dict[str, Any]], epoch: float, limit: int) -> list[dict[str, Any]]:
        with self._lock:
            found = [dict(row) for row in table.values() if (row["started_at"] or 0.0) >= epoch]
        return sorted(found, key=lambda row: (row["started_at"], row.get("number") or 0), reverse=True)[:limit]

    async def prune(self, before: float) -> int:
        with self._lock:
            old = [step_id for step_id, row in self._steps.items() if (row["started_at"] or 0.0) < before]
            for step_id in old:
                del self._steps[step_id]
            self._attempts = {
                attempt_id: row for attempt_id, row in self._attempts.items() if (row["started_at"] or 0.0) >= before
            }
            return len(old)
