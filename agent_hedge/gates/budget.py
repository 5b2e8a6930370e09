"""The fleet's two purses (R13): how many extra dispatches this process may send, whatever the triggers ask for.

*Hedges* must pass two tests at every grant. The window: hedges of the last 60 minutes, this one included, are at most
5 % of the logical requests of the same time (or a floor of 2). The bucket: every logical request puts 0.05 tokens in,
a hedge takes one, ten fit, and it starts full. The window alone lets an hour of quiet pay for a first bad minute in
which every call is hedged; with the bucket that minute gets 7 to 24 % (`facts/reliability.md` 3.1). Nothing is ever
fed by a clock: at agent rates a clock-fed bucket grants everything (`facts/hedging_peers.md` 2).

*Recoveries*, because something failed, may be more: 20 % of the logical requests and 10, each minute, and three
attempts a step. (The proportions are Finagle's retry budget; three attempts the SRE book's.)

A dispatch is counted before it is sent, and given back when a later gate refused it. Slices are one second wide;
extra dispatches are counted for one slice longer than the window and logical requests for what of it is surely
inside, so the bounds hold for exact instants too.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from typing import NamedTuple

from agent_hedge.core import checks
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, RaceView, Refused, RunView
from agent_hedge.core.race import PASS
from agent_hedge.core.step import MAX_ATTEMPTS, Attempt, Ended, Role
from agent_hedge.gates.slices import Slices

MINUTE = 60
"""The window of recoveries, in slices of one second."""

_PRIMARY, _HEDGE, _RECOVERY = Role.PRIMARY, Role.HEDGE, Role.RECOVERY
_WHOLE = 10**9
"""Shares are kept as whole billionths: twenty deposits of 0.05 are one token exactly."""


class BudgetCounts(NamedTuple):
    """What a budget has counted: over its window, over the last minute for recoveries, and what the bucket holds."""

    requests: int
    hedges: int
    recoveries: int
    tokens: float


class FleetBudget:
    """The purses of one `Hedger` (or of several that share it), safe for any number of threads and loops.

    `share`: hedges per logical request in the last `window` seconds (a ratio); `floor`: hedges allowed in that time
    whatever the traffic; `burst`: what the bucket holds. `recoveries`: per logical request (a ratio), plus
    `recoveries_per_minute`. `cost`: money that hedges may take in `window` seconds (see `CapGate`). Raises
    `ConfigurationError` for values that cannot be meant.
    """

    def __init__(
        self,
        share: float = 0.05,
        *,
        floor: int = 2,
        burst: int = 10,
        window: float = 3600.0,
        recoveries: float = 0.2,
        recoveries_per_minute: int = 10,
        cost: float | None = None,
    ) -> None:
        self.share = checks.ratio("share", share)
        self.floor = checks.count("floor", floor)
        self.burst = checks.count("burst", burst, least=1)
        self.window = checks.seconds("window", window, least=MINUTE)
        self.recoveries = checks.ratio("recoveries", recoveries)
        self.recoveries_per_minute = checks.count("recoveries_per_minute", recoveries_per_minute)
        self.cost = None if cost is None else checks.amount("cost", cost)
        self._spent: deque[tuple[float, float]] = deque()
        self._spent_in_all = 0.0
        keep = math.ceil(self.window)
        self._share = round(share * _WHOLE)
        self._recovery_share = round(recoveries * _WHOLE)
        self._full = self._tokens = self.burst * _WHOLE
        self._requests = Slices(1, width=1.0, keep=math.floor(self.window))
        self._hedges = Slices(1, width=1.0, keep=keep + 1)
        self._recoveries = Slices(1, width=1.0, keep=MINUTE + 1)
        self._lock = threading.Lock()

    def __repr__(self) -> str:
        return (
            f"FleetBudget({self.share}, floor={self.floor}, burst={self.burst}, window={self.window}, "
            f"recoveries={self.recoveries}, recoveries_per_minute={self.recoveries_per_minute}, cost={self.cost})"
        )

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        """A primary is a deposit; a hedge or a recovery takes from the run's purse, then from the fleet's."""
        role = attempt.role
        now = view.now
        if role is _PRIMARY:
            with self._lock:
                self._requests.add(0, now)
                tokens = self._tokens + self._share
                if tokens > self._full:
                    tokens = self._full
                self._tokens = tokens
            return PASS
        if role is _RECOVERY and view.launched >= MAX_ATTEMPTS:
            return Refused(Reason.FLEET_BUDGET, f"{MAX_ATTEMPTS} attempts a step")
        run = view.run
        if run is not None and (reason := run.take(role, now)) is not None:
            return Refused(reason)
        with self._lock:
            granted = self._take_hedge(now) if role is _HEDGE else self._take_recovery(now)
        if isinstance(granted, Refused):
            if run is not None:
                run.give_back(role)
            return granted
        return _Grant(self, role, granted, run)

    def spend(self, cost: float | None, now: float) -> Refused | None:
        """Take the money of one hedge (None: it has no price); refused where the cap would be passed."""
        if self.cost is None:
            return None
        if cost is None:
            return Refused(Reason.COST, "price or prompt size unknown")
        with self._lock:
            while self._spent and self._spent[0][0] <= now - self.window:
                self._spent_in_all -= self._spent.popleft()[1]
            if self._spent_in_all + cost > self.cost:
                return Refused(Reason.COST, f"{self._spent_in_all:.6g} of {self.cost:.6g} used, {cost:.6g} wanted")
            self._spent.append((now, cost))
            self._spent_in_all += cost
        return None

    def unspend(self, cost: float | None, at: float) -> None:
        """Give back what was taken at that instant for a hedge that was never sent."""
        with self._lock:
            if cost is not None and (at, cost) in self._spent:
                self._spent.remove((at, cost))
                self._spent_in_all -= cost

    def counts(self, now: float) -> BudgetCounts:
        """Return what has been counted up to `now`."""
        with self._lock:
            requests, hedges = self._requests.total(0, now), self._hedges.total(0, now)
            return BudgetCounts(requests, hedges, self._recoveries.total(0, now), self._tokens / _WHOLE)

    def _take_hedge(self, now: float) -> int | Refused:
        requests, hedges = self._requests.total(0, now), self._hedges.total(0, now)
        if (hedges + 1) * _WHOLE > max(self._share * requests, self.floor * _WHOLE):
            return Refused(Reason.FLEET_BUDGET, f"{hedges} hedges of {requests} requests")
        if self._tokens < _WHOLE:
            return Refused(Reason.FLEET_BUDGET, "burst used up")
        self._tokens -= _WHOLE
        return self._hedges.add(0, now)

    def _take_recovery(self, now: float) -> int | Refused:
        requests, recoveries = self._requests.newest(0, now, MINUTE), self._recoveries.total(0, now)
        if (recoveries + 1) * _WHOLE > self._recovery_share * requests + self.recoveries_per_minute * _WHOLE:
            return Refused(Reason.FLEET_BUDGET, f"{recoveries} recoveries of {requests} requests in a minute")
        return self._recoveries.add(0, now)

    def _give_back(self, role: Role, index: int) -> None:
        with self._lock:
            if role is _HEDGE:
                self._hedges.take_back(0, index)
                self._tokens = min(self._tokens + _WHOLE, self._full)
            else:
                self._recoveries.take_back(0, index)


class _Grant:
    """One extra dispatch, counted; given back to both purses if it is never sent."""

    __slots__ = ("_budget", "_index", "_role", "_run")

    def __init__(self, budget: FleetBudget, role: Role, index: int, run: RunView | None) -> None:
        self._budget = budget
        self._role = role
        self._index = index
        self._run = run

    def committed(self, *, at: float) -> None:
        """A win costs what a loss costs."""

    def settle(self, end: Ended, *, at: float) -> None:
        if end.launched:
            return
        self._budget._give_back(self._role, self._index)
        if self._run is not None:
            self._run.give_back(self._role)
