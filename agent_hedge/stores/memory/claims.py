"""Claims in memory. The lock makes each verb one atomic step, as the database's row does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from agent_hedge.core.stores import Claim, ClaimState, Fence

_FINAL = (ClaimState.DONE, ClaimState.FAILED)


@dataclass
class _Row:
    claim: Claim
    claimed_at: float
    lease_until: float
    settled_at: float | None = None


class MemoryClaims:
    """A `ClaimStore` in memory. `clock` gives monotonic seconds (leases), `epoch` epoch seconds (for people)."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, epoch: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._epoch = epoch
        self._lock = threading.Lock()
        self._rows: dict[str, _Row] = {}
        self._threads: dict[str, dict[str, _Row]] = {}
        self._runs: dict[str, dict[str, _Row]] = {}
        self._fence: Fence | None = None

    def _view(self, row: _Row, *, result: bool = True) -> Claim:
        now = self._clock()
        return replace(
            row.claim,
            lease_left=row.lease_until - now,
            age=now - row.claimed_at,
            result=row.claim.result if result else None,
        )

    async def claim(self, claim: Claim, *, lease: float) -> Claim:
        with self._lock:
            return self._insert(claim, lease)

    def _insert(self, claim: Claim, lease: float) -> Claim:
        now = self._clock()
        row = self._rows.get(claim.effect_key)
        if row is None:
            fresh = replace(
                claim,
                state=ClaimState.RUNNING,
                confirmed=False,
                executions=1,
                claimed_at=self._epoch(),
                result=None,
            )
            row = self._rows[claim.effect_key] = _Row(fresh, now, now + lease)
            self._threads.setdefault(claim.thread, {})[claim.effect_key] = row
            self._runs.setdefault(claim.run_key, {})[claim.effect_key] = row
        return self._view(row)

    async def renew(self, effect_key: str, attempt_id: str, *, lease: float) -> bool:
        with self._lock:
            row = self._rows.get(effect_key)
            if row is None or row.claim.attempt_id != attempt_id or row.claim.state is not ClaimState.RUNNING:
                return False
            row.lease_until = self._clock() + lease
            return True

    async def settle(
        self, effect_key: str, attempt_id: str, state: ClaimState, *, result: bytes | None = None, note: str = ""
    ) -> bool:
        with self._lock:
            row = self._rows.get(effect_key)
            if row is None or row.claim.attempt_id != attempt_id:
                return False
            standing = row.claim.state
            if standing is state:
                if state is ClaimState.IN_DOUBT and note:
                    row.claim = replace(row.claim, note=note)
                return True
            if standing is ClaimState.RUNNING or (standing is ClaimState.IN_DOUBT and state in _FINAL):
                row.claim = replace(row.claim, state=state, result=result, note=note or row.claim.note)
                row.settled_at = self._clock()
                return True
            return False

    async def mark_in_doubt(self, effect_key: str, *, if_expired: bool = True) -> Claim | None:
        with self._lock:
            row = self._rows.get(effect_key)
            if row is None:
                return None
            expired = row.lease_until <= self._clock()
            if row.claim.state is ClaimState.RUNNING and (expired or not if_expired):
                row.claim = replace(row.claim, state=ClaimState.IN_DOUBT)
            return self._view(row) if row.claim.state is ClaimState.IN_DOUBT else None

    async def take_over(self, claim: Claim, *, previous_attempt: str, lease: float) -> Claim:
        with self._lock:
            row = self._rows.get(claim.effect_key)
            if row is None:
                return self._insert(claim, lease)
            now = self._clock()
            standing = row.claim.state
            free = standing in (ClaimState.IN_DOUBT, ClaimState.FAILED) or (
                standing is ClaimState.RUNNING and row.lease_until <= now
            )
            if free and row.claim.attempt_id == previous_attempt:
                row.claim = replace(
                    row.claim,
                    state=ClaimState.RUNNING,
                    attempt_id=claim.attempt_id,
                    owner=claim.owner,
                    call_id=claim.call_id,
                    executions=row.claim.executions + 1,
                )
                row.lease_until, row.settled_at = now + lease, None
            return self._view(row)

    async def confirm(self, effect_keys: Iterable[str]) -> None:
        with self._lock:
            for key in effect_keys:
                if row := self._rows.get(key):
                    row.claim = replace(row.claim, confirmed=True)

    async def get(self, effect_key: str) -> Claim | None:
        with self._lock:
            row = self._rows.get(effect_key)
            return self._view(row) if row else None

    async def of_thread(self, thread: str) -> Sequence[Claim]:
        with self._lock:
            return [self._view(row, result=False) for row in self._threads.get(thread, {}).values()]

    async def of_run(self, run_key: str) -> Sequence[Claim]:
        with self._lock:
            return [self._view(row, result=False) for row in self._runs.get(run_key, {}).values()]

    async def recent(self, limit: int, *, states: Sequence[ClaimState] = ()) -> Sequence[Claim]:
        with self._lock:
            rows = [row for row in reversed(self._rows.values()) if not states or row.claim.state in states]
            return [self._view(row, result=False) for row in rows[:limit]]

    async def prune(self, older_than: float) -> int:
        with self._lock:
            horizon = self._clock() - older_than
            gone = [
                key
                for key, row in self._rows.items()
                if row.claim.state in _FINAL and row.settled_at is not None and row.settled_at < horizon
            ]
            for key in gone:
                claim = self._rows.pop(key).claim
                for index, name in ((self._threads, claim.thread), (self._runs, claim.run_key)):
                    del index[name][key]
                    if not index[name]:
                        del index[name]
            return len(gone)

    async def fence(self, since: float) -> Fence:
        with self._lock:
            self._fence = Fence(since=since, until=self._epoch())
            return self._fence

    async def fenced(self) -> Fence | None:
        return self._fence
