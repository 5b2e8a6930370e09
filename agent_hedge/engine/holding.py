"""What a process may spend of a stored run without asking: granted by the store, held for the steps that are open.

It holds what one hedge of each open step would take (one hedge at least, 16 at most, with the prompts of those steps
where tokens or money are capped), and gives back what no step has needed for ten seconds. So a process that works
through its steps one after another leaves the purse to the others, ten branches that are slow at once can all hedge,
and a process that is killed forfeits no more than that (DESIGN 5.10).
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Block
from agent_hedge.core.scope import ROUNDING, Run

BLOCK = 16
"""Hedges held at most (DESIGN 5.10)."""
EXPIRY_S = 10.0
"""What no open step has needed for this long goes back (DESIGN 5.10)."""
PAUSE_S = 5.0
"""How long a purse that had nothing left for us is not asked again."""

NOTHING = Block()


class Holding:
    """The part of a run's purse that this process holds. Safe for threads; times are epoch seconds.

    `dearest`: what one prompt token costs at most, wherever a hedge may go.
    """

    def __init__(self, run: Run, dearest: Callable[[], float]) -> None:
        self.held = NOTHING
        """Granted and not spent."""
        self.asking = False
        """Whether somebody is about to ask the store for more."""
        self._run = run
        self._dearest = dearest
        self._open = 0
        """Steps without an answer yet."""
        self._due = NOTHING
        """What a first hedge of each of them would take."""
        self._served = NOTHING
        """What open steps have taken."""
        self._missed = NOTHING
        """The largest that could not be taken since the last grant."""
        self._needed_at = -math.inf
        """When all that is held was last needed."""
        self._in_vain_at = -math.inf
        self._pid = os.getpid()
        self._lock = threading.Lock()

    # --- steps ----------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no step is open."""
        return not self._open

    def begin(self, tokens: int) -> None:
        """A step with a prompt of so many tokens begins."""
        its = Block(1, tokens)
        with self._lock:
            if self._open:
                self._due = self._due.plus(its)
            else:
                self._due, self._served = its, NOTHING
            self._open += 1

    def over(self, tokens: int) -> None:
        """It has its answer. One that has hedged counts as over before one that has not: which it was is forgotten."""
        with self._lock:
            self._open -= 1
            if not self._open:
                self._due = self._served = NOTHING
                return
            its = Block(1, tokens)
            self._due = self._due.minus(its.minus(self._served))
            self._served = self._served.minus(its)

    def take(self, wanted: Block) -> Reason | None:
        """Take all of it or nothing; return what there was not enough of."""
        with self._lock:
            if self._pid != os.getpid():  # a fork: what was granted belongs to the parent
                self._pid, self.held = os.getpid(), NOTHING
            missing = self._missing(wanted)
            if missing is None:
                self.held, self._due = self.held.minus(wanted), self._due.minus(wanted)
                self._served = self._served.plus(wanted)
            else:
                self._missed = self._missed.at_least(wanted)
        return missing

    def give_back(self, unspent: Block) -> None:
        """What was taken was never sent."""
        with self._lock:
            self.held, self._due = self.held.plus(unspent), self._due.plus(unspent)
            self._served = self._served.minus(unspent)

    def _missing(self, wanted: Block) -> Reason | None:
        if wanted.hedges > self.held.hedges:
            return Reason.RUN_BUDGET
        if wanted.tokens > self.held.tokens:
            return Reason.TOKENS
        return Reason.COST if wanted.cost > self.held.cost * ROUNDING else None

    # --- the store ------------------------------------------------------------------------------------------------

    def ask(self, now: float) -> bool:
        """Whether the store is to be asked for more now; then nobody else asks until `granted` has been told."""
        with self._lock:
            enough = self.held.hedges >= max(self._due.hedges, 1) and not self._capped  # most steps: told at once
            if self.asking or enough or self.short() == NOTHING:
                return False
            self.asking = now - self._in_vain_at >= PAUSE_S
            return self.asking

    def short(self) -> Block:
        """Return what is needed and not held."""
        needed = self._needed()
        short = needed.minus(self.held)
        return short if short.cost > needed.cost * (ROUNDING - 1) else short._replace(cost=0.0)

    def granted(self, block: Block, now: float) -> None:
        """The store has answered; nothing: the purse is empty, or others hold what is left."""
        with self._lock:
            self.held, self._missed, self._needed_at = self.held.plus(block), NOTHING, now
            self._in_vain_at = now if block == NOTHING else -math.inf

    def unneeded(self, now: float) -> Block:
        """Return what is held and was not needed for `EXPIRY_S`."""
        with self._lock:
            unneeded = self.held.minus(self._needed())
            if unneeded == NOTHING:
                self._needed_at = now
            return unneeded if now - self._needed_at >= EXPIRY_S else NOTHING

    def let_go(self, unspent: Block) -> Block:
        """Hold that much less; return how much that was, which is nothing in a fork."""
        with self._lock:
            if self._pid != os.getpid():
                return NOTHING
            unspent = unspent.at_most(self.held)
            self.held = self.held.minus(unspent)
        return unspent

    def _needed(self) -> Block:
        run = self._run
        tokens = self._due.tokens if self._capped else 0
        needed = Block(min(max(self._due.hedges, 1), BLOCK), tokens, tokens * self._dearest() if tokens else 0.0)
        used = Block(run.extra_attempts_used, run.tokens_used, run.cost_used)
        left = used.left_of(run.extra_attempts, run.tokens, run.cost)
        return needed.at_least(self._missed).at_most(left)

    @property
    def _capped(self) -> bool:
        return self._run.tokens is not None or self._run.cost is not None
