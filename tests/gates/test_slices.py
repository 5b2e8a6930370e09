"""Counts over a sliding window, against a list of instants."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.gates.slices import Slices

steps = st.lists(
    st.tuples(st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0, 7.0, 40.0, -2.0]), st.integers(0, 1), st.booleans()),
    max_size=60,
)


@given(steps=steps, keep=st.integers(1, 8), width=st.sampled_from([0.5, 1.0, 60.0]))
def test_totals_are_those_of_a_list(steps: list[tuple[float, int, bool]], keep: int, width: float) -> None:
    slices, counted, now, newest = Slices(2, width=width, keep=keep), list[tuple[int, int]](), 100_000.0, 0
    for dt, field, undo in steps:
        now += dt * width
        newest = max(newest, int(now // width))
        index = slices.add(field, now)
        assert index == newest
        if undo:
            slices.take_back(field, index)
        else:
            counted.append((index, field))
        for f in (0, 1):
            inside = [i for i, g in counted if g == f and i > newest - keep]
            assert slices.total(f, now) == len(inside)
            assert slices.newest(f, now, 2) == sum(i > newest - min(2, keep) for i in inside)
        assert len(slices._rows) <= keep


@given(ago=st.integers(0, 6), part=st.sampled_from([0.0, 0.5]), keep=st.integers(1, 5), recent=st.integers(1, 6))
def test_a_slice_ends_where_the_next_begins(ago: int, part: float, keep: int, recent: int) -> None:
    one, other = Slices(1, width=1.0, keep=keep), Slices(1, width=1.0, keep=keep)
    one.add(0, 50.0)
    other.add(0, 50.0)
    assert one.total(0, 50.0 + ago + part) == (ago < keep)
    assert other.newest(0, 50.0 + ago + part, recent) == (ago < min(keep, recent))


@given(ago=st.integers(0, 12))
def test_taking_back_is_silent_once_the_slice_has_left(ago: int) -> None:
    slices = Slices(1, width=1.0, keep=5)
    index = slices.add(0, 50.0)
    slices.add(0, 50.0)
    assert slices.total(0, 50.0 + ago) == (2 if ago < 5 else 0)
    slices.take_back(0, index)
    assert slices.total(0, 50.0 + ago) == (1 if ago < 5 else 0)


def test_an_idle_hour_costs_one_step() -> None:
    slices = Slices(1, width=1.0, keep=3600)
    for second in range(10_000):
        slices.add(0, float(second))
    assert len(slices._rows) == 3600
    assert slices.total(0, 9_999.5) == 3600
    assert slices.total(0, 1e9) == 0
    assert len(slices._rows) == 1
