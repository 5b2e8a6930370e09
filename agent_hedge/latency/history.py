"""All that is remembered of one key: 5 minutes for the trigger, 500 samples where those are thin, a day for the rest.

A history also keeps the curves last read from it, so that every step key that falls back to it shares one scan.
"""

from __future__ import annotations

from array import array
from itertools import islice
from typing import Final

from agent_hedge.latency.sketch import Curve, Packed, Sketch
from agent_hedge.latency.window import DAY_SLICES, HOUR_SLICES, REACH, Day, Reach, Window

NEEDED = 200
"""Samples below which no quantile is read: the hedge rate of a p95 from 200 samples is 5 % +- 1.5 %."""
NEEDED_COMPLETED = 20
"""Of those, samples that answered: a target that only ever fails at once says nothing about how long answers take."""
FRESH_SECONDS = 1.0
FRESH_ADDS = 128
FRESH_GROWTH = 32
"""A curve is scanned again after this much time, or this many samples and this fraction (1/32) of what it holds."""
_LONG_FRESH_SECONDS = 10.0
"""The same for the day: it changes slowly, and unpacking makes its scan dearer."""
_AT_HAND = 4
_OBJECT_BYTES = 1_200
"""The objects of an empty history: itself, window, sketches, reach, day and their dicts (CPython 3.11, measured)."""


class Reading:
    """A curve, and until when it may be used: `until` in seconds, `due` in samples of its `source`."""

    __slots__ = ("curve", "due", "known", "source", "stale", "until")

    def __init__(self, curve: Curve, source: History, until: float, due: int, *, stale: bool = False) -> None:
        self.curve: Final = curve
        self.source: Final = source
        self.until: Final = until
        self.due: Final = due
        self.stale: Final = stale
        """Nothing recent is left; the last known curve stands in."""
        self.known: Final[dict[float, float]] = {}
        """Quantiles looked up so far, in seconds: callers ask for the same few."""

    def seconds(self, q: float) -> float:
        """Return the q-quantile, q in (0, 1), in seconds, and keep it at hand."""
        if len(self.known) >= _AT_HAND:
            self.known.clear()
        self.known[q] = found = self.curve.seconds(q)
        return found


class History:
    """The three memories of one key. Callers hold the book's lock; only `adds` and readings are read without."""

    __slots__ = ("_long", "_short", "accounted", "adds", "day", "depth", "late", "reach", "window")

    def __init__(self, number: int, depth: int) -> None:
        self.depth = depth
        """How many parts the finest key has that this history belongs to."""
        self.adds = 0
        """Samples counted so far: readings are due by it."""
        self.accounted = 0
        """What the book thinks `nbytes` is."""
        self.window = Window(number)
        self.reach = Reach()
        self.day = Day()
        self.late: dict[int, array[int]] = {}
        """Samples of slices that had ended, not yet counted."""
        self._short: Reading | None = None
        self._long: Reading | None = None

    # --- counting -------------------------------------------------------------------------------------------

    def add(self, codes: array[int], number: int) -> None:
        """Count samples of slice `number`; where that has ended already, in the slice they belong to."""
        self.advance(number)
        self.adds += len(codes)
        if number == self.window.number:
            self.window.add(codes.tolist())
            self.reach.add(codes, number)
            return
        self.late.setdefault(number, array("H")).extend(codes)
        if sum(map(len, self.late.values())) > REACH:
            self.fold()

    def fold(self) -> None:
        """Count the batches that came late: at once where a neighbour has moved a common level on before them."""
        late, self.late = self.late, {}
        for number, codes in late.items():
            sketch = Sketch()
            sketch.add_codes(codes)
            self.day.insert(number // HOUR_SLICES, sketch.pack())
            self.window.insert(number, sketch.pack())
            self.reach.insert((number, code) for code in codes)
        if late:
            self.day.expire(self.window.number)

    def insert(self, number: int, packed: Packed, *, hour: bool = False) -> None:
        """Count a slice recorded elsewhere, in the day as hour `number`, or as slice `number` in window and reach."""
        sketch = Sketch.unpack(packed)
        if hour:
            self.day.insert(number, packed)
            self.day.expire(self.window.number)
        else:
            self.window.insert(number, packed)
            step = -(-sketch.count // REACH) or 1
            self.reach.insert((number, code) for code in islice(sketch.codes(), 0, None, step))
        self.adds += sketch.count

    def advance(self, number: int) -> None:
        """Let slice `number` be now: close what has ended, forget what is too old."""
        if number <= self.window.number:
            return
        self.fold()  # each slice in its turn: a slice costs 1 ms, and 20 at once would stall the loop
        closed = self.window.advance(number)
        if closed is not None:
            self.day.insert(closed[0] // HOUR_SLICES, closed[1])
        self.day.expire(number)

    def merge(self, other: History) -> None:
        """Count all that `other` holds, slice by slice. `other` is left at the same slice as this one."""
        number = max(self.window.number, other.window.number)
        for history in (self, other):
            history.advance(number)
            history.fold()
        for at, packed in other.window.slices():
            self.window.insert(at, packed)
        self.reach.insert(other.reach)
        self.day = self.day.merged(other.day)
        self.adds += other.adds
        self._short = self._long = None

    def copy(self, depth: int | None = None) -> History:
        """Return an independent history that holds the same."""
        self.fold()
        twin = History(self.window.number, self.depth if depth is None else depth)
        twin.adds = self.adds
        twin.window, twin.reach, twin.day = self.window.copy(), self.reach.copy(), self.day.copy()
        return twin

    # --- reading --------------------------------------------------------------------------------------------

    def short(self) -> Sketch:
        """The samples a trigger is read from: 5 minutes, or the last 500 of a day where those hold fewer than 200."""
        self.fold()
        total = self.window.total
        if total.count >= NEEDED:
            return total
        reached = Sketch()
        reached.add_codes(self.reach.since(self.window.number - DAY_SLICES))
        if len(self.reach.codes) < NEEDED <= self.long_count:
            return self.long()
        return reached

    def long(self) -> Sketch:
        """The samples of the last 24 hours, up to this moment."""
        self.fold()
        sketch = Sketch.unpack(self.day.total)
        sketch.merge(self.window.open)
        return sketch

    @property
    def long_count(self) -> int:
        """Samples in `long`."""
        self.fold()
        return self.day.count + self.window.open.count

    def known(self) -> int:
        """Samples towards the `NEEDED`; one less than that is the most while too few of them have answered."""
        sketch = self.short()
        return sketch.count if sketch.completed >= NEEDED_COMPLETED else min(sketch.count, NEEDED - 1)

    def read_short(self, now: float) -> Reading | None:
        """Return the curve of `short`, scanned again where it is no longer fresh; None while it is being learnt."""
        if not self._fresh(self._short, now):
            self.fold()
            enough = max(self.window.total.count, len(self.reach.codes), self.long_count) >= NEEDED
            self._short = self._scan(self.short(), now + FRESH_SECONDS) if enough else None
        return self._short

    def read_long(self, now: float) -> Reading | None:
        """Return the curve of `long`, likewise."""
        if not self._fresh(self._long, now):
            enough = self.long_count >= NEEDED
            self._long = self._scan(self.long(), now + _LONG_FRESH_SECONDS) if enough else None
        return self._long

    def _fresh(self, reading: Reading | None, now: float) -> bool:
        return reading is not None and now < reading.until and self.adds < reading.due

    def _scan(self, sketch: Sketch, until: float) -> Reading | None:
        curve = sketch.curve()
        if curve is None or curve.samples < NEEDED or curve.completed < NEEDED_COMPLETED:
            return None
        return Reading(curve, self, until, self.adds + max(FRESH_ADDS, curve.samples // FRESH_GROWTH))

    @property
    def nbytes(self) -> int:
        """Bytes held, the cached curves included (4 per bin)."""
        curves = sum(4 * len(reading.curve.reached) for reading in (self._short, self._long) if reading is not None)
        late = sum(200 + 2 * len(codes) for codes in self.late.values())
        return _OBJECT_BYTES + late + self.window.nbytes + self.reach.nbytes + self.day.nbytes + curves
