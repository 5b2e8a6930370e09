"""The grid is DDSketch's, and counts survive as bytes."""

from __future__ import annotations

import math

import pytest
from ddsketch.mapping import LogarithmicMapping
from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.errors import ConfigurationError
from agent_hedge.latency.bins import (
    BINS,
    CENSORED,
    COMPLETED,
    EMPTY,
    LONGEST,
    RELATIVE_ACCURACY,
    SHORTEST,
    VALUES,
    code_of,
    pack,
    unpack,
)

counts = st.dictionaries(st.integers(0, BINS - 1), st.integers(1, (1 << 32) - 1)).map(
    lambda found: sorted(found.items())
)


@given(st.floats(SHORTEST, LONGEST))
def test_a_bin_stands_for_its_latencies_within_one_percent(seconds: float) -> None:
    code = code_of(seconds, COMPLETED)
    assert abs(VALUES[code // 2] - seconds) <= (RELATIVE_ACCURACY + 1e-9) * seconds
    assert code_of(seconds, CENSORED) == code + 1


@given(st.floats(SHORTEST * 1.03, LONGEST * 0.97))
def test_the_bins_are_those_of_ddsketch(seconds: float) -> None:
    mapping = LogarithmicMapping(RELATIVE_ACCURACY)
    lowest = mapping.key(SHORTEST)
    assert abs(code_of(seconds, COMPLETED) // 2 - (mapping.key(seconds) - lowest)) <= 1, "an ulp may cross an edge"
    assert math.isclose(VALUES[code_of(seconds, 0) // 2], mapping.value(mapping.key(seconds)), rel_tol=0.0203)


@pytest.mark.parametrize(
    ("seconds", "index"), [(0.0, 0), (1e-9, 0), (SHORTEST, 0), (LONGEST, BINS - 1), (1e300, BINS - 1)]
)
def test_what_is_beyond_the_grid_counts_at_its_edge(seconds: float, index: int) -> None:
    assert code_of(seconds, COMPLETED) == 2 * index
    assert code_of(seconds, CENSORED) == 2 * index + 1


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1e-9])
def test_r20_a_latency_that_cannot_be_is_refused(seconds: float) -> None:
    with pytest.raises(ConfigurationError, match="finite number of seconds"):
        code_of(seconds, COMPLETED)


@given(counts)
def test_counts_survive_as_bytes(pairs: list[tuple[int, int]]) -> None:
    assert unpack(pack(pairs)) == pairs


def test_a_usual_bin_takes_two_bytes() -> None:
    assert len(pack((index, 5) for index in range(200, 400))) == len(EMPTY) + 1 + 2 * 200


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x02",
        b"\x01\x81",
        b"\x01\x05",
        b"\x01\x00\x05",
        b"\x01\x05\x00",
        b"\x01\xff\xff\xff\x7f\x01",
        b"\x01\x01\xff\xff\xff\xff\xff\x01",
        b"\x01\x01\xff\xff\xff\xff\x1f",
    ],
    ids=["empty", "version", "cut", "no count", "no gap", "no samples", "beyond the grid", "too long", "too many"],
)
def test_r20_bytes_that_are_not_counts_are_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="not latency counts"):
        unpack(data)


def test_a_number_without_an_end_is_refused_before_it_is_built() -> None:
    with pytest.raises(ConfigurationError, match="too long"):
        unpack(EMPTY + b"\xff" * 1_000_000)


@given(st.binary())
def test_any_bytes_are_counts_or_refused(data: bytes) -> None:
    try:
        pairs = unpack(data)
    except ConfigurationError:
        return
    assert unpack(pack(pairs)) == pairs
