"""A book as bytes, and as rows that workers share through a `SliceStore`.

A book's times are of one process's clock. `epoch` is what must be added to them to get Unix time
(``time.time() - loop.time()``); with it a book or its rows can be read in another process. Shifting by it moves
slices by whole slices, so the age of a sample is kept within half a slice.

Rows are (key text, start in Unix seconds, counts). The key text is a JSON list: the slice's width in seconds, then
target, node, model, size and, for cold first calls, ``cold``. Short slices fill the window, hourly ones the day.
"""

from __future__ import annotations

import json
import zlib
from base64 import b85decode, b85encode
from collections.abc import Iterable, Iterator, Sequence
from math import floor
from typing import TYPE_CHECKING, Any

from agent_hedge.errors import ConfigurationError
from agent_hedge.latency.bins import BINS, RELATIVE_ACCURACY
from agent_hedge.latency.history import History
from agent_hedge.latency.levels import Level, Part, is_finest, name_of, path_of
from agent_hedge.latency.sketch import Packed, Sketch, unwrap, wrap
from agent_hedge.latency.window import HOUR_SLICES, REACH, SLICE_SECONDS, Day

if TYPE_CHECKING:
    from agent_hedge.latency.book import LatencyBook

Row = tuple[str, int, bytes]

_FORMAT = "agent_hedge latency book"
_VERSION = 1
_LARGEST = 1 << 28
"""Bytes of JSON: no book within its bounds is larger, and no bad file makes us unpack more."""
_HOUR_SECONDS = HOUR_SLICES * SLICE_SECONDS


def dump(book: LatencyBook, *, epoch: float = 0.0) -> bytes:
    """Return all of a book as bytes: zlib-compressed JSON that names its format, version and accuracy."""
    parts = sorted((_plain(part) for part in book.snapshot()), key=lambda plain: str(plain["levels"]))
    state = {"format": _FORMAT, "version": _VERSION, "accuracy": RELATIVE_ACCURACY, "epoch": epoch, "parts": parts}
    return zlib.compress(json.dumps(state, separators=(",", ":")).encode())


def load(book: LatencyBook, data: bytes, *, epoch: float = 0.0) -> None:
    """Count in `book` all that `dump` wrote, its times moved to the clock whose `epoch` is given.

    Anything that `dump` cannot have written raises `ConfigurationError` and changes nothing.
    """
    state = _decoded(data)
    try:
        shift = float(state["epoch"]) - epoch
        parts = [_part(plain, round(shift / SLICE_SECONDS), round(shift / _HOUR_SECONDS)) for plain in state["parts"]]
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise ConfigurationError(f"not a latency book: {type(error).__name__}: {error}") from error
    levels = {level for part, _ in parts for level in part}
    if levels != {level for finest in levels if is_finest(finest) for level in path_of(*name_of(finest))}:
        raise ConfigurationError("not a latency book: its levels do not belong together")
    book.restore(parts)


def rows(book: LatencyBook, *, epoch: float = 0.0, since: float = float("-inf")) -> list[Row]:
    """Return the slices of a book that ended after `since` (Unix seconds), or have not ended.

    A slice still open is in it with what it holds so far; a later row with the same key text and start replaces it.
    """
    found: list[Row] = []
    for levels, history in book.snapshot():
        if is_finest(levels[0]):
            short = history.window.slices()
            for seconds, slices in ((SLICE_SECONDS, short), (_HOUR_SECONDS, sorted(history.day.hours.items()))):
                text = json.dumps([int(seconds), *levels[0]])
                for number, packed in slices:
                    start = number * seconds + epoch
                    if start + seconds > since:
                        found.append((text, floor(start), wrap(packed)))
    return found


def absorb(book: LatencyBook, rows: Iterable[Row], now: float, *, epoch: float = 0.0) -> int:
    """Count rows of other processes, or of an earlier life of this one, and return how many. Each row only once.

    A malformed row raises `ConfigurationError` that names it; the rows before it are counted.
    """
    count = 0
    for text, start, data in rows:
        try:
            width, *level = json.loads(text)
            finest: Level = tuple(level)
            if width not in (SLICE_SECONDS, _HOUR_SECONDS) or not _valid(finest) or not is_finest(finest):
                raise ConfigurationError("the key text is not [width, target, node, model, size]")
            packed = Sketch.unpack(unwrap(data)).pack()
        except (ValueError, TypeError) as error:
            raise ConfigurationError(f"latency row {text!r} at {start}: {error}") from error
        book.insert(finest, round((start - epoch) / width), packed, now, hour=width == _HOUR_SECONDS)
        count += 1
    return count


def _plain(part: Part) -> dict[str, Any]:
    levels, history = part
    return {
        "levels": levels,
        "number": history.window.number,
        "slices": [[number, *_text(packed)] for number, packed in history.window.slices()],
        "hours": [[hour, *_text(packed)] for hour, packed in sorted(history.day.hours.items())],
        "reach": [list(history.reach.codes), [history.window.number - at for at in history.reach.numbers]],
    }


def _part(plain: dict[str, Any], slices: int, hours: int) -> Part:
    """Return the part of `_plain`, its slices and hours moved by so many."""
    levels = [tuple(level) for level in plain["levels"]]
    if not levels or not all(map(_valid, levels)):
        raise ConfigurationError(f"not the levels of a key: {levels}")
    history = History(int(plain["number"]) + slices, len(levels[0]))
    for number, packed in _slices(plain["slices"], slices):
        history.window.insert(number, packed)
    history.day = Day(dict(_slices(plain["hours"], hours)))
    codes, ages = plain["reach"]
    if len(codes) > 2 * REACH or not all(0 <= code < 2 * BINS for code in codes):
        raise ConfigurationError(f"not the codes of a reach: {codes[:4]}")
    history.reach.codes.extend(codes)
    history.reach.numbers.extend(history.window.number - age for age in ages)
    if len(history.reach.codes) != len(history.reach.numbers):
        raise ConfigurationError("a reach needs one slice for each code")
    return levels, history


def _slices(plain: Sequence[Any], shift: int) -> Iterator[tuple[int, Packed]]:
    for number, completed, censored in plain:
        yield int(number) + shift, (b85decode(completed), b85decode(censored))


def _text(packed: Packed) -> tuple[str, str]:
    return b85encode(packed[0]).decode(), b85encode(packed[1]).decode()


def _valid(level: Level) -> bool:
    return 1 <= len(level) <= 5 and all(isinstance(part, str) for part in level) and level[4:] in ((), ("cold",))


def _decoded(data: bytes) -> dict[str, Any]:
    decoder = zlib.decompressobj()
    try:
        text = decoder.decompress(data, _LARGEST)
        state = json.loads(text) if decoder.eof else None
    except (zlib.error, ValueError) as error:
        raise ConfigurationError(f"not a latency book: {error}") from error
    if not isinstance(state, dict) or state.get("format") != _FORMAT:
        raise ConfigurationError("not a latency book: truncated, too large, or something else")
    if state.get("version") != _VERSION or state.get("accuracy") != RELATIVE_ACCURACY:
        raise ConfigurationError(
            f"a latency book of version {state.get('version')!r} and accuracy {state.get('accuracy')!r}; "
            f"this is version {_VERSION} and {RELATIVE_ACCURACY}"
        )
    return state
