"""The book of latencies: record what attempts took, read when a hedge is due.

Recording appends two bytes to the batch of its key; a batch is counted into its levels when it is full, when its
30-second slice ends, or when a reader needs it. Reading looks up a curve and bisects it. A quantile is read at the
finest level (see `levels`) that holds 200 samples; nothing is ever read across targets.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from math import floor, inf
from operator import attrgetter
from pathlib import Path
from threading import Lock
from typing import NamedTuple

from agent_hedge.core.step import StepKey
from agent_hedge.errors import ConfigurationError
from agent_hedge.latency import persist, prime
from agent_hedge.latency.bins import CENSORED, COMPLETED, code_of
from agent_hedge.latency.history import FRESH_ADDS, FRESH_SECONDS, NEEDED, History, Reading
from agent_hedge.latency.levels import NAMES, Level, Levels, Name, Part, Route, is_finest, name_of, path_of
from agent_hedge.latency.sketch import Curve, Packed, checked_quantile
from agent_hedge.latency.window import SLICE_SECONDS

_BATCH = 128
_ENTRY_BYTES = 1_500
"""An entry without its histories: names, levels, batch, places in the dicts (CPython 3.11, measured)."""
_LEAST_BUCKET_BITS = 9
_GREATEST_BUCKET_BITS = 18


class Threshold(NamedTuple):
    """A quantile in seconds, and where it comes from."""

    seconds: float
    identified: bool
    """Whether the curve reaches the quantile; else `seconds` is the longest wait seen, a lower bound."""
    stale: bool
    """Nothing recent is left at any level; the last known value stands in."""
    samples: int
    """Attempts it was read from, censored ones included."""
    level: str
    """``size``, ``node``, ``model``, ``target`` or ``cold``: the finest level that holds just these samples."""


class LatencyBook:
    """Live latencies of all targets and steps, in seconds: the port `agent_hedge.core.ports.LatencyBook`.

    `max_keys` bounds the pairs of target and step key, `max_bytes` the memory (estimated); beyond either the least
    recently used pair goes. Any thread may call any method. All times of a book are of one clock; one that goes
    slightly back counts as the newest seen.
    """

    def __init__(self, *, max_keys: int = 1_000, max_bytes: int = 64 << 20) -> None:
        if max_keys < 1 or max_bytes < 1:
            raise ConfigurationError(f"a book needs room: max_keys={max_keys!r}, max_bytes={max_bytes!r}")
        self.max_keys = max_keys
        self.max_bytes = max_bytes
        self._lock = Lock()
        self._levels = Levels()
        self._entries: dict[Name, _Entry] = {}
        self._dirty: dict[_Entry, None] = {}
        self._uses = 0

    # --- recording ------------------------------------------------------------------------------------------

    def record(self, key: StepKey, target: str, latency: float, now: float, *, cold: bool = False) -> None:
        """Count an attempt whose first meaningful token came after `latency` seconds.

        A `cold` first call (a connection opened, a model loaded for it) counts apart and in no other quantile.
        NaN, infinite and negative latencies raise `ConfigurationError`.
        """
        self._note((target, key, cold), code_of(latency, COMPLETED), now)

    def record_censored(self, key: StepKey, target: str, waited: float, now: float, *, cold: bool = False) -> None:
        """Count an attempt that was stopped, or failed, after `waited` seconds without a token (R16)."""
        self._note((target, key, cold), code_of(waited, CENSORED), now)

    def _note(self, name: Name, code: int, now: float) -> None:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                entry = self._enter(name)
            self._uses = entry.used = self._uses + 1
            if not now < entry.until:  # so that NaN is refused there
                self._turn(entry, now)
            batch = entry.batch
            batch.append(code)
            if len(batch) == 1:
                self._dirty[entry] = None
            elif len(batch) >= _BATCH:
                self._flush(entry)

    # --- reading --------------------------------------------------------------------------------------------

    def quantile(self, key: StepKey, target: str, q: float, now: float) -> float | None:
        """Return the q-quantile in seconds of the last 5 minutes, or None below 200 samples at every level.

        Where 5 minutes hold fewer at a level, its last 500 samples of the last 24 hours are read. The value is at
        most 1 second behind, and no more than 128 samples or 3 % of those in it. When nothing recent is left the
        last value stays; `threshold` says so.
        """
        entry = self._entries.get((target, key, False))
        reading = entry.short if entry is not None else None
        if reading is None or now >= reading.until or reading.source.adds >= reading.due:
            reading = self._read((target, key, False), now)
        elif (found := reading.known.get(q)) is not None:  # `_at`, spared a call: every step asks twice
            return found
        return _at(reading, q)

    def long_quantile(self, key: StepKey, target: str, q: float, now: float) -> float | None:
        """Return the q-quantile in seconds of the last 24 hours, or None below 200 samples at every level.

        The value is at most 10 seconds behind, and no more than 128 samples or 3 % of those in it.
        """
        entry = self._entries.get((target, key, False))
        reading = entry.long if entry is not None else None
        if reading is None or now >= reading.until or reading.source.adds >= reading.due:
            reading = self._read((target, key, False), now, long=True)
        return _at(reading, q)

    def long_curve(self, key: StepKey, target: str, now: float) -> Curve | None:
        """Return the whole distribution of the last 24 hours, or None below 200 samples at every level."""
        reading = self._read((target, key, False), now, long=True)
        return None if reading is None else reading.curve

    def threshold(
        self, key: StepKey, target: str, q: float, now: float, *, long: bool = False, cold: bool = False
    ) -> Threshold | None:
        """Return `quantile` (`long_quantile`; that of cold first calls) together with where it comes from."""
        checked_quantile(q)
        reading = self._read((target, key, cold), now, long=long)
        if reading is None:
            return None
        seconds, identified = reading.curve.at(q)
        return Threshold(seconds, identified, reading.stale, reading.curve.samples, NAMES[reading.source.depth])

    def learning(self, key: StepKey, target: str, now: float, *, cold: bool = False) -> tuple[int, int]:
        """Return (samples known at the finest level that has any, samples needed): "37 of 200"."""
        number = slice_number(now)
        with self._lock:
            self._flush_all()
            for history in self._levels.find(path_of(target, key, cold)):
                history.advance(number)
                if known := history.known():
                    return known, NEEDED
        return 0, NEEDED

    def __len__(self) -> int:
        """The pairs of target and step key (cold ones count apart)."""
        return len(self._entries)

    @property
    def nbytes(self) -> int:
        """Bytes held, estimated."""
        return self._levels.nbytes + _ENTRY_BYTES * len(self._entries)

    # --- the whole book -------------------------------------------------------------------------------------

    def merge(self, other: LatencyBook) -> None:
        """Count all that `other` holds; both keep time by the same clock.

        Window and day are exact, and the order of merging does not matter. Of the reach beyond the window the
        youngest 500 samples stay.
        """
        self.restore(other.snapshot())

    def dump(self, *, epoch: float = 0.0) -> bytes:
        """Return the whole book as bytes; `epoch` is Unix time minus this book's time, in seconds."""
        return persist.dump(self, epoch=epoch)

    @classmethod
    def load(cls, data: bytes, *, epoch: float = 0.0, max_keys: int = 1_000, max_bytes: int = 64 << 20) -> LatencyBook:
        """Return the book of `dump`, on the clock whose `epoch` is given. Garbage raises `ConfigurationError`."""
        book = cls(max_keys=max_keys, max_bytes=max_bytes)
        persist.load(book, data, epoch=epoch)
        return book

    def rows(self, *, epoch: float = 0.0, since: float = -inf) -> list[persist.Row]:
        """Return the slices that ended after `since` (Unix seconds) or are open, as rows of a `SliceStore`."""
        return persist.rows(self, epoch=epoch, since=since)

    def absorb(self, rows: Iterable[persist.Row], now: float, *, epoch: float = 0.0) -> int:
        """Count rows of other processes, or of an earlier life of this one, each once; return how many."""
        return persist.absorb(self, rows, now, epoch=epoch)

    def prime_csv(self, path: str | Path, now: float, *, key: StepKey | None = None, target: str | None = None) -> int:
        """Record the ``ttft_ms`` or ``ttft_s`` column of a CSV file as of `now`; return how many (see `prime`)."""
        return prime.prime_csv(self, path, now, key=key, target=target)

    def snapshot(self) -> list[Part]:
        """Return copies of all histories, each with the levels it stands for."""
        with self._lock:
            self._flush_all()
            parts = self._levels.parts()
        copies: list[Part] = []
        for levels, history in parts:
            with self._lock:
                copies.append((levels, history.copy()))
        return copies

    def restore(self, parts: Sequence[Part]) -> None:
        """Merge histories that `snapshot` returned."""
        with self._lock:
            self._flush_all()
            self._levels.merge(parts)
            for entry in self._entries.values():
                entry.short = entry.long = None
            finest = [(history.window.number, levels[0]) for levels, history in parts if is_finest(levels[0])]
            for _, level in sorted(finest):
                self._enter(name_of(level))

    def insert(self, finest: Level, number: int, packed: Packed, now: float, *, hour: bool) -> None:
        """Count a slice of another process along the path of a finest level: slice `number`, or hour `number`."""
        with self._lock:
            entry = self._enter(name_of(finest))
            for history in self._path(entry, slice_number(now)):
                history.advance(slice_number(now))
                history.insert(number, packed, hour=hour)
                self._levels.settle(history)
            self._shrink()

    # --- with the lock held ---------------------------------------------------------------------------------

    def _enter(self, name: Name) -> _Entry:
        """Return the entry of a name as the most recently used, made where there is none."""
        entry = self._entries.get(name)
        if entry is None:
            entry = self._entries[name] = _Entry(name, path_of(*name))
        self._uses = entry.used = self._uses + 1
        self._shrink()
        return entry

    def _turn(self, entry: _Entry, now: float) -> None:
        """Close the batch of a slice that has ended, and begin the batch of this one."""
        number = slice_number(now)
        self._flush(entry)
        entry.number, entry.until = number, (number + 1) * SLICE_SECONDS

    def _flush(self, entry: _Entry) -> None:
        """Count the batch of an entry at all of its levels."""
        self._count(entry)
        self._shrink()

    def _count(self, entry: _Entry) -> None:
        if not entry.batch:
            return
        batch, entry.batch = entry.batch, array("H")
        self._dirty.pop(entry, None)
        for history in self._path(entry, entry.number):
            history.add(batch, entry.number)
            self._levels.settle(history)

    def _flush_all(self) -> None:
        for entry in list(self._dirty):
            self._flush(entry)

    def _path(self, entry: _Entry, number: int) -> tuple[History, ...]:
        """Return the distinct histories an entry is counted in, finest first."""
        if entry.generation != self._levels.generation or not entry.histories:
            entry.histories = self._levels.grow(entry.path, number)
            entry.generation = self._levels.generation
        return entry.histories

    def _read(self, name: Name, now: float, *, long: bool = False) -> Reading | None:
        """Read the finest level that knows enough, and keep the reading with the entry of `name`."""
        with self._lock:
            entry = self._enter(name)
            self._flush(entry)
            last = entry.long if long else entry.short
            reading = self._read_first(entry.path[:1], now, long=long)
            if reading is None:
                self._flush_all()
                reading = self._read_first(entry.path[1:], now, long=long)
            if reading is None and last is not None:
                due = last.source.adds + FRESH_ADDS
                reading = Reading(last.curve, last.source, now + FRESH_SECONDS, due, stale=True)
            if long:
                entry.long = reading
            else:
                entry.short = reading
            return reading

    def _read_first(self, path: Route, now: float, *, long: bool) -> Reading | None:
        number = slice_number(now)
        for history in dict.fromkeys(self._levels.find(path)):
            history.advance(number)
            reading = history.read_long(now) if long else history.read_short(now)
            self._levels.settle(history)
            if reading is not None:
                return reading
        return None

    def _shrink(self) -> None:
        """Drop the least recently used entries beyond the bounds; the newest one stays."""
        while len(self._entries) > self.max_keys or (self.nbytes > self.max_bytes and len(self._entries) > 1):
            entry = min(self._entries.values(), key=attrgetter("used"))
            self._count(entry)
            self._levels.drop(entry.path)
            del self._entries[entry.name]


class _Entry:
    """One pair of target and step key: its batch of new samples, its levels, and what was last read for it."""

    __slots__ = ("batch", "generation", "histories", "long", "name", "number", "path", "short", "until", "used")

    def __init__(self, name: Name, path: Route) -> None:
        self.name = name
        self.path = path
        self.batch: array[int] = array("H")
        self.number = 0
        self.until = -inf
        """When the slice of the batch ends."""
        self.used = 0
        """The book's count of uses when this one was last used."""
        self.histories: tuple[History, ...] = ()
        self.generation = -1
        self.short: Reading | None = None
        self.long: Reading | None = None


def _at(reading: Reading | None, q: float) -> float | None:
    """Return the q-quantile of a reading, in seconds."""
    if reading is None:
        checked_quantile(q)
        return None
    found = reading.known.get(q)
    return reading.seconds(checked_quantile(q)) if found is None else found


def slice_number(now: float) -> int:
    """Return the number of the 30-second slice at `now`."""
    if not -inf < now < inf:
        raise ConfigurationError(f"a time is a finite number of seconds, got {now!r}")
    return floor(now / SLICE_SECONDS)


def size_bucket(tokens: int) -> str:
    """Return the prompt-size bucket of so many tokens: ``<=512``, ``<=1k``, ``<=2k`` ... ``<=256k``, ``>256k``.

    Time to first token grows with the prompt once prefill outweighs queueing and the network, at about a thousand
    tokens; doubling buckets keep prompts that differ by less than a factor of 2 together. k is 1,024 tokens.
    """
    if tokens < 0:
        raise ConfigurationError(f"a prompt has 0 or more tokens, got {tokens!r}")
    bits = max((tokens - 1).bit_length() if tokens else 0, _LEAST_BUCKET_BITS)
    if bits > _GREATEST_BUCKET_BITS:
        return f">{_bound(_GREATEST_BUCKET_BITS)}"
    return f"<={_bound(bits)}"


def _bound(bits: int) -> str:
    return f"{1 << bits - 10}k" if bits >= 10 else str(1 << bits)
