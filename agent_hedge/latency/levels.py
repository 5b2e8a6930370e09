"""The four levels at which a sample is counted, and the histories behind them.

    target / node / model / size  ->  target / node / model  ->  target / model  ->  target

Most coarser levels have one finer level below them and hold the same samples. Such a level *is* the finer one, the
same `History`, until a second finer level appears; then it gets a copy of its own. So a book with one step key
costs one history, not four. A level lives as long as a finest level below it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from agent_hedge.core.step import StepKey
from agent_hedge.latency.history import History

Level = tuple[str, ...]
"""(target,), (target, model), (target, node, model), (target, node, model, size), or the latter and ``cold``."""
Route = tuple[Level, ...]
"""The levels of one step key at one target, finest first."""
Name = tuple[str, StepKey, bool]
"""(target, step key, cold): one finest level, as callers name it."""
Part = tuple[list[Level], History]
"""A history with all levels it stands for, finest first."""

NAMES = {1: "target", 2: "model", 3: "node", 4: "size", 5: "cold"}
"""What a level of so many parts is called."""


def path_of(target: str, key: StepKey, cold: bool) -> Route:
    """Return the levels of a step key. Cold first calls have one of their own, which nothing falls back to (R16)."""
    finest = (target, key.node, key.model, key.size)
    if cold:
        return ((*finest, "cold"),)
    return finest, finest[:3], (target, key.model), (target,)


def is_finest(level: Level) -> bool:
    """Whether samples are recorded at this level, rather than only counted there."""
    return len(level) >= 4


def name_of(finest: Level) -> Name:
    """Return the name whose finest level this is."""
    target, node, model, size = finest[:4]
    return target, StepKey(node=node, model=model, size=size), len(finest) == 5


class Levels:
    """The histories of a book by level. Callers hold the book's lock."""

    def __init__(self) -> None:
        self._histories: dict[Level, History] = {}
        self._finest_below: Counter[Level] = Counter()
        self.generation = 0
        """Moves on when histories that were handed out are no longer the right ones."""
        self.nbytes = 0

    def find(self, path: Route) -> Iterator[History]:
        """The histories that exist along a path, finest first."""
        for level in path:
            history = self._histories.get(level)
            if history is not None:
                yield history

    def grow(self, path: Route, number: int) -> tuple[History, ...]:
        """Return the distinct histories along a path, made in slice `number` where there are none."""
        if path[0] not in self._histories:
            self._branch(path, number)
        return tuple(dict.fromkeys(self.find(path)))

    def _branch(self, path: Route, number: int) -> None:
        """Make a finest level. Coarser levels that another finest level has lent its history get their own copy."""
        below = lent = None
        for level in path:
            known = self._histories.get(level)
            if known is None:
                below = below or self._own(History(number, len(level)))
                self._histories[level] = below
            elif known.depth > len(level):
                if known is not lent or below is None:
                    below = self._own(known.copy(len(level)))
                    self.generation += 1
                self._histories[level] = below
            else:
                below = known
            lent = known
            self._finest_below[level] += 1

    def drop(self, path: Route) -> None:
        """Forget a finest level, and the coarser ones that have no other below them."""
        if path[0] not in self._histories:
            return
        for level in path:
            self._finest_below[level] -= 1
            if not self._finest_below[level]:
                del self._finest_below[level]
                history = self._histories.pop(level)
                if history.depth == len(level):
                    self.nbytes -= history.accounted

    def settle(self, history: History) -> None:
        """Bring `nbytes` up to date with what `history` holds now."""
        now = history.nbytes
        self.nbytes += now - history.accounted
        history.accounted = now

    def parts(self) -> list[Part]:
        """All histories, each with its levels, in an order that depends on nothing but the levels."""
        shared: dict[History, list[Level]] = {}
        for level in sorted(self._histories, key=_finest_first):
            shared.setdefault(self._histories[level], []).append(level)
        return [(levels, history) for history, levels in shared.items()]

    def merge(self, parts: Sequence[Part]) -> None:
        """Count all that `parts` hold. Levels stay one history where they are one on both sides."""
        theirs = {level: history for levels, history in parts for level in levels}
        ours, self._histories = self._histories, {}
        self.nbytes = 0
        merged: dict[tuple[History | None, History | None], History] = {}
        for level in sorted({*ours, *theirs}, key=_finest_first):
            pair = ours.get(level), theirs.get(level)
            if pair not in merged:
                merged[pair] = self._own(_sum(len(level), [history for history in pair if history is not None]))
            self._histories[level] = merged[pair]
        paths = [path_of(*name_of(level)) for level in self._histories if is_finest(level)]
        self._finest_below = Counter(level for path in paths for level in path)
        self.generation += 1

    def distinct(self) -> Iterable[History]:
        """Every history once."""
        return dict.fromkeys(self._histories.values())

    def _own(self, history: History) -> History:
        history.accounted = 0
        self.settle(history)
        return history


def _sum(depth: int, histories: Sequence[History]) -> History:
    total = histories[0].copy(depth)
    for history in histories[1:]:
        total.merge(history)
    return total


def _finest_first(level: Level) -> tuple[int, Level]:
    return -len(level), level
