"""The grid: logarithmic bins 2 % wide from 100 microseconds to 24 hours, and counts on it as bytes.

The bins are DDSketch's (Masson, Rim, Lee, VLDB 2019): bin k holds (g^(k-1), g^k] with g = (1 + a) / (1 - a), and
its value 2 g^k / (1 + g) is within a = 1 % of everything in it. Bins are counted from 0 here.

A *code* is one sample as one small number: ``2 * bin + kind``. It is what buffers and dense arrays are indexed by.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from math import ceil, inf, log2

from ddsketch.mapping import LogarithmicMapping

from agent_hedge.errors import ConfigurationError

RELATIVE_ACCURACY = 0.01
SHORTEST = 1e-4
"""Seconds; anything shorter counts as this: no model answers faster."""
LONGEST = 86_400.0
"""Seconds; anything longer counts as this: the long book forgets after a day."""

COMPLETED, CENSORED = 0, 1

_MAPPING = LogarithmicMapping(RELATIVE_ACCURACY)
_LOWEST = _MAPPING.key(SHORTEST)
_PER_OCTAVE = 1.0 / log2(_MAPPING.gamma)

BINS = _MAPPING.key(LONGEST) - _LOWEST + 1
VALUES = array("d", (_MAPPING.value(_LOWEST + index) for index in range(BINS)))
"""Seconds that stand for each bin."""

_VERSION = 1
_COUNT_LIMIT = 1 << 32
EMPTY = bytes([_VERSION])
"""No counts, packed."""


def code_of(seconds: float, kind: int) -> int:
    """Return the code of a latency. NaN, infinite and negative values raise `ConfigurationError`."""
    if SHORTEST < seconds < LONGEST:
        return (ceil(log2(seconds) * _PER_OCTAVE) - _LOWEST) * 2 + kind
    if 0.0 <= seconds <= SHORTEST:
        return kind
    if LONGEST <= seconds < inf:
        return (BINS - 1) * 2 + kind
    raise ConfigurationError(f"a latency is a finite number of seconds >= 0, got {seconds!r}")


def pack(counts: Iterable[tuple[int, int]]) -> bytes:
    """Return (bin, count) pairs, ascending by bin, as bytes: a version, then the gap to the bin before and the count.

    Both are LEB128 integers, so that a usual bin takes two bytes.
    """
    out = bytearray(EMPTY)
    previous = -1
    for index, count in counts:
        for number in (index - previous, count):
            while number > 0x7F:
                out.append(number & 0x7F | 0x80)
                number >>= 7
            out.append(number)
        previous = index
    return bytes(out)


def unpack(data: bytes) -> list[tuple[int, int]]:
    """Return the (bin, count) pairs of `pack`. Anything that `pack` cannot have written raises `ConfigurationError`."""
    if not data or data[0] != _VERSION:
        raise ConfigurationError(f"not latency counts of version {_VERSION}: {data[:8]!r}")
    numbers: list[int] = []
    number = shift = 0
    for byte in memoryview(data)[1:]:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            if shift > 28:
                raise ConfigurationError("not latency counts: a number is too long")
        else:
            numbers.append(number)
            number = shift = 0
    if shift or len(numbers) % 2:
        raise ConfigurationError("not latency counts: they end in the middle")
    pairs: list[tuple[int, int]] = []
    index = -1
    for gap, count in zip(numbers[::2], numbers[1::2], strict=True):
        index += gap
        if not gap or index >= BINS or not 0 < count < _COUNT_LIMIT:
            raise ConfigurationError(f"not latency counts: {count} samples in bin {index} of {BINS}")
        pairs.append((index, count))
    return pairs
