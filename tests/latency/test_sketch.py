"""Censored quantiles on the grid against brute force on the raw samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.errors import ConfigurationError
from agent_hedge.latency import Sketch
from agent_hedge.latency.bins import LONGEST, RELATIVE_ACCURACY, SHORTEST, VALUES, code_of

seconds = st.floats(SHORTEST, LONGEST)
samples = st.lists(st.tuples(seconds, st.booleans()), max_size=200)
some_samples = st.lists(st.tuples(seconds, st.booleans()), min_size=1, max_size=200)
quantiles = st.floats(0.001, 0.999)


def sketch_of(samples: Sequence[tuple[float, bool]]) -> Sketch:
    sketch = Sketch()
    for value, completed in samples:
        (sketch.add if completed else sketch.add_censored)(value)
    return sketch


def near(seconds: float) -> Any:
    return pytest.approx(seconds, rel=0.01)


def product_limit(samples: list[tuple[float, bool]], q: float, *, events_first: bool) -> float | None:
    """Kaplan-Meier as the textbook has it, one sample at a time; None where the curve ends above.

    A step counts as reached half of what it is higher than 1/N early, as `Sketch.curve` explains.
    """
    at_risk, survival = len(samples), 1.0
    for value, completed in sorted(samples, key=lambda sample: (sample[0], sample[1] is not events_first)):
        if completed:
            step = survival / at_risk
            survival -= step
            if 1 - survival + (step - 1 / len(samples)) / 2 >= q - 1e-6:
                return value
        at_risk -= 1
    return None


@given(st.lists(seconds, min_size=1, max_size=300), quantiles)
def test_without_censoring_it_is_the_order_statistic_within_one_percent(values: list[float], q: float) -> None:
    exact = sorted(values)[max(math.ceil(q * len(values) - 1e-6 * len(values)), 1) - 1]
    found, identified = sketch_of([(value, True) for value in values]).quantile(q)
    assert identified
    assert abs(found - exact) <= (RELATIVE_ACCURACY + 1e-9) * exact


@given(some_samples, quantiles)
def test_r16_the_curve_is_the_product_limit_within_the_bins(samples: list[tuple[float, bool]], q: float) -> None:
    """Raw values moved to their bins leave only the order within a bin open, and its two extremes bracket us."""
    binned = [(VALUES[code_of(value, 0) // 2], completed) for value, completed in samples]
    early = product_limit(binned, q, events_first=False)
    late = product_limit(binned, q, events_first=True)
    found, identified = sketch_of(samples).quantile(q)
    assert early is not None or late is None, "censorings first drops the curve faster"
    if early is None:
        assert not identified
        assert found == max(value for value, _ in binned)
    elif identified:
        assert early <= found <= (math.inf if late is None else late)
    else:
        assert late is None, "the mean of the two may stay above"


def test_r16_a_censored_wait_pushes_the_quantile_up_and_a_dropped_one_does_not() -> None:
    answered = [(1.0, True)] * 90 + [(2.0, True)] * 5
    assert sketch_of(answered).quantile(0.93).seconds == pytest.approx(1.0, rel=0.01)
    assert sketch_of([*answered, *[(1.5, False)] * 5]).quantile(0.93).seconds == pytest.approx(2.0, rel=0.01)


def test_r16_a_textbook_curve() -> None:
    """Remission times of Freireich et al. (1963), 6-MP arm: the standard example; S ends at 0.448."""
    events = [6, 6, 6, 7, 10, 13, 16, 22, 23]
    censored = [6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35]
    sketch = sketch_of([(t, True) for t in events] + [(t, False) for t in censored])
    for q, week in ((0.1, 6), (0.17, 7), (0.22, 10), (0.28, 13), (0.34, 16), (0.43, 22), (0.5, 23), (0.52, 23)):
        assert sketch.quantile(q) == (near(week), True)
    assert sketch.quantile(0.9) == (near(35), False)


@given(some_samples)
def test_a_curve_is_a_distribution(samples: list[tuple[float, bool]]) -> None:
    curve = sketch_of(samples).curve()
    assert curve is not None
    assert all(earlier <= later for earlier, later in pairwise([0.0, *curve.reached, 1.0]))
    assert len(curve.values) == len(curve.reached)
    assert curve.values[-1] == near(max(value for value, _ in samples))
    assert (curve.samples, curve.completed) == (len(samples), sum(completed for _, completed in samples))


def test_r16_within_a_bin_half_of_the_censorings_come_first() -> None:
    """Events first: S = 2/3, a step of 1/3. Censorings first: S = 1/2, a step of 1/2. Mean: 5/12 + 1/24 reached."""
    sketch = sketch_of([(1.0, True), (1.0, False), (5.0, True)])
    assert sketch.quantile(11 / 24 - 1e-3) == (near(1.0), True)
    assert sketch.quantile(11 / 24 + 1e-3) == (near(5.0), True)


def test_a_vector_of_quantiles_and_the_counts() -> None:
    sketch = sketch_of([(value / 10, value % 4 > 0) for value in range(1, 101)])
    assert sketch.quantiles((0.5, 0.9)) == [sketch.quantile(0.5), sketch.quantile(0.9)]
    assert (sketch.count, sketch.completed, sketch.censored) == (100, 75, 25)


def test_r16_only_censored_waits_identify_nothing() -> None:
    assert sketch_of([(3.0, False)] * 5).quantile(0.5) == (near(3.0), False)


@given(samples, samples)
def test_merging_is_exact_and_commutes(one: list[tuple[float, bool]], other: list[tuple[float, bool]]) -> None:
    left, right = sketch_of(one), sketch_of(other)
    left.merge(sketch_of(other))
    right.merge(sketch_of(one))
    assert left == right == sketch_of([*one, *other])
    assert left.count == len(one) + len(other)


@given(samples, samples)
def test_subtracting_undoes_merging(one: list[tuple[float, bool]], other: list[tuple[float, bool]]) -> None:
    sketch = sketch_of(one)
    sketch.merge(sketch_of(other))
    sketch.subtract(sketch_of(other))
    assert sketch == sketch_of(one)
    assert sketch.count == len(one)


def test_r20_subtracting_what_is_not_there_is_refused_and_changes_nothing() -> None:
    sketch = sketch_of([(1.0, True), (2.0, True)])
    with pytest.raises(ConfigurationError, match="subtracted"):
        sketch.subtract(sketch_of([(1.0, True), (2.0, True), (2.0, True)]))
    assert sketch == sketch_of([(1.0, True), (2.0, True)])
    assert sketch.count == 2


@given(samples)
def test_bytes_round_trip(found: list[tuple[float, bool]]) -> None:
    sketch = sketch_of(found)
    assert Sketch.from_bytes(sketch.to_bytes()) == sketch
    assert list(sketch.codes()) == sorted(code_of(value, not completed) for value, completed in found)


@given(some_samples, st.data())
def test_r20_a_changed_byte_is_noticed(found: list[tuple[float, bool]], data: st.DataObject) -> None:
    good = bytearray(sketch_of(found).to_bytes())
    good[data.draw(st.integers(0, len(good) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ConfigurationError, match="latency sketch"):
        Sketch.from_bytes(bytes(good))


@pytest.mark.parametrize(
    "data", [b"", b"AHKM", b"AHKM\x02\x00\x00\x00\x00", b"{}", sketch_of([(1, True)]).to_bytes()[:-1]]
)
def test_r20_garbage_is_not_a_sketch(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match="not a latency sketch"):
        Sketch.from_bytes(data)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -0.001])
def test_r20_values_that_cannot_be_are_refused(value: float) -> None:
    sketch = Sketch()
    for add in (sketch.add, sketch.add_censored):
        with pytest.raises(ValueError, match="finite"):
            add(value)
    assert sketch.count == 0


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.1, math.nan])
def test_r20_quantiles_outside_their_range_are_refused(q: float) -> None:
    with pytest.raises(ConfigurationError, match="between 0 and 1"):
        sketch_of([(1.0, True)]).quantile(q)


def test_r20_an_empty_sketch_has_no_quantile() -> None:
    assert Sketch().curve() is None
    with pytest.raises(ConfigurationError, match="without samples"):
        Sketch().quantile(0.5)
    with pytest.raises(TypeError):
        hash(Sketch())


def test_clearing_keeps_nothing_but_the_range() -> None:
    sketch = sketch_of([(1.0, True), (9.0, False)])
    sketch.clear()
    assert sketch == Sketch()
    assert sketch.count == 0
    sketch.add(0.5)
    assert sketch.quantile(0.5).seconds == pytest.approx(0.5, rel=0.01)
