"""Three memories of one key, each bounded: the last 5 minutes, the last 500 samples, the last 24 hours.

Time is cut into slices of 30 seconds, numbered from the clock's zero. A slice that has ended is packed to a few
hundred bytes; running totals take it away when it expires. Nothing here has a timer: a memory moves on when it is
told the number of the slice that is now.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence

from agent_hedge.latency.sketch import Packed, Sketch

SLICE_SECONDS = 30.0
SLICES = 10
"""Full slices of the window beside the open one: it covers 5 minutes, and up to one slice more."""
HOUR_SLICES = 120
DAY_HOURS = 24
DAY_SLICES = DAY_HOURS * HOUR_SLICES
REACH = 500
"""Samples to which a thin window reaches back."""
_SPARE = 128
"""Samples the reach may hold beyond that, so that it is not cut at every batch."""
_OBJECT_BYTES = 200
"""A packed slice beside its payload: tuple, two bytes objects, number, place in its dict (CPython 3.11, measured)."""


class Window:
    """The open slice and ten full ones before it, with their running total."""

    __slots__ = ("_kept", "number", "open", "sealed", "total")

    def __init__(self, number: int) -> None:
        self.number = number
        """The open slice."""
        self.open = Sketch()
        self.total = Sketch()
        self.sealed: dict[int, Packed] = {}
        self._kept = 0

    def add(self, codes: Sequence[int]) -> None:
        """Count samples in the open slice."""
        self.open.add_codes(codes)
        self.total.add_codes(codes)

    def advance(self, number: int) -> tuple[int, Packed] | None:
        """Move on to slice `number` and return the slice closed by that, if it held anything. Never moves back."""
        if number <= self.number:
            return None
        closed = None
        if self.open.count:
            closed = self.number, self.open.pack()
            self.sealed[self.number] = closed[1]
            self._kept += _size(closed[1])
            self.open.clear()
        self.number = number
        for old in [old for old in self.sealed if old < number - SLICES]:
            expired = self.sealed.pop(old)
            self.total.subtract_packed(expired)
            self._kept -= _size(expired)
        return closed

    def insert(self, number: int, packed: Packed) -> None:
        """Count a slice that was recorded elsewhere, if it has not expired."""
        if number > self.number or number < self.number - SLICES:
            return
        self.total.add_packed(packed)
        if number == self.number:
            self.open.add_packed(packed)
        else:
            known = self.sealed.get(number)
            self.sealed[number] = combined(known, packed)
            self._kept += _size(self.sealed[number]) - _size(known)

    def copy(self) -> Window:
        """Return an independent window that holds the same."""
        twin = Window(self.number)
        twin.open, twin.total = self.open.copy(), self.total.copy()
        twin.sealed, twin._kept = dict(self.sealed), self._kept
        return twin

    def slices(self) -> Iterator[tuple[int, Packed]]:
        """All slices that hold anything, the open one last."""
        yield from sorted(self.sealed.items())
        if self.open.count:
            yield self.number, self.open.pack()

    @property
    def nbytes(self) -> int:
        return self.open.nbytes + self.total.nbytes + self._kept


class Reach:
    """The last 500 samples with the slice of each: what a thin window reaches back to."""

    __slots__ = ("codes", "numbers")

    def __init__(self) -> None:
        self.codes: array[int] = array("H")
        self.numbers: array[int] = array("i")

    def add(self, codes: Sequence[int], number: int) -> None:
        """Append samples of slice `number`."""
        self.codes.extend(codes)
        self.numbers.extend([number] * len(codes))
        if len(self.codes) > REACH + _SPARE:
            del self.codes[:-REACH], self.numbers[:-REACH]

    def insert(self, samples: Iterable[tuple[int, int]]) -> None:
        """Merge (slice, code) samples recorded elsewhere; the youngest 500 stay.

        Which samples of the oldest slice stay is decided by a scrambled code (Knuth's multiplicative hash), so that
        the order of merging does not matter and neither short nor long waits are preferred.
        """
        merged = sorted((*self, *samples), key=lambda sample: (sample[0], sample[1] * 40503 & 0xFFFF))[-REACH:]
        self.codes = array("H", (code for _, code in merged))
        self.numbers = array("i", (number for number, _ in merged))

    def copy(self) -> Reach:
        """Return an independent reach that holds the same."""
        twin = Reach()
        twin.codes, twin.numbers = self.codes[:], self.numbers[:]
        return twin

    def since(self, number: int) -> Sequence[int]:
        """Return the codes of the last 500 samples that are not older than slice `number`."""
        codes = self.codes[-REACH:]
        numbers = self.numbers[-REACH:]
        if numbers and numbers[0] >= number:
            return codes
        return [code for code, at in zip(codes, numbers, strict=True) if at >= number]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.numbers, self.codes, strict=True)

    @property
    def nbytes(self) -> int:
        return (self.codes.itemsize + self.numbers.itemsize) * len(self.codes)


class Day:
    """Up to 24 full hours and the running one, packed, with their total. Fed with slices that have ended."""

    __slots__ = ("_kept", "count", "hours", "total")

    def __init__(self, hours: dict[int, Packed] | None = None) -> None:
        self.hours = hours or {}
        total = Sketch()
        for packed in self.hours.values():
            total.add_packed(packed)
        self._retotal(total)
        self._kept = sum(map(_size, self.hours.values()))

    def insert(self, hour: int, packed: Packed) -> None:
        """Count a slice in its hour."""
        known = self.hours.get(hour)
        self.hours[hour] = combined(known, packed)
        self._kept += _size(self.hours[hour]) - _size(known)
        total = Sketch.unpack(self.total)
        total.add_packed(packed)
        self._retotal(total)

    def merged(self, other: Day) -> Day:
        """Return a day that holds both."""
        hours = dict(self.hours)
        for hour, packed in other.hours.items():
            hours[hour] = combined(hours.get(hour), packed)
        return Day(hours)

    def copy(self) -> Day:
        """Return an independent day that holds the same."""
        twin = Day()
        twin.hours, twin.total, twin.count, twin._kept = dict(self.hours), self.total, self.count, self._kept
        return twin

    def expire(self, number: int) -> None:
        """Forget the hours that ended more than 24 hours before slice `number`."""
        oldest = number // HOUR_SLICES - DAY_HOURS
        for hour in [hour for hour in self.hours if hour < oldest]:
            expired = self.hours.pop(hour)
            self._kept -= _size(expired)
            total = Sketch.unpack(self.total)
            total.subtract_packed(expired)
            self._retotal(total)

    def _retotal(self, total: Sketch) -> None:
        self.total, self.count = total.pack(), total.count

    @property
    def nbytes(self) -> int:
        return _size(self.total) + self._kept


def combined(one: Packed | None, other: Packed) -> Packed:
    """Return the sum of two packed slices, the first of which may not exist yet."""
    if one is None:
        return other
    total = Sketch.unpack(one)
    total.add_packed(other)
    return total.pack()


def _size(packed: Packed | None) -> int:
    return len(packed[0]) + len(packed[1]) + _OBJECT_BYTES if packed is not None else 0
