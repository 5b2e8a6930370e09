"""Books survive processes: as bytes, as rows, as a sum of two, and from a CSV file."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.core.step import StepKey
from agent_hedge.errors import ConfigurationError
from agent_hedge.latency import LatencyBook

PLAN = StepKey(node="plan", model="gpt-x", size="<=1k")

keys = st.builds(StepKey, node=st.sampled_from("ab"), model=st.sampled_from("xy"), size=st.sampled_from(["", "1"]))
notes = st.lists(
    st.tuples(keys, st.sampled_from("st"), st.floats(1e-4, 100.0), st.floats(0, 90_000), st.booleans(), st.booleans()),
    max_size=40,
)
Note = tuple[StepKey, str, float, float, bool, bool]


def book_of(notes: list[Note]) -> LatencyBook:
    book = LatencyBook()
    for key, target, seconds, now, completed, cold in sorted(notes, key=lambda note: note[3]):
        (book.record if completed else book.record_censored)(key, target, seconds, now, cold=cold)
    return book


def near(seconds: float) -> Any:
    return pytest.approx(seconds, rel=0.0101)


def facts(book: LatencyBook, now: float = 0.0) -> dict[tuple[str, ...], Any]:
    """Everything a book holds, by level, with all of it moved to the slice of `now`."""
    found: dict[tuple[str, ...], Any] = {}
    for levels, history in book.snapshot():
        history.advance(math.floor(now / 30))
        for level in levels:
            window, day = history.window, history.day
            found[level] = (window.number, list(window.slices()), day.hours, day.total, sorted(history.reach))
    return found


# --- merging ------------------------------------------------------------------------------------------------------


@given(notes, st.floats(0, 1))
def test_two_books_merge_to_the_book_that_saw_it_all(found: list[Note], share: float) -> None:
    cut = round(share * len(found))
    one, other, both = book_of(found[:cut]), book_of(found[cut:]), book_of(found)
    left, right = LatencyBook.load(one.dump()), LatencyBook.load(other.dump())
    left.merge(other)
    right.merge(one)
    assert left.dump() == right.dump(), "the order does not matter"
    end = 90_000.0
    assert facts(left, end) == facts(both, end)
    assert len(left) == len(both)


def test_a_merged_book_goes_on_recording_at_every_level() -> None:
    one, other = LatencyBook(), LatencyBook()
    larger = StepKey(node="plan", model="gpt-x", size="<=2k")
    for _ in range(150):
        one.record(PLAN, "east", 1.0, 0.0)
        other.record(larger, "east", 4.0, 0.0)
    one.merge(other)
    assert one.quantile(PLAN, "east", 0.9, 0.0) == pytest.approx(4.0, rel=0.0101)
    for _ in range(50):
        one.record(PLAN, "east", 1.0, 0.0)
    assert one.threshold(PLAN, "east", 0.9, 1.0) == (near(1.0), True, False, 200, "size")
    found = one.threshold(StepKey(node="plan", model="gpt-x"), "east", 0.5, 1.0)
    assert found is not None
    assert (found.samples, found.level) == (350, "node")
    assert other.learning(larger, "east", 0.0) == (150, 200), "the other book is as it was"


def test_a_merge_is_seen_at_once() -> None:
    one, other = LatencyBook(), LatencyBook()
    for _ in range(300):
        one.record(PLAN, "east", 1.0, 0.0)
        other.record(PLAN, "east", 4.0, 0.0)
    assert one.quantile(PLAN, "east", 0.9, 0.0) == one.long_quantile(PLAN, "east", 0.9, 0.0) == near(1.0)
    one.merge(other)
    assert one.quantile(PLAN, "east", 0.9, 0.0) == one.long_quantile(PLAN, "east", 0.9, 0.0) == near(4.0)


def test_a_book_merged_with_itself_counts_twice() -> None:
    book = LatencyBook()
    for _ in range(100):
        book.record(PLAN, "east", 1.0, 0.0)
    book.merge(book)
    assert book.learning(PLAN, "east", 0.0) == (200, 200)


# --- bytes --------------------------------------------------------------------------------------------------------


@given(notes)
def test_a_book_survives_as_bytes(found: list[Note]) -> None:
    book = book_of(found)
    again = LatencyBook.load(book.dump())
    assert facts(again) == facts(book)
    assert again.dump() == book.dump()
    assert (len(again), again.nbytes) == (len(book), LatencyBook.load(again.dump()).nbytes)
    for key, target, *_ in found:
        assert again.learning(key, target, 90_000.0) == book.learning(key, target, 90_000.0)


def test_a_book_is_moved_to_the_clock_that_loads_it() -> None:
    book = LatencyBook()
    for _ in range(300):
        book.record(PLAN, "east", 1.0, 86_400.0 * 30)
    data = book.dump(epoch=1_700_000_000.0 - 86_400.0 * 30)
    again = LatencyBook.load(data, epoch=1_700_000_100.0 - 50.0)
    assert again.threshold(PLAN, "east", 0.5, 50.0) == (near(1.0), True, False, 300, "size")
    assert again.learning(PLAN, "east", 86_300.0) == (300, 200)
    assert again.learning(PLAN, "east", 86_400.0) == (0, 200), "its samples are no younger than they were"


def test_the_hours_of_a_day_move_with_the_clock() -> None:
    book = LatencyBook()
    for index in range(300):
        book.record(PLAN, "east", 1.0, 1e6 + index * 30.0)
    again = LatencyBook.load(book.dump(epoch=-1e6), epoch=0.0)
    assert again.threshold(PLAN, "east", 0.5, 9_000.0, long=True) == (near(1.0), True, False, 300, "size")
    assert again.learning(PLAN, "east", 9_000.0) == (300, 200)
    gone = again.threshold(PLAN, "east", 0.5, 9_000.0 + 25 * 3_600.0, long=True)
    assert gone is not None
    assert gone.stale


def test_a_book_of_10_000_samples_is_small() -> None:
    book = LatencyBook()
    for index in range(10_000):
        book.record(PLAN, "east", 0.5 + index % 97 / 50, index * 0.03)
    assert len(book.dump()) < 8 * 1024


def test_loading_keeps_within_the_bounds() -> None:
    book = LatencyBook()
    for index in range(20):
        book.record(StepKey(node=str(index)), "east", 1.0, index * 60.0)
    small = LatencyBook.load(book.dump(), max_keys=3)
    assert len(small) == 3
    assert small.learning(StepKey(node="19"), "east", 1_140.0) == (1, 200), "the youngest stay"
    assert {level for levels, _ in small.snapshot() for level in levels if len(level) == 3} == {
        ("east", str(index), "") for index in (17, 18, 19)
    }


def altered(change: Callable[[dict[str, Any]], object]) -> bytes:
    book = LatencyBook()
    for index in range(300):
        book.record(PLAN, "east", 1.0, index * 1.0)
    state = json.loads(zlib.decompress(book.dump()))
    change(state)
    return zlib.compress(json.dumps(state).encode())


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"garbage",
        zlib.compress(b"garbage"),
        zlib.compress(b"[]"),
        LatencyBook().dump()[:-3],
        altered(lambda state: state.update(format="other")),
        altered(lambda state: state.update(version=2)),
        altered(lambda state: state.update(accuracy=0.02)),
        altered(lambda state: state.pop("parts")),
        altered(lambda state: state.update(epoch="now")),
        altered(lambda state: state["parts"][0].update(levels=[])),
        altered(lambda state: state["parts"][0].update(levels=[["east"]])),
        altered(lambda state: state["parts"][0].update(levels=[[1, 2, 3, 4]])),
        altered(lambda state: state["parts"][0].update(levels=["east"])),
        altered(lambda state: state["parts"][0].update(levels=[[1, 2, 3, 4], [1, 2, 3], [1, 3], [1]])),
        altered(lambda state: state["parts"][0]["slices"][0].pop()),
        altered(lambda state: state["parts"][0]["slices"][0].__setitem__(1, "~")),
        altered(lambda state: state["parts"][0]["hours"].append([0, "", ""])),
        altered(lambda state: state["parts"][0]["reach"][0].append(1)),
        altered(lambda state: state["parts"][0]["reach"][0].__setitem__(0, 9_999)),
        altered(lambda state: state["parts"][0]["reach"][1].__setitem__(0, 1 << 40)),
        altered(lambda state: state["parts"][0].update(number=None)),
    ],
)
def test_r20_what_is_not_a_book_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"book|levels|counts|reach"):
        LatencyBook.load(data)


# --- rows ---------------------------------------------------------------------------------------------------------


def test_rows_carry_window_and_day_to_another_process() -> None:
    book = LatencyBook()
    for index in range(12_000):
        book.record(PLAN, "east", 8.0 if index < 6_000 else 1.0, index * 1.0)
        if index % 10 == 0:
            book.record_censored(PLAN, "east", 0.5, index * 1.0)
    rows = book.rows(epoch=1_700_000_000.0)
    assert all(isinstance(text, str) and isinstance(start, int) for text, start, _ in rows)
    assert {json.loads(text)[0] for text, _, _ in rows} == {30, 3600}
    assert len({(text, start) for text, start, _ in rows}) == len(rows)
    again = LatencyBook()
    assert again.absorb(rows, 12_000.0 + 77.0, epoch=1_700_000_000.0 - 77.0) == len(rows)
    for q in (0.1, 0.5, 0.9):
        for long in (False, True):
            mine = book.threshold(PLAN, "east", q, 11_999.0, long=long)
            theirs = again.threshold(PLAN, "east", q, 12_000.0 + 76.0, long=long)
            assert mine is not None
            assert theirs is not None
            assert theirs.seconds == mine.seconds
            assert theirs.samples == pytest.approx(mine.samples, abs=40)


def test_after_a_restart_the_day_answers_until_the_window_is_filled_again() -> None:
    book = LatencyBook()
    for index in range(500):
        book.record(PLAN, "east", 2.0, index * 15.0)
    again = LatencyBook()
    again.absorb(book.rows(), 9_000.0)  # the two samples of the slice still open are in no hour yet
    assert again.threshold(PLAN, "east", 0.9, 9_000.0) == (near(2.0), True, False, 498, "size")
    assert again.threshold(StepKey(node="x"), "east", 0.9, 9_000.0) is not None, "coarser levels are filled too"


def test_only_rows_that_changed_are_asked_for() -> None:
    book = LatencyBook()
    for index in range(200):
        book.record(PLAN, "east", 2.0, index * 1.0)
    fresh = book.rows(epoch=1_000.0, since=1_000.0 + 180.0)
    assert [(json.loads(text)[0], start) for text, start, _ in fresh] == [(30, 1_180), (3600, 1_000)]
    assert json.loads(fresh[0][0]) == [30, "east", "plan", "gpt-x", "<=1k"]


def test_cold_rows_stay_cold() -> None:
    book, again = LatencyBook(), LatencyBook()
    book.record(PLAN, "east", 2.0, 0.0, cold=True)
    again.absorb(book.rows(), 0.0)
    assert again.learning(PLAN, "east", 0.0, cold=True) == (1, 200)
    assert again.learning(PLAN, "east", 0.0) == (0, 200)


@pytest.mark.parametrize(
    "text", ["", "plan", "3", "[30]", '[30,"a","b","c"]', '[31,"a","b","c","d"]', '[30,"a","b","c",4]']
)
def test_r20_a_malformed_row_is_refused(text: str) -> None:
    book = LatencyBook()
    book.record(PLAN, "east", 1.0, 0.0)
    good = book.rows()[0]
    for row in ((text, 0, good[2]), (good[0], 0, b"garbage"), (good[0], 0, good[2][:-1])):
        with pytest.raises(ConfigurationError, match="latency row"):
            LatencyBook().absorb([row], 0.0)


# --- CSV ----------------------------------------------------------------------------------------------------------


def csv_file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "ttft.csv"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(("unit", "scale"), [("ttft_ms", 1_000), ("ttft_s", 1)])
def test_a_csv_primes_a_book(tmp_path: Path, unit: str, scale: int) -> None:
    rows = "".join(f"{index},{0.01 * index * scale}\n" for index in range(1, 401))
    book = LatencyBook()
    assert book.prime_csv(csv_file(tmp_path, f"\ufeffturn,{unit}\n{rows}"), 5e5, key=PLAN, target="east") == 400
    assert book.quantile(PLAN, "east", 0.9, 5e5) == pytest.approx(3.6, rel=0.0101)
    assert book.quantile(PLAN, "east", 0.9, 5e5 + 80_000) == pytest.approx(3.6, rel=0.0101), "the reach keeps it"


def test_columns_name_the_keys(tmp_path: Path) -> None:
    text = "target,node,model,size,ttft_s\n" + "east,plan,gpt-x,<=1k,1.5\n" * 200 + "west,,,,2.5\n" * 200
    book = LatencyBook()
    assert book.prime_csv(csv_file(tmp_path, text), 0.0, key=StepKey(node="n", model="m")) == 400
    assert book.quantile(PLAN, "east", 0.5, 0.0) == pytest.approx(1.5, rel=0.0101)
    found = book.threshold(StepKey(node="n", model="m"), "west", 0.5, 0.0)
    assert found == (near(2.5), True, False, 200, "size")
    assert len(book) == 2


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"ttft\.csv: no column ttft_s or ttft_ms among none"),
        ("a,b\n1,2\n", r"ttft\.csv: no column ttft_s or ttft_ms among a, b"),
        ("ttft_s\n1.0\nfast\n", r"ttft\.csv, line 3: ttft_s is 'fast'"),
        ("ttft_s,x\n1.0,\n,\n", r"ttft\.csv, line 3: ttft_s is ''"),
        ("x,ttft_s\n1,1.0\n1\n", r"ttft\.csv, line 3: ttft_s is None"),
        ("ttft_ms\n-1\n", r"ttft\.csv, line 2: ttft_ms is '-1'"),
        ("ttft_ms\nnan\n", r"ttft\.csv, line 2: ttft_ms is 'nan'"),
    ],
)
def test_r20_a_csv_without_what_it_needs_is_refused_whole(tmp_path: Path, text: str, complaint: str) -> None:
    book = LatencyBook()
    with pytest.raises(ConfigurationError, match=complaint):
        book.prime_csv(csv_file(tmp_path, text), 0.0, key=PLAN, target="east")
    assert len(book) == 0


def test_r20_a_csv_without_a_target_needs_one(tmp_path: Path) -> None:
    path = csv_file(tmp_path, "ttft_s\n1.0\n")
    with pytest.raises(ConfigurationError, match="name the target"):
        LatencyBook().prime_csv(path, 0.0, key=PLAN)


def test_latencies_without_a_node_start_every_step_of_their_target(tmp_path: Path) -> None:
    book = LatencyBook()
    book.prime_csv(csv_file(tmp_path, "target,ttft_s\n" + "east,1.0\n" * 300), 0.0)
    assert book.quantile(PLAN, "east", 0.9, 0.0) == pytest.approx(1.0, rel=0.01)
    assert book.quantile(PLAN, "west", 0.9, 0.0) is None
