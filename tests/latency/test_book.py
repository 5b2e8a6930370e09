"""The book as policies and drivers use it: keys, fallback, windows, bounds, threads."""

from __future__ import annotations

import math
import random
import sys
import threading
from array import array
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.core.ports import LatencyBook as Port
from agent_hedge.core.step import StepKey
from agent_hedge.errors import ConfigurationError
from agent_hedge.latency import LatencyBook, size_bucket
from agent_hedge.latency.history import FRESH_ADDS, History
from agent_hedge.latency.window import REACH
from tests.benchmarks.latency import BOUNDS, bytes_per_key, filled, reachable

PLAN = StepKey(node="plan", model="gpt-x", size="<=1k")
ROUGHLY = 0.0101


def fill(
    book: LatencyBook, seconds: float, count: int, now: float = 0.0, *, key: StepKey = PLAN, target: str = "east"
) -> None:
    for _ in range(count):
        book.record(key, target, seconds, now)


def approx(seconds: float) -> object:
    return pytest.approx(seconds, rel=ROUGHLY)


def test_it_is_the_port() -> None:
    port: Port = LatencyBook()
    assert port.learning(PLAN, "east", 0.0) == (0, 200)


# --- learning and thresholds --------------------------------------------------------------------------------------


def test_r16_nothing_is_read_below_200_samples_and_learning_is_said() -> None:
    book = LatencyBook()
    assert book.quantile(PLAN, "east", 0.9, 0.0) is None
    fill(book, 1.0, 37)
    assert book.learning(PLAN, "east", 0.0) == (37, 200)
    fill(book, 1.0, 162)
    assert book.quantile(PLAN, "east", 0.9, 0.0) is None
    assert book.long_quantile(PLAN, "east", 0.9, 0.0) is None
    fill(book, 1.0, 1)
    assert book.quantile(PLAN, "east", 0.9, 0.0) == approx(1.0)
    assert book.long_quantile(PLAN, "east", 0.9, 0.0) == approx(1.0)
    assert book.learning(PLAN, "east", 0.0) == (200, 200)


def test_r16_with_p90_at_140_ms_the_threshold_is_140_ms() -> None:
    book = LatencyBook()
    draw = random.Random(3)
    answers = [
        0.14 * (10 ** draw.uniform(-1, 0) if index % 10 else 1 + draw.expovariate(1)) for index in range(1, 5_001)
    ]
    answers[0] = 0.14
    draw.shuffle(answers)
    for index, seconds in enumerate(answers):
        book.record(PLAN, "east", seconds, index * 0.05)
    exact = sorted(answers)[4_499]
    assert exact == pytest.approx(0.14, rel=0.01)
    assert book.quantile(PLAN, "east", 0.9, 250.0) == pytest.approx(0.14, rel=0.011)
    assert book.quantile(PLAN, "east", 0.9, 250.0) == approx(exact)


def test_a_threshold_is_read_again_after_a_second_or_so_many_samples() -> None:
    book = LatencyBook()
    fill(book, 1.0, 200)
    assert book.quantile(PLAN, "east", 0.5, 0.0) == approx(1.0)
    fill(book, 3.0, FRESH_ADDS - 1)
    assert book.quantile(PLAN, "east", 0.99, 0.99) == approx(1.0), "cached"
    assert book.quantile(PLAN, "east", 0.99, 1.0) == approx(3.0)
    fill(book, 9.0, FRESH_ADDS, 1.0)
    assert book.quantile(PLAN, "east", 0.99, 1.0) == approx(9.0)


def test_different_quantiles_of_one_curve() -> None:
    book = LatencyBook()
    for value in range(1, 1_001):
        book.record(PLAN, "east", value / 100, 0.0)
    for q in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.5, 0.1):
        assert book.quantile(PLAN, "east", q, 0.0) == approx(10 * q)
        assert book.long_quantile(PLAN, "east", q, 0.0) == approx(10 * q)


def test_the_whole_curve_of_a_day() -> None:
    book = LatencyBook()
    assert book.long_curve(PLAN, "east", 0.0) is None
    fill(book, 1.0, 300)
    fill(book, 2.0, 100, 4_000.0)
    curve = book.long_curve(PLAN, "east", 4_000.0)
    assert curve is not None
    assert curve.reached[curve.values.index(curve.seconds(0.5))] == pytest.approx(0.75)
    assert (curve.samples, curve.reached[-1]) == (400, 1.0)


def test_r16_a_target_that_only_fails_at_once_teaches_no_threshold() -> None:
    book = LatencyBook()
    for _ in range(5_000):
        book.record_censored(PLAN, "east", 0.005, 0.0)
    assert book.quantile(PLAN, "east", 0.9, 0.0) is None
    assert book.learning(PLAN, "east", 0.0) == (199, 200)
    fill(book, 2.0, 20)
    assert book.quantile(PLAN, "east", 0.9, 0.0) == approx(2.0)
    assert book.learning(PLAN, "east", 0.0) == (5_020, 200)


def test_r16_cancelled_and_failed_attempts_count_as_at_least() -> None:
    book = LatencyBook()
    fill(book, 1.0, 900)
    fill(book, 4.0, 30)
    for _ in range(70):
        book.record_censored(PLAN, "east", 2.0, 0.0)
    found = book.threshold(PLAN, "east", 0.95, 0.0)
    assert found == (approx(4.0), True, False, 1_000, "size")


def test_r16_what_the_curve_does_not_reach_is_said_to_be_a_lower_bound() -> None:
    book = LatencyBook()
    fill(book, 1.0, 900)
    for _ in range(100):
        book.record_censored(PLAN, "east", 2.0, 0.0)
    assert book.threshold(PLAN, "east", 0.95, 0.0) == (approx(2.0), False, False, 1_000, "size")


def test_r16_cold_first_calls_have_their_own_key() -> None:
    book = LatencyBook()
    fill(book, 1.0, 200)
    for _ in range(300):
        book.record(PLAN, "east", 30.0, 0.0, cold=True)
    assert book.quantile(PLAN, "east", 0.99, 0.0) == approx(1.0)
    assert book.threshold(PLAN, "east", 0.5, 0.0, cold=True) == (approx(30.0), True, False, 300, "cold")
    assert book.learning(PLAN, "east", 0.0, cold=True) == (300, 200)
    assert book.quantile(StepKey(node="other"), "east", 0.99, 0.0) == approx(1.0), "no level holds a cold call"


# --- windows ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", [0.0, 7.0, 29.9, 1e9])
def test_r16_with_200_samples_in_5_minutes_older_ones_do_not_count(offset: float) -> None:
    book = LatencyBook()
    fill(book, 9.0, 10_000, offset)
    fill(book, 1.0, 200, offset + 331.0)
    assert book.quantile(PLAN, "east", 0.99, offset + 331.0) == approx(1.0)
    assert book.quantile(PLAN, "east", 0.99, offset + 630.9) == approx(1.0)


def test_all_of_the_last_5_minutes_counts() -> None:
    book = LatencyBook()
    for index in range(301):
        book.record(PLAN, "east", 9.0 if index < 20 else 1.0, float(index))
    assert book.quantile(PLAN, "east", 0.94, 300.0) == approx(9.0), "20 of 301 are 6.6 %"


def test_r16_a_thin_window_reaches_back_to_the_last_500() -> None:
    book = LatencyBook()
    fill(book, 9.0, 600, 0.0)
    fill(book, 2.0, 400, 60.0)
    fill(book, 1.0, 150, 4_000.0)
    found = book.threshold(PLAN, "east", 0.99, 4_000.0)
    assert found == (approx(2.0), True, False, 500, "size")
    assert book.quantile(PLAN, "east", 0.30, 4_000.0) == approx(1.0)


def test_the_reach_ends_after_24_hours_and_the_last_threshold_stays() -> None:
    book = LatencyBook()
    fill(book, 2.0, 500)
    day = 24 * 3_600.0
    assert book.threshold(PLAN, "east", 0.9, day) == (approx(2.0), True, False, 500, "size")
    later = book.threshold(PLAN, "east", 0.9, day + 60.0)
    assert later == (approx(2.0), True, True, 500, "size"), "stale, and not 0"
    assert book.quantile(PLAN, "east", 0.9, 3 * day) == approx(2.0)
    assert book.long_quantile(PLAN, "east", 0.9, 3 * day) is None, "it was never read while it was known"
    fill(book, 5.0, 200, 3 * day)
    assert book.threshold(PLAN, "east", 0.9, 3 * day + 1.0) == (approx(5.0), True, False, 200, "size")


def test_the_long_book_holds_24_hours_and_its_last_value_stays() -> None:
    book = LatencyBook()
    hour = 3_600.0
    fill(book, 8.0, 2_000, 0.0)
    fill(book, 1.0, 1_000, 10 * hour)
    assert book.quantile(PLAN, "east", 0.6, 10 * hour) == approx(1.0)
    assert book.long_quantile(PLAN, "east", 0.6, 10 * hour) == approx(8.0)
    assert book.long_quantile(PLAN, "east", 0.6, 25.01 * hour) == approx(1.0)
    assert book.threshold(PLAN, "east", 0.6, 90 * hour, long=True) == (approx(1.0), True, True, 1_000, "size")


def test_a_clock_that_goes_slightly_back_and_idle_gaps_are_tolerated() -> None:
    book = LatencyBook()
    fill(book, 1.0, 100, 1_000.0)
    fill(book, 1.0, 100, 985.0)
    assert book.quantile(PLAN, "east", 0.5, 970.0) == approx(1.0)
    fill(book, 3.0, 200, 50_000.0)
    assert book.quantile(PLAN, "east", 0.01, 50_000.0) == approx(3.0)


@pytest.mark.parametrize("now", [math.nan, math.inf, -math.inf])
def test_r20_a_time_that_cannot_be_is_refused(now: float) -> None:
    book = LatencyBook()
    for call in (lambda: fill(book, 1.0, 1, now), lambda: book.learning(PLAN, "east", now)):
        with pytest.raises(ConfigurationError, match="finite number of seconds"):
            call()


# --- levels -------------------------------------------------------------------------------------------------------


def test_r16_a_key_that_is_being_learnt_is_answered_by_the_next_coarser_one() -> None:
    book = LatencyBook()
    larger = StepKey(node="plan", model="gpt-x", size="<=64k")
    node = StepKey(node="summarise", model="gpt-x", size="<=1k")
    model = StepKey(node="plan", model="gpt-y", size="<=1k")
    fill(book, 1.0, 250)
    fill(book, 5.0, 50, key=larger)
    assert book.threshold(larger, "east", 0.9, 0.0) == (approx(5.0), True, False, 300, "node")
    assert book.threshold(PLAN, "east", 0.9, 0.0) == (approx(1.0), True, False, 250, "size")
    fill(book, 7.0, 100, key=node)
    assert book.threshold(node, "east", 0.95, 0.0) == (approx(7.0), True, False, 400, "model")
    fill(book, 20.0, 100, key=model)
    assert book.threshold(model, "east", 0.9, 0.0) == (approx(20.0), True, False, 500, "target")
    fill(book, 5.0, 150, key=larger)
    assert book.threshold(larger, "east", 0.5, 0.0) == (approx(5.0), True, False, 200, "size")
    assert book.learning(node, "east", 0.0) == (100, 200)
    assert book.learning(StepKey(node="new", model="gpt-x"), "east", 0.0) == (550, 200)


def test_r16_targets_share_nothing() -> None:
    book = LatencyBook()
    for target in ("us-east", "us-east/replica-1", "eu-west", ""):
        fill(book, 9.0, 1_000, target=target)
    for target in ("us", "us-east/replica-2", "eu", "east"):
        assert book.quantile(PLAN, target, 0.9, 0.0) is None
        assert book.long_quantile(PLAN, target, 0.9, 0.0) is None
        assert book.learning(PLAN, target, 0.0) == (0, 200)


def test_r16_models_and_nodes_with_200_samples_share_nothing() -> None:
    book = LatencyBook()
    keys = [StepKey(node=n, model=m, size=s) for n, m, s in product("ab", "xy", ("<=1k", "<=2k"))]
    for seconds, key in enumerate(keys, start=1):
        fill(book, float(seconds), 200, key=key)
    for seconds, key in enumerate(keys, start=1):
        assert book.quantile(key, "east", 0.01, 0.0) == book.quantile(key, "east", 0.99, 0.0) == approx(seconds)


def test_names_are_never_glued_together() -> None:
    book = LatencyBook()
    fill(book, 1.0, 200, key=StepKey(node="a/b", model="c"), target="t")
    assert book.quantile(StepKey(node="a", model="b/c"), "t/a", 0.5, 0.0) is None
    assert book.threshold(StepKey(node="a", model="c"), "t", 0.5, 0.0) == (approx(1.0), True, False, 200, "size")


keys = st.builds(StepKey, node=st.sampled_from("ab"), model=st.sampled_from("xy"), size=st.sampled_from(["", "1"]))


@given(st.lists(st.tuples(keys, st.sampled_from("st"), st.integers(1, 60), st.integers(0, 400)), max_size=25))
def test_every_level_holds_what_was_recorded_below_it(
    notes: list[tuple[StepKey, str, int, int]],
) -> None:
    """Whatever the order in which keys appear, and so in which levels stop being shared."""
    book = LatencyBook()
    now = 0.0
    for key, target, count, later in notes:
        now += later
        fill(book, 1.0, count, now, key=key, target=target)
    book.learning(PLAN, "", now)
    parts = {level: history for levels, history in book.snapshot() for level in levels}
    for level, history in parts.items():
        below = [
            count
            for key, target, count, _ in notes
            if level in {(target,), (target, key.model), (target, key.node, key.model), (target, *_names(key))}
        ]
        history.advance(math.floor(now / 30))
        assert history.long_count == history.adds == sum(below)
        assert len(history.reach.codes) == min(sum(below), len(history.reach.codes))


def _names(key: StepKey) -> tuple[str, str, str]:
    return key.node, key.model, key.size


def test_late_batches_are_counted_where_they_belong() -> None:
    """A quiet key's batch lies unread while a busy neighbour moves their common level on."""
    book = LatencyBook()
    quiet = StepKey(node="quiet", model="gpt-x")
    fill(book, 9.0, 100, 0.0, key=quiet)
    for minute in range(10):
        fill(book, 1.0, 300, 60.0 * minute)
    newcomer = StepKey(node="new", model="gpt-x")
    assert book.quantile(newcomer, "east", 0.999, 540.0) == approx(1.0), "9 minutes old"
    assert book.threshold(newcomer, "east", 0.99, 540.0, long=True) == (approx(9.0), True, False, 3_100, "model")


def test_a_batch_one_slice_late_still_counts_for_the_trigger() -> None:
    book = LatencyBook()
    fill(book, 9.0, 100, 0.0, key=StepKey(node="quiet", model="gpt-x"))
    fill(book, 1.0, 150, 31.0)
    newcomer = StepKey(node="new", model="gpt-x")
    assert book.threshold(newcomer, "east", 0.9, 31.0) == (approx(9.0), True, False, 250, "model")
    fill(book, 1.0, 300, 400.0)
    assert book.threshold(newcomer, "east", 0.999, 400.0) == (approx(1.0), True, False, 300, "model")


def test_late_batches_never_pile_up() -> None:
    """Counting 20 slices at once would stall the loop of whoever records next (16 ms, measured)."""
    history = History(0, 1)
    for number in range(1, 40):
        history.add(array("H", [100] * 5), number)
        history.add(array("H", [200] * 5), number - 1)
        assert list(history.late) == [number - 1]
    history.add(array("H", [200] * (REACH + 1)), 38)
    assert history.late == {}
    assert history.long_count == history.adds == 39 * 10 + REACH + 1


def test_levels_with_the_same_samples_are_one_history() -> None:
    book = LatencyBook()
    fill(book, 1.0, 1)
    assert len(book.snapshot()) == 1
    fill(book, 1.0, 1, key=StepKey(node="plan", model="gpt-x", size="<=2k"))
    assert [len(levels) for levels, _ in book.snapshot()] == [1, 1, 3], "two sizes; node, model and target"
    fill(book, 1.0, 1, key=StepKey(node="plan", model="gpt-y"))
    assert [len(levels) for levels, _ in book.snapshot()] == [1, 1, 3, 2, 1]
    twin = LatencyBook()
    twin.merge(book)
    assert [len(levels) for levels, _ in twin.snapshot()] == [1, 1, 3, 2, 1]


# --- bounds -------------------------------------------------------------------------------------------------------


def test_the_least_recently_used_key_goes() -> None:
    book = LatencyBook(max_keys=2)
    one, two, three = (StepKey(node=name) for name in ("one", "two", "three"))
    fill(book, 1.0, 200, key=one)
    fill(book, 2.0, 200, key=two)
    book.record(one, "east", 1.0, 0.0)
    fill(book, 3.0, 200, key=three)
    assert len(book) == 2
    assert book.threshold(one, "east", 0.5, 0.0) == (approx(1.0), True, False, 201, "size")
    assert book.threshold(three, "east", 0.5, 0.0) == (approx(3.0), True, False, 200, "size")
    found = book.threshold(two, "east", 0.5, 0.0)
    assert found is not None
    assert found.level == "model", "its own history is gone, the common one still knows it"
    assert found.samples == 601


def test_a_level_goes_with_the_last_key_below_it() -> None:
    book = LatencyBook(max_keys=1)
    fill(book, 1.0, 500, target="gone")
    fill(book, 1.0, 10, target="here")
    assert [levels[-1] for levels, _ in book.snapshot()] == [("here",)]
    empty = LatencyBook(max_keys=1)
    fill(empty, 1.0, 10, target="here")
    empty.learning(PLAN, "here", 0.0)
    assert book.nbytes == empty.nbytes


@pytest.mark.parametrize("targets", [1, 40])
def test_bytes_are_bounded(targets: int) -> None:
    book = LatencyBook(max_bytes=200_000)
    draw = random.Random(1)
    for index in range(20_000):
        key = StepKey(node=str(draw.randrange(50)), model="m")
        book.record(key, str(draw.randrange(targets)), draw.lognormvariate(0, 1), index * 0.1)
        assert book.nbytes <= 200_000 + 20_000
    assert reachable(book) < 1.25 * 200_000
    assert len(book) > 1


@pytest.mark.parametrize("keys", [1, 20])
def test_the_estimate_of_bytes_is_honest(keys: int) -> None:
    book = LatencyBook()
    draw = random.Random(1)
    for index in range(30_000):
        key = StepKey(node="n" * 20 + str(draw.randrange(keys)), model="m")
        book.record(key, "east", draw.lognormvariate(0, 1), index * 0.1)
        if index % 100 == 0:
            book.quantile(key, "east", 0.9, index * 0.1)
            book.long_quantile(key, "east", 0.9, index * 0.1)
    assert book.nbytes == pytest.approx(reachable(book), rel=0.2)


def test_a_key_fits_in_its_bound() -> None:
    assert bytes_per_key() <= BOUNDS["bytes_per_key"]
    assert reachable(filled()) > 10_000, "the walk sees the arrays"


@pytest.mark.parametrize("bounds", [{"max_keys": 0}, {"max_bytes": 0}, {"max_keys": -1}])
def test_r20_a_book_without_room_is_refused(bounds: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError, match="needs room"):
        LatencyBook(**bounds)


# --- bad input, threads, sizes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -math.inf, -1.0])
@pytest.mark.parametrize("cold", [False, True])
def test_r20_latencies_that_cannot_be_are_refused_and_leave_no_trace(seconds: float, cold: bool) -> None:
    book = LatencyBook()
    for note in (book.record, book.record_censored):
        with pytest.raises(ConfigurationError, match="finite number of seconds"):
            note(PLAN, "east", seconds, 0.0, cold=cold)
    assert len(book) == 0


@pytest.mark.parametrize("samples", [0, 500])
@pytest.mark.parametrize("q", [0.0, 1.0, -1.0, 2.0, math.nan])
def test_r20_quantiles_that_cannot_be_are_refused(q: float, samples: int) -> None:
    book = LatencyBook()
    fill(book, 1.0, samples)
    for ask in (book.quantile, book.long_quantile, book.threshold):
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="between 0 and 1"):
                ask(PLAN, "east", q, 0.0)


def test_threads_lose_nothing() -> None:
    book, other = LatencyBook(), LatencyBook()
    fill(other, 1.0, 50)
    workers, each, merges = 6, 3_000, 5
    start = threading.Barrier(workers + 1)
    failures: list[BaseException] = []

    def work(worker: int) -> None:
        try:
            start.wait()
            for index in range(each):
                now = index / 20
                key = StepKey(node=str(index % 3), model="m")
                book.record(key, "east", (1 + worker) * 1.002**index, now)
                found = book.quantile(key, "east", 0.5, now)
                assert found is None or 0.9 < found < 1.1 * workers * 1.002**each
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        start.wait()
        for _ in range(merges):
            book.merge(other)
            LatencyBook.load(book.dump())
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert failures == []
    book.learning(PLAN, "east", each / 20)
    held = {levels[-1]: history for levels, history in book.snapshot()}[("east",)]
    assert held.long_count == held.adds == workers * each + merges * 50


@pytest.mark.parametrize(
    ("tokens", "bucket"),
    [
        (0, "<=512"),
        (1, "<=512"),
        (512, "<=512"),
        (513, "<=1k"),
        (1_024, "<=1k"),
        (1_025, "<=2k"),
        (131_072, "<=128k"),
        (262_144, "<=256k"),
        (262_145, ">256k"),
        (10**9, ">256k"),
    ],
)
def test_prompt_sizes_fall_in_doubling_buckets(tokens: int, bucket: str) -> None:
    assert size_bucket(tokens) == bucket


def test_r20_a_prompt_of_negative_size_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="0 or more"):
        size_bucket(-1)
