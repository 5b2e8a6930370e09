"""What hedges may cost: in estimated prompt tokens and in money, for a run and for the fleet (R13).

A hedge is counted with what it has to read: the prompt, at the full input price of its target (a hedge goes to another
place, whose prompt cache is cold). What it writes is not known before and is not counted; accounting says it after.
Where a cap is set, a hedge whose size or price is not known is refused: a cap that guesses is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from agent_hedge.core.ports import Permit, RaceView, Refused, RunView
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Attempt, Ended, Role
from agent_hedge.gates.budget import FleetBudget

PER_TOKENS = 1_000_000
"""A `price` is per so many tokens."""
_HEDGE = Role.HEDGE


class CapGate:
    """Refuses the hedge that would pass a cap of its run or of the fleet. `price_of`: a target's, by its name."""

    extras_only = True

    def __init__(self, price_of: Callable[[str], Mapping[str, float] | None], budget: FleetBudget) -> None:
        self._price_of = price_of
        self._budget = budget

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        if attempt.role is not _HEDGE or (view.run is None and self._budget.cost is None):
            return PASS
        price, tokens = self._price_of(attempt.target.name), view.prompt_tokens
        cost = None if price is None or not tokens else per_token(price) * tokens
        if view.run is not None and (refused := view.run.spend(tokens, cost)) is not None:
            return refused
        refused = self._budget.spend(cost, view.now)
        if refused is None:
            return _Spent(self._budget, view.run, tokens, cost, view.now)
        if view.run is not None:
            view.run.unspend(tokens, cost)
        return refused


def per_token(price: Mapping[str, float]) -> float:
    """Return what one prompt token costs at a place where nothing of it is cached."""
    return price.get("input", 0.0) / PER_TOKENS


def dearest(prices: Iterable[Mapping[str, float] | None]) -> float:
    """Return what one prompt token costs at most (0: no price is known, and nothing is hedged under a cap)."""
    return max((per_token(price) for price in prices if price is not None), default=0.0)


class _Spent:
    """What one hedge reads; given back if it is never sent."""

    __slots__ = ("_at", "_budget", "_cost", "_run", "_tokens")

    def __init__(self, budget: FleetBudget, run: RunView | None, tokens: int, cost: float | None, at: float) -> None:
        self._budget = budget
        self._run = run
        self._tokens = tokens
        self._cost = cost
        self._at = at

    def committed(self, *, at: float) -> None:
        """A win costs what a loss costs."""

    def settle(self, end: Ended, *, at: float) -> None:
        if end.launched:
            return
        self._budget.unspend(self._cost, self._at)
        if self._run is not None:
            self._run.unspend(self._tokens, self._cost)
