"""What is forgotten, and when."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.latency.bins import COMPLETED, code_of
from agent_hedge.latency.sketch import Sketch
from agent_hedge.latency.window import DAY_HOURS, HOUR_SLICES, REACH, SLICES, Day, Reach, Window

CODE = code_of(1.0, COMPLETED)


def sketch_of(codes: Sequence[int]) -> Sketch:
    sketch = Sketch()
    sketch.add_codes(codes)
    return sketch


def test_a_slice_counts_for_ten_slices_after_its_own() -> None:
    window = Window(100)
    window.add([CODE, CODE])
    window.advance(100 + SLICES)
    assert window.total.count == 2
    window.advance(101 + SLICES)
    assert window.total.count == 0
    assert list(window.slices()) == []


def test_an_idle_gap_empties_it_at_once() -> None:
    window = Window(0)
    for number in range(SLICES):
        window.advance(number)
        window.add([CODE])
    window.advance(1_000_000)
    assert (window.total.count, window.sealed) == (0, {})


def test_a_slice_is_given_back_once_when_it_closes_and_time_never_goes_back() -> None:
    window = Window(5)
    window.add([CODE])
    assert window.advance(4) is None
    assert window.advance(5) is None
    assert window.advance(6) == (5, sketch_of([CODE]).pack())
    assert window.advance(7) is None, "nothing came in slice 6"


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 60)), max_size=80))
def test_the_running_total_is_the_sum_of_its_slices(steps: list[tuple[int, int]]) -> None:
    window = Window(0)
    seen: list[tuple[int, int]] = []
    for gap, code in steps:
        window.advance(window.number + gap)
        window.add([code])
        seen.append((window.number, code))
        alive = [code for at, code in seen if at >= window.number - SLICES]
        assert window.total == sketch_of(alive)
        assert window.total.count == len(alive)


@given(st.lists(st.tuples(st.integers(-14, 2), st.integers(0, 60)), max_size=60))
def test_slices_of_others_are_put_where_they_belong(slices: list[tuple[int, int]]) -> None:
    window = Window(0)
    for number, code in slices:
        window.insert(number, sketch_of([code]).pack())
    assert window.total == sketch_of([code for number, code in slices if -SLICES <= number <= 0])
    window.advance(SLICES // 2)
    assert window.total == sketch_of([code for number, code in slices if -SLICES // 2 <= number <= 0])


def test_the_reach_is_the_last_500_and_no_older_than_asked() -> None:
    reach = Reach()
    for number in range(2_000):
        reach.add([number % 1_000], number)
        assert len(reach.codes) <= REACH + 129
    assert list(reach.since(0)) == [number % 1_000 for number in range(1_500, 2_000)]
    assert list(reach.since(1_990)) == list(range(990, 1_000))
    assert list(reach.since(2_000)) == []


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2_000)), max_size=900), st.floats(0, 1))
def test_merging_reaches_commutes_and_keeps_the_youngest(samples: list[tuple[int, int]], share: float) -> None:
    cut = round(share * len(samples))
    one, other = Reach(), Reach()
    one.insert(samples[:cut])
    other.insert(samples[cut:])
    left, right = one.copy(), other.copy()
    left.insert(other)
    right.insert(one)
    assert list(left) == list(right)
    assert len(left.codes) == min(len(samples), REACH)
    assert sorted(at for at, _ in left) == sorted(at for at, _ in samples)[-REACH:]


def test_a_day_forgets_hour_by_hour() -> None:
    day = Day()
    for hour in range(30):
        day.insert(hour, sketch_of([CODE] * (hour + 1)).pack())
        day.expire(hour * HOUR_SLICES)
        kept = range(max(0, hour - DAY_HOURS), hour + 1)
        assert day.count == sum(hour + 1 for hour in kept)
        assert Sketch.unpack(day.total) == sketch_of([CODE] * day.count)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60)), max_size=40), st.floats(0, 1))
def test_days_merge_exactly(samples: list[tuple[int, int]], share: float) -> None:
    cut = round(share * len(samples))
    one, other, both = Day(), Day(), Day()
    for index, (hour, code) in enumerate(samples):
        packed = sketch_of([code]).pack()
        both.insert(hour, packed)
        (one if index < cut else other).insert(hour, packed)
    for merged in (one.merged(other), other.merged(one)):
        assert merged.hours == both.hours
        assert (merged.total, merged.count, merged.nbytes) == (both.total, both.count, both.nbytes)
