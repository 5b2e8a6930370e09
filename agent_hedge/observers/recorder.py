"""Rows on their way to the store: written to the spool first, shipped in batches in the background.

Nothing here waits on the hot path (R14). The queue is bounded: what does not fit is dropped and counted, and comes
back with the spool at the next start. A store that is gone is tried again, less and less often.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence

import anyio

from agent_hedge.core.ports import Portal
from agent_hedge.core.step import Certainty, Verdict
from agent_hedge.core.stores import ATTEMPT_COLUMNS, STEP_COLUMNS, StepStore, check_columns
from agent_hedge.errors import ConfigurationError, HedgeError
from agent_hedge.observers.spool import Orphan, Row, Spool, Table, orphans

logger = logging.getLogger("agent_hedge.accounting")

EVERY_S = 0.5
"""How long rows are gathered before they are shipped together."""
RETRY_S = 30.0
"""The longest pause between two tries of a store that does not answer."""
LIMIT = 20_000
"""Rows that wait; about ten megabytes."""
BATCH = 1000

_COLUMNS = {"steps": STEP_COLUMNS, "attempts": ATTEMPT_COLUMNS}
_KEYS: dict[str, str] = {"steps": "step_id", "attempts": "attempt_id"}


class Recorder:
    """Ships rows to a `StepStore` over a `Portal`; with a `Spool`, so that a killed process is not forgotten.

    `store` returns the store when rows are first shipped.
    """

    def __init__(
        self,
        store: Callable[[], StepStore],
        portal: Portal,
        spool: Spool | None = None,
        *,
        every: float = EVERY_S,
        limit: int = LIMIT,
    ) -> None:
        self.dropped = 0
        """Rows that did not fit into the queue."""
        self.adopted = 0
        """Attempts of dead processes that were settled as unknown."""
        self._store = store
        self._portal = portal
        self._spool = spool
        self._every = every
        self._limit = limit
        self._queue: deque[tuple[Table, Row, str]] = deque()
        self._lock = threading.Lock()
        self._flushing = anyio.Lock()
        self._shipping = False
        self._looked = spool is None

    @property
    def waiting(self) -> int:
        """Rows that are not in the store yet."""
        return len(self._queue)

    def put(self, key: str, rows: Sequence[tuple[Table, Row]], *, last: bool = False) -> None:
        """Take rows about the id `key`: on the spool when this returns. `last`: there is nothing more to say of it."""
        if self._spool is not None:
            self._spool.write(key, rows)
        with self._lock:
            if len(self._queue) + len(rows) > self._limit:
                self.dropped += len(rows)
                if self.dropped == len(rows):
                    logger.warning("more rows than can be shipped; some are dropped (said once)")
                return
            for table, row in rows:
                self._queue.append((table, row, key if last else ""))
            start, self._shipping = not self._shipping, True
        if start:
            self._portal.start(self._ship)

    async def flush(self) -> None:
        """Ship what waits now. Where the store raises, everything still waits. One at a time, or rows would be lost."""
        async with self._flushing:
            await self._flush()

    async def _flush(self) -> None:
        if not self._looked:
            self._looked = True
            await self._adopt()
        store = self._store()
        while self._queue:
            with self._lock:
                batch = [self._queue[index] for index in range(min(BATCH, len(self._queue)))]
            for table, add in (("steps", store.add_steps), ("attempts", store.add_attempts)):
                if rows := [row for kind, row, _ in batch if kind == table]:
                    await add(rows)
            with self._lock:
                for _ in batch:
                    self._queue.popleft()
            if self._spool is not None:
                self._spool.release(key for _, _, key in batch if key)

    def close(self) -> None:
        """Let go of the spool; what was not shipped is found at the next start."""
        if self._spool is not None:
            self._spool.close()

    def after_fork(self) -> None:
        """The rows of the parent are the parent's."""
        self._lock = threading.Lock()
        self._flushing = anyio.Lock()
        self._queue.clear()
        self._shipping = False

    async def _ship(self) -> None:
        pause = self._every
        try:
            while True:
                await anyio.sleep(pause)
                try:
                    await self.flush()
                    pause = self._every
                except HedgeError as error:
                    if pause == self._every:
                        logger.warning("steps and attempts cannot be stored: %s", error)
                    pause = min(pause * 2, RETRY_S)
                with self._lock:
                    if not self._queue:
                        self._shipping = False
                        return
        except BaseException:  # cancelled with the loop: the next row starts another
            self._shipping = False
            raise

    async def _adopt(self) -> None:
        assert self._spool is not None
        try:
            self.adopted += await adopt(self._store(), self._spool)
        except HedgeError:
            self._looked = False
            raise


async def adopt(store: StepStore, spool: Spool) -> int:
    """Give the store what dead processes left in this spool's folder; return how many attempts became `unknown`."""
    settled = 0
    for orphan in orphans(spool.folder):
        try:
            settled += await _adopt_one(store, orphan)
        except BaseException:
            orphan.leave()
            raise
        orphan.remove()
    return settled


async def _adopt_one(store: StepStore, orphan: Orphan) -> int:
    rows: dict[str, list[Row]] = {"steps": [], "attempts": []}
    open_: dict[str, dict[str, None]] = {"steps": {}, "attempts": {}}
    for table, row in orphan.rows():
        known = {name: value for name, value in row.items() if name in _COLUMNS[table]}
        key = known.get(_KEYS[table], "")
        try:
            check_columns(known, _COLUMNS[table], _KEYS[table])
        except ConfigurationError:
            logger.warning("a row in the spool makes no sense and is left out")
            continue
        rows[table].append(known)
        open_[table][key] = None
        if known.get("outcome"):
            open_[table].pop(key)
    unknown = {"outcome": str(Verdict.UNKNOWN)}
    uncounted = {"computed_certainty": str(Certainty.UNKNOWN), "billed_certainty": str(Certainty.UNKNOWN)}
    rows["steps"] += [{"step_id": key, **unknown} for key in open_["steps"]]
    rows["attempts"] += [{"attempt_id": key, **unknown, **uncounted} for key in open_["attempts"]]
    for add, found in ((store.add_steps, rows["steps"]), (store.add_attempts, rows["attempts"])):
        for start in range(0, len(found), BATCH):
            await add(found[start : start + BATCH])
    return len(open_["attempts"])
