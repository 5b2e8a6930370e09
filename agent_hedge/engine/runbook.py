"""Keeps runs in a store, so that a run goes on in another scope, after a crash, in another process (DESIGN 5.14).

A run key names *generations*. What a scope does with the newest stored one:

    stored            goes on with it                      starts the next one
    nothing           -                                    generation 0
    open, kept alive  always: another process runs it now  only with resume=False
    open, silent      unless other input is seen; a crash  other input; its deadline has passed and nothing resumes it
                      stops no clock
    paused            where a graph is resumed; the clock  anything else
                      stood still since it was left
    ended             -                                    always

``resume=True`` goes on with whatever has not ended, ``resume=False`` starts the next one. Otherwise it is decided by
the first graph, or the first step, inside the scope.

Everything a step asks is answered here at once, from memory; the store hears of it in the background, coalesced (R14).
Only what hedges take is granted durably, in blocks (`holding.py`): a process may spend what it was granted and no more.
Half of the file is one record's states: they are told apart by the same fields, and stay together.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Protocol

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Block
from agent_hedge.core.scope import Run
from agent_hedge.core.stores import RunRow, RunStore
from agent_hedge.engine.holding import NOTHING, Holding
from agent_hedge.errors import HedgeError

logger = logging.getLogger("agent_hedge.background")

BEAT_S = 5.0
"""A run that is open is written at least this often, which says that it is alive."""
AWAY_S = 30.0
"""A run that configuration opened has no end that anybody could see: after so long without a step it counts as left."""
ALIVE_S = 15.0
"""An open run that was not written for this long has crashed: two beats and a slow store."""
PATIENCE_S = 0.5
"""How long opening a run may wait for the store. Then it begins, and hedges nothing until the store has answered."""

LIMIT = 4096
"""Runs that were left and could not be written yet, kept at most."""

OPEN, PAUSED, ENDED = "open", "paused", "ended"


class Way(Protocol):
    """The part of a portal that the runbook uses."""

    def start(self, work: Callable[[], Awaitable[object]]) -> None: ...


class AtOnce:
    """A portal to what never waits, such as a store in memory: the work is done in the caller's thread, at once."""

    def __init__(self) -> None:
        self._lock = threading.RLock()

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        with self._lock:
            step = work().__await__()
            try:
                next(step)
            except StopIteration:
                return
        raise HedgeError("A store that was said never to wait has waited.")


class Runbook:
    """The stored runs that this process has open.

    `epoch` gives epoch seconds; `dearest` what one prompt token costs at most, wherever a hedge may go.
    """

    def __init__(
        self,
        store: RunStore,
        way: Way,
        *,
        epoch: Callable[[], float] = time.time,
        dearest: Callable[[], float] = lambda: 0.0,
    ) -> None:
        self.store = store
        self.way = way
        self.epoch = epoch
        self.dearest = dearest
        self._open: weakref.WeakSet[Record] = weakref.WeakSet()
        self._leaving: dict[Record, None] = {}
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._pid = os.getpid()
        self._lock = threading.Lock()

    def open(self, run: Run, *, resume: bool | None = None) -> Record:
        """Give `run` its record, and begin to load it."""
        record = Record(self, run, resume)
        run.record = record
        with self._lock:
            self._open.add(record)
        self._start(record, record.load)
        return record

    def leave(self, record: Record) -> None:
        """Write a record for the last time, in the background."""
        with self._lock:
            self._open.discard(record)
            self._leaving[record] = None
            if len(self._leaving) > LIMIT:  # the store has been away for long
                del self._leaving[next(iter(self._leaving))]
        self._start(record, record.leave)

    def keep(self, record: Record) -> None:
        """Write what has changed, in the background."""
        self._start(record, record.keep)

    def refill(self, record: Record) -> None:
        """Ask for what its steps may need, in the background."""
        self._start(record, record.refill)

    @property
    def unwritten(self) -> bool:
        """Whether runs that were left are still to be written."""
        return bool(self._leaving) or any(record.unwritten for record in list(self._open))

    def closing(self) -> None:
        """This process is about to go: what no scope will leave is left now."""
        for record in list(self._open):
            record.notice(0.0)

    def left(self, record: Record) -> None:
        """Hear that nothing is left to be written of a record."""
        with self._lock:
            self._leaving.pop(record, None)

    async def flush(self, now: float = 0.0) -> None:
        """Write what has changed since the last time. Raises `StoreUnavailable`; what is left waits for the next."""
        with self._lock:
            left, there = list(self._leaving), list(self._open)
        for record in left:
            await self._in_turn(record, record.leave)
        for record in there:
            await self._in_turn(record, record.keep)

    def _start(self, record: Record, work: Callable[[], Awaitable[None]]) -> None:
        async def quietly() -> None:
            try:
                await self._in_turn(record, work)
            except HedgeError as error:  # the next flush tries again, and says so
                logger.debug("run %s: %s", record.key, error)

        self.way.start(quietly)

    async def _in_turn(self, record: Record, work: Callable[[], Awaitable[None]]) -> None:
        """Do the work on one run key one after another: a scope that is opened sees what the last one has left."""
        if self._pid != os.getpid():  # a fork: who held these turns is not here
            self._turns, self._pid = weakref.WeakValueDictionary(), os.getpid()
        turn = self._turns.get(record.key)
        if turn is None:
            turn = self._turns[record.key] = asyncio.Lock()
        async with turn:
            await work()


class Record:
    """One run in the store: implements the `RunRecord` port. Its coroutines run on the store's loop, one at a time."""

    def __init__(self, book: Runbook, run: Run, resume: bool | None) -> None:
        self.key = run.key
        self._book = book
        self._run = run
        self._resume = resume
        self._fresh = (
            RunRow(run_key=run.key, extra_attempts=run.extra_attempts, tokens=run.tokens, cost=run.cost),
            run.deadline,
        )
        self._lock = threading.Lock()
        self._loaded = threading.Event()
        self._row: RunRow | None = None
        self._settled = False
        """Whether it is decided which generation this is."""
        self._stored = False
        """Whether the store knows this generation, so that hedges can be granted."""
        self._settling = False
        self._seen: bool | None = None
        """Whether the first graph inside was resumed."""
        self._began = False
        self._holding = Holding(run, book.dearest)
        self._counted = RunRow(run_key=run.key)
        """What the store knows of what this run has used."""
        self._written: RunRow | None = None
        self._written_at = -math.inf
        self._state = OPEN
        self._remaining: float | None = None
        self.unscoped = False
        """Whether no scope will say when it is left: configuration has opened it."""
        self._active_at = -math.inf
        """When a step last began or ended (epoch)."""
        self._away = False
        """Whether it counts as paused because nothing of it has run for long."""

    # --- the run's side: at once, from any thread ---------------------------------------------------------------

    @property
    def loaded(self) -> bool:
        return self._loaded.is_set()

    @property
    def undecided(self) -> bool:
        """Whether what runs inside the scope decides which generation this is."""
        return not self._settled

    @property
    def unwritten(self) -> bool:
        """Whether the store has not heard yet that it was begun, or left."""
        return self._began and (self._written is None or self._written.state != self._state)

    def notice(self, idle: float) -> None:
        """A run without a scope of which no step was open for `idle` seconds was left: its clock stands still since."""
        since = self._book.epoch() - self._active_at
        with self._lock:
            if self.unscoped and self._began and self._holding.idle and self._state == OPEN and since >= idle:
                self._remaining, self._state, self._away = _finite(self._run.remaining + since), PAUSED, True

    def wait(self) -> None:
        """Block until it is loaded, at most `PATIENCE_S`."""
        self._loaded.wait(PATIENCE_S)

    def see(self, resumed: bool) -> None:
        """Hear that a graph begins in this run: resumed, or with input of its own. The first one counts."""
        if self._seen is None and not self._began:
            self._seen = resumed
            self._decide_now()

    def begin(self, resumed: bool | None, tokens: int) -> None:
        self._holding.begin(tokens)
        self._active_at = self._book.epoch()
        if self._away:  # not left after all
            self._remaining, self._state, self._away = None, OPEN, False
        self._ask()
        if self._began:
            return
        self._began = True
        if resumed and self._seen is None:
            self._seen = True
        self._decide_now()

    def over(self, tokens: int) -> None:
        self._active_at = self._book.epoch()
        self._holding.over(tokens)

    def take(self, wanted: Block) -> Reason | None:
        if not self._stored:
            return Reason.STORE_LOST
        missing = self._holding.take(wanted)
        if self._ask() and missing is not None:  # a store in memory has granted it by now
            missing = self._holding.take(wanted)
        return missing

    def give_back(self, unspent: Block) -> None:
        self._holding.give_back(unspent)

    def _ask(self) -> bool:
        """Ask the store for what is short, in the background; return whether it was asked."""
        asked = self._stored and self._holding.ask(self._book.epoch())
        if asked:
            self._book.refill(self)
        return asked

    def paused(self) -> None:
        self._remaining, self._state, self._away = _finite(self._run.remaining), PAUSED, False
        self._book.keep(self)

    def resumed(self) -> None:
        self._remaining, self._state, self._away = None, OPEN, False
        self._book.keep(self)

    def end(self) -> None:
        self._remaining, self._state = None, ENDED

    def close(self) -> None:
        if self._state == OPEN:
            self._remaining, self._state = _finite(self._run.remaining), PAUSED
        self._book.leave(self)

    # --- which generation? --------------------------------------------------------------------------------------

    def _decide(self, row: RunRow | None) -> None:
        """Settle what can be settled before anything runs; else let the run look as it will be by default."""
        self._row = row
        if row is None or row.state == ENDED or self._resume is False:
            self._start()
        elif self._resume or (row.state == OPEN and self._book.epoch() - row.updated_at < ALIVE_S):
            self._go_on_with(row)
        elif self._began or self._seen is not None:  # the store was late
            self._settle(row)
        elif self._goes_on_by_default(row):
            self._look_like(row)

    def _decide_now(self) -> None:
        row = self._row
        with self._lock:
            if not self.loaded or self._settled or self._settling or row is None:
                return
            self._settling = True
        self._settle(row)
        self._book.keep(self)

    def _settle(self, row: RunRow) -> None:
        if self._goes_on_by_default(row) if self._seen is None else self._seen:
            self._go_on_with(row)
        else:
            self._start()

    def _goes_on_by_default(self, row: RunRow) -> bool:
        past = row.deadline_epoch is not None and row.deadline_epoch <= self._book.epoch()
        return row.state == OPEN and not past

    def _start(self) -> None:
        if self._row is not None:
            fresh, deadline = self._fresh
            self._run.take_over(replace(fresh, generation=self._row.generation + 1), deadline)
        self._settled = True

    def _go_on_with(self, row: RunRow) -> None:
        self._look_like(row)
        self._run.count_earlier(row)
        self._counted = row
        self._settled = True

    def _look_like(self, row: RunRow) -> None:
        left = math.inf
        if row.state == OPEN and row.deadline_epoch is not None:
            left = row.deadline_epoch - self._book.epoch()
        elif row.state != OPEN and row.remaining is not None:
            left = row.remaining
        self._run.take_over(row, self._run.clock() + left)

    # --- the store's side -----------------------------------------------------------------------------------------

    async def load(self) -> None:
        """Read the newest generation and decide. Raises `StoreUnavailable`; `keep` goes on where it has stopped."""
        if self.loaded:
            return
        if not self._settled:
            self._decide(await self._book.store.load(self.key))
        if self._settled and not self._stored:
            await self._store()
        self._loaded.set()
        if self._began or self._seen is not None:
            self._decide_now()

    async def keep(self) -> None:
        """Do what is left to do: load, store, write what has changed, ask for another block."""
        if not self.loaded:
            await self.load()
        elif self._settled and not self._stored:
            await self._store()
        elif self._stored:
            self.notice(AWAY_S)
            await self._save()
            if self._holding.asking or self._holding.ask(self._book.epoch()):
                await self.refill()
            else:
                await self._release(self._holding.unneeded(self._book.epoch()))

    async def leave(self) -> None:
        """Write the end of the scope."""
        if self._settled:
            await self._save()
            await self._release(self._holding.held)
        self._book.left(self)

    async def _store(self) -> None:
        await self._save()
        await self.refill()
        self._stored = True

    async def _save(self) -> None:
        run, epoch, counted = self._run, self._book.epoch(), self._counted
        left = _finite(run.deadline - run.clock())
        total = RunRow(
            run_key=self.key,
            generation=run.generation,
            deadline_epoch=None if left is None or self._state != OPEN else epoch + left,
            remaining=self._remaining,
            extra_attempts=run.extra_attempts,
            hedges_used=run.extra_attempts_used,
            tokens=run.tokens,
            tokens_used=run.tokens_used,
            cost=run.cost,
            cost_used=run.cost_used,
            recoveries_used=run.recoveries_used,
            steps=run.steps,
            state=self._state,
            sticky_target=run.sticky_target,
        )
        beat = self._state == OPEN and epoch - self._written_at >= BEAT_S  # what is paused may go on elsewhere by now
        if self._written is not None and _same(self._written, total) and not beat:
            return
        await self._book.store.save(
            replace(
                total,
                hedges_used=total.hedges_used - counted.hedges_used,
                tokens_used=total.tokens_used - counted.tokens_used,
                cost_used=total.cost_used - counted.cost_used,
                recoveries_used=total.recoveries_used - counted.recoveries_used,
                steps=total.steps - counted.steps,
            )
        )
        self._written, self._written_at, self._counted = total, epoch, total

    async def refill(self) -> None:
        """Ask for what is short. Where the purse has nothing left for us, it is asked again some time later."""
        holding = self._holding
        try:
            while (short := holding.short()) != NOTHING:
                granted = await self._book.store.grant(self.key, self._run.generation, short)
                holding.granted(granted, self._book.epoch())
                if granted == NOTHING:
                    return
        finally:
            holding.asking = False

    async def _release(self, unspent: Block) -> None:
        """Give back what was granted and is not needed. Once: where the reply is lost, it is forfeited."""
        if (unspent := self._holding.let_go(unspent)) != NOTHING:
            await self._book.store.release(self.key, self._run.generation, unspent)


def _finite(seconds: float) -> float | None:
    return seconds if seconds < math.inf else None


def _same(one: RunRow, other: RunRow) -> bool:
    """Whether two rows say the same; the instant of a deadline wobbles by the reading of two clocks."""
    if abs((one.deadline_epoch or 0.0) - (other.deadline_epoch or 0.0)) > 0.001:
        return False
    return replace(one, deadline_epoch=None) == replace(other, deadline_epoch=None)
