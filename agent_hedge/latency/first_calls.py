"""First calls: they open connections or wait for a model to be loaded, and say little of the calls after them (R16)."""

from __future__ import annotations

from math import inf

from agent_hedge.core.ports import LatencyBook
from agent_hedge.core.step import StepKey

MOST = 3
"""First calls per target that count as cold: enough for a few parallel branches. A target that answers nobody, or
meets a crowd at once, is learnt from the fourth on."""
_SAME_INSTANT_S = 1e-6
"""An attempt launched in the instant of an answer has met a warm target; its sum of times may be off by a rounding."""


class FirstCalls:
    """The book as the races of one process see it: it counts the first calls of every target as cold.

    An attempt is cold when its target had answered nobody here by the time it was launched; at most `MOST` are, in the
    order in which they are heard. Calls that stopped or failed without a token are no answers. Any thread may call;
    where several do at once, a cold call more may be counted.
    """

    __slots__ = ("_censor", "_cold", "_count", "_warm_since", "learning", "long_quantile", "quantile")

    def __init__(self, book: LatencyBook) -> None:
        self.quantile = book.quantile  # what is read is read as if nobody stood in between
        self.long_quantile = book.long_quantile
        self.learning = book.learning
        self._count = book.record
        self._censor = book.record_censored
        self._cold: dict[str, int] = {}
        self._warm_since: dict[str, float] = {}

    def record(self, key: StepKey, target: str, latency: float, now: float, *, cold: bool = False) -> None:
        """Count an attempt whose first meaningful token came `latency` seconds after its launch."""
        if now - latency < self._warm_since.get(target, inf):
            cold = True
            self._heard(target, now - _SAME_INSTANT_S)
        self._count(key, target, latency, now, cold=cold)

    def record_censored(self, key: StepKey, target: str, waited: float, now: float, *, cold: bool = False) -> None:
        """Count an attempt that was stopped, or failed, `waited` seconds after its launch without a token."""
        if now - waited < self._warm_since.get(target, inf):
            cold = True
            self._heard(target, inf)
        self._censor(key, target, waited, now, cold=cold)

    def _heard(self, target: str, answered: float) -> None:
        """Count a cold call; what is launched from `answered` on, or heard after the last that may be, is warm."""
        self._cold[target] = known = self._cold.get(target, 0) + 1
        self._warm_since[target] = -inf if known >= MOST else min(answered, self._warm_since.get(target, inf))
