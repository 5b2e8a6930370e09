"""The serving model on a clock of numbers: exact instants, exact accounts."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.profiles import (
    SHARED_ENDPOINT,
    Draw,
    Fixed,
    Lognormal,
    Profile,
    Recorded,
    Spells,
    Stragglers,
    parse,
)
from agent_hedge.testing.serving import Ending, Fact, Hardware, Notice, Phase, Record, Serving, Stall

SHARED_CHAINS = Path(__file__).parents[3] / "shared/data/ttft_chains_baseten_gemma4_31b.csv"

HALF_A_SECOND = Fixed(0.5)
ONE_SLOT = Hardware(slots=1, blocks=100, block_tokens=10, prefill_rate=1000, prefill_step=100, decode_rate=10)
"""250 prompt tokens take 0.1 + 0.1 + 0.05 s, a token 0.1 s."""


def one_slot(profile: Profile = HALF_A_SECOND, **changes: Any) -> Serving:
    fields = {name: getattr(ONE_SLOT, name) for name in ONE_SLOT.__dataclass_fields__}
    return Serving(profile, Hardware(**fields | changes))


def arrive(serving: Serving, name: str, now: float, prompt: int = 250, answer: int = 3) -> Record:
    return serving.arrive(name, now, prompt_tokens=prompt, completion_tokens=answer)


def run_out(serving: Serving) -> list[Fact]:
    facts = serving.advance(0)
    while serving.due is not None:
        facts += serving.advance(serving.due)
    return facts


# Clocks


def test_a_request_goes_through_prefill_extra_time_and_decode() -> None:
    serving = one_slot()
    record = arrive(serving, "a", 1.0)
    assert serving.due == 1.1
    facts = run_out(serving)
    assert facts == [
        Fact("a", 1.75, 1),
        Fact("a", 1.85, 1),
        Fact("a", 1.95, 1),
        Fact("a", 1.95, 0, Ending.COMPLETED),
    ]
    assert (record.prefill_started, record.first_token, record.finished, record.released) == (1.0, 1.75, 1.95, 1.95)
    assert (record.prompt_computed, record.completion_computed, record.computed_after_disconnect) == (250, 3, 0)
    assert record.ttft == 0.75
    assert record.ending is Ending.COMPLETED


def test_nothing_is_due_in_an_empty_engine() -> None:
    serving = one_slot()
    assert serving.due is None
    assert serving.advance(1e9) == []


def test_speedup_compresses_every_duration() -> None:
    serving = one_slot(speedup=10)
    arrive(serving, "a", 1.0)
    assert [fact.at for fact in run_out(serving)] == [1.075, 1.085, 1.095, 1.095]


def test_decode_step_computes_several_tokens_at_once() -> None:
    serving = one_slot(decode_step=4)
    arrive(serving, "a", 0.0, answer=6)
    assert [(fact.at, fact.tokens) for fact in run_out(serving)][:3] == [(0.75, 1), (1.15, 4), (1.25, 1)]


def test_infinite_rates_leave_the_profile_alone() -> None:
    serving = one_slot(Fixed(0.25), prefill_rate=math.inf, decode_rate=math.inf)
    record = arrive(serving, "a", 0.0, answer=100)
    run_out(serving)
    assert (record.ttft, record.finished) == (0.25, 0.25)


def test_crowding_slows_each_step_by_those_beside_it() -> None:
    serving = one_slot(Fixed(0), slots=3, crowding=2.0)
    alone = arrive(serving, "a", 0.0, prompt=100, answer=1)
    run_out(serving)
    assert alone.ttft == 0.1
    pair = [arrive(serving, name, 10.0, prompt=100, answer=1) for name in "bc"]
    run_out(serving)
    assert [record.ttft for record in pair] == pytest.approx([0.1, 0.15])  # b's chunk began while it was alone


@pytest.mark.parametrize(("after", "instants"), [(0, [2.75, 2.85, 2.95]), (1, [0.75, 2.85, 2.95])])
def test_a_stall_pauses_once(after: int, instants: list[float]) -> None:
    serving = one_slot()
    serving.arrive("a", 0.0, prompt_tokens=250, completion_tokens=3, stall=Stall(after, 2.0))
    assert [fact.at for fact in run_out(serving) if fact.tokens] == instants


@pytest.mark.parametrize(("after", "computed", "released"), [(0, 0, 0.75), (2, 2, 0.85), (3, 3, 0.95)])
def test_an_engine_that_breaks_ends_at_that_token(after: int, computed: int, released: float) -> None:
    serving = one_slot(decode_step=2)
    record = serving.arrive("a", 0.0, prompt_tokens=250, completion_tokens=9, breaks_after=after)
    run_out(serving)
    assert (record.completion_computed, record.released, record.ending) == (computed, released, Ending.FAILED)
    assert serving.free_blocks == 100


# Slots, queue, blocks


def test_the_queue_is_served_in_order_of_arrival() -> None:
    serving = one_slot()
    first, second, third = (arrive(serving, name, 0.0) for name in "abc")
    assert (serving.running, serving.waiting) == (1, 2)
    assert [record.phase for record in (first, second)] == [Phase.PREFILL, Phase.QUEUED]
    run_out(serving)
    assert [record.prefill_started for record in (first, second, third)] == [0.0, 0.95, 1.9]
    assert (serving.running, serving.waiting) == (0, 0)


def test_blocks_hold_prompt_and_answer_until_the_end() -> None:
    serving = one_slot(slots=8)
    arrive(serving, "a", 0.0, prompt=595, answer=6)  # 601 tokens: 61 blocks
    assert serving.free_blocks == 39
    assert serving.kv_usage == pytest.approx(0.61)
    waiting = arrive(serving, "b", 0.0, prompt=390, answer=10)
    assert (serving.running, serving.waiting) == (1, 1)
    facts = run_out(serving)
    assert waiting.prefill_started == next(fact.at for fact in facts if fact.ending)
    assert serving.free_blocks == 100


def test_a_request_larger_than_the_cache_is_rejected() -> None:
    serving = one_slot()
    record = arrive(serving, "a", 0.0, prompt=1000, answer=1)
    assert (record.ending, record.released, serving.waiting) == (Ending.REJECTED, None, 0)
    assert serving.totals.endings[Ending.REJECTED] == 1


def test_a_full_queue_rejects_but_a_free_slot_never_does() -> None:
    serving = one_slot(queue_limit=0)
    assert arrive(serving, "a", 0.0).ending is None
    assert arrive(serving, "b", 0.0).ending is Ending.REJECTED


def test_counters_know_a_prompt_at_its_first_output() -> None:
    serving = one_slot()
    arrive(serving, "a", 0.0)
    serving.advance(0.7)
    assert serving.totals.prompt_tokens == 0
    serving.advance(0.8)
    assert (serving.totals.prompt_tokens, serving.totals.generation_tokens) == (250, 1)


def test_an_id_cannot_be_in_the_engine_twice() -> None:
    serving = one_slot()
    arrive(serving, "a", 0.0)
    with pytest.raises(ValueError, match="already here"):
        arrive(serving, "a", 0.1)
    run_out(serving)
    assert arrive(serving, "a", 2.0).ending is None


# Aborts and disconnects


def test_an_abort_in_the_queue_takes_effect_at_once() -> None:
    serving = one_slot()
    arrive(serving, "a", 0.0)
    record = arrive(serving, "b", 0.0)
    assert serving.abort("b", 0.3)
    assert (record.released, record.prompt_computed, serving.waiting) == (0.3, 0, 0)
    assert not serving.abort("b", 0.4)


def test_an_abort_in_prefill_waits_for_the_chunk_and_frees_the_slot_for_the_next() -> None:
    serving = one_slot()
    record, successor = arrive(serving, "a", 0.0), arrive(serving, "b", 0.0)
    serving.disconnect("a", 0.125)
    serving.advance(0.125)
    assert serving.running == 1
    serving.advance(0.2)
    assert (record.noticed, record.released, record.prompt_computed) == (0.125, 0.2, 200)
    assert record.computed_after_disconnect == 100
    assert record.release_delay == pytest.approx(0.075)
    assert successor.prefill_started == 0.2


def test_an_abort_in_the_extra_time_takes_effect_at_once() -> None:
    serving = one_slot()
    record = arrive(serving, "a", 0.0)
    serving.abort("a", 0.5)
    assert (record.released, record.first_token, serving.free_blocks) == (0.5, None, 100)


def test_an_abort_in_decode_computes_the_token_under_way() -> None:
    serving = one_slot()
    record = arrive(serving, "a", 0.0)
    serving.disconnect("a", 0.8)
    run_out(serving)
    assert (record.released, record.completion_computed, record.computed_after_disconnect) == (0.85, 2, 1)
    assert (record.ending, record.finished) == (Ending.ABORTED, None)


def test_an_abort_in_a_stall_takes_effect_at_once() -> None:
    serving = one_slot()
    record = serving.arrive("a", 0.0, prompt_tokens=250, completion_tokens=3, stall=Stall(1, 2.0))
    serving.abort("a", 1.5)
    assert (record.released, record.completion_computed) == (1.5, 1)


@pytest.mark.parametrize(
    ("notice", "noticed", "released", "wasted", "ending"),
    [
        (Notice.AT_ONCE, 0.3, 0.3, 0, Ending.ABORTED),
        (Notice.LATE, 0.8, 0.85, 2, Ending.ABORTED),
        (Notice.FIRST_TOKEN, 0.75, 0.75, 1, Ending.ABORTED),
        (Notice.NEVER, None, 0.95, 3, Ending.COMPLETED),
    ],
)
def test_a_disconnect_is_noticed_when_the_engine_is_told_to(
    notice: Notice, noticed: float | None, released: float, wasted: int, ending: Ending
) -> None:
    serving = one_slot()
    record = arrive(serving, "a", 0.0)
    serving.disconnect("a", 0.3, notice, 0.5)
    run_out(serving)
    assert (record.disconnected, record.noticed, record.released) == (0.3, noticed, released)
    assert (record.computed_after_disconnect, record.ending) == (wasted, ending)


def test_first_token_notice_after_the_first_token_is_at_once() -> None:
    serving = one_slot()
    record = arrive(serving, "a", 0.0)
    serving.disconnect("a", 0.8, Notice.FIRST_TOKEN)
    run_out(serving)
    assert (record.noticed, record.released) == (0.8, 0.85)


def test_a_late_notice_of_a_finished_request_harms_no_other() -> None:
    serving = one_slot()
    arrive(serving, "a", 0.0)
    serving.disconnect("a", 0.9, Notice.LATE, 5.0)
    serving.advance(1.0)
    again = arrive(serving, "a", 1.0, answer=100)
    run_out(serving)
    assert again.ending is Ending.COMPLETED


_PHASES = st.sampled_from([Notice.AT_ONCE, Notice.LATE, Notice.FIRST_TOKEN, Notice.NEVER])
_ACTIONS = st.one_of(
    st.tuples(st.just("arrive"), st.integers(0, 400), st.integers(1, 6)),
    st.tuples(st.just("abort"), st.integers(0, 30), st.just(0)),
    st.tuples(st.just("disconnect"), st.integers(0, 30), _PHASES),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(1, 3), st.lists(st.tuples(st.floats(0, 0.5), _ACTIONS), max_size=40))
def test_never_more_than_the_slots_and_everything_is_released(
    slots: int, script: list[tuple[float, tuple[str, int, Any]]]
) -> None:
    serving = one_slot(Lognormal(0.1, 1.0), slots=slots, blocks=60, queue_limit=5, crowding=1.5)
    records: list[Record] = []
    facts: list[Fact] = []
    now = 0.0
    for pause, (action, number, detail) in script:
        now += pause
        if action == "arrive":
            records.append(arrive(serving, f"r{len(records)}", now, number, detail))
        elif action == "abort":
            serving.abort(f"r{number}", now)
        else:
            serving.disconnect(f"r{number}", now, detail, 0.2)
        facts += serving.advance(now)
        assert 0 <= serving.running <= slots
        assert 0 <= serving.free_blocks <= 60
        assert serving.waiting <= 5
    facts += run_out(serving)
    assert (serving.running, serving.waiting, serving.free_blocks) == (0, 0, 60)
    assert [fact.at for fact in facts] == sorted(fact.at for fact in facts)
    for record in records:
        told = [fact for fact in facts if fact.id == record.id]
        assert sum(fact.tokens for fact in told) == record.completion_computed <= record.completion_tokens
        assert (record.ending is Ending.REJECTED) == (not told)
        assert (record.ending is Ending.COMPLETED) == (record.finished is not None)
        assert record.prompt_computed <= record.prompt_tokens
        assert record.computed_after_disconnect <= record.prompt_computed + record.completion_computed
    assert serving.totals.generation_tokens == sum(record.completion_computed for record in records)
    assert serving.totals.endings.total() == len(records)


# Profiles


def test_a_key_draws_the_same_time_whatever_came_before() -> None:
    alone, later = Serving(SHARED_ENDPOINT, seed=7), Serving(SHARED_ENDPOINT, seed=7)
    for number in range(20):
        later.arrive(str(number), 0.0, prompt_tokens=1, completion_tokens=1, key=f"other/{number}")
    one = alone.arrive("x", 5.0, prompt_tokens=1, completion_tokens=1, key="run1/step3/east")
    two = later.arrive("y", 9.0, prompt_tokens=9, completion_tokens=2, key="run1/step3/east")
    assert one.extra == two.extra
    assert Draw(7, "run1/step3/east", 0).random().random() == pytest.approx(0.67384317)  # on any machine
    assert SHARED_ENDPOINT.extra(Draw(8, "run1/step3/east", 0)) != one.extra


def test_the_shared_endpoint_has_the_measured_quantiles() -> None:
    draws = sorted(SHARED_ENDPOINT.extra(Draw(1, f"{number}", 0)) for number in range(20_000))
    assert statistics.median(draws) == pytest.approx(0.494, rel=0.02)
    assert draws[int(0.99 * len(draws))] == pytest.approx(7.6, rel=0.15)
    assert draws[int(0.999 * len(draws))] == pytest.approx(26, rel=0.25)
    assert draws[-1] <= 32.0


def test_a_replay_is_indexed_by_number_hash_or_order() -> None:
    recorded = Recorded((0.1, 0.2, 0.3))
    assert [recorded.extra(Draw(0, "", ordinal)) for ordinal in range(4)] == [0.1, 0.2, 0.3, 0.1]
    assert [recorded.extra(Draw(0, key, 0)) for key in ("1", "5")] == [0.2, 0.3]
    assert recorded.extra(Draw(0, "a/1/east", 0)) == recorded.extra(Draw(0, "a/1/east", 9))


def test_spells_depend_on_seed_and_time_alone() -> None:
    spells = Spells(Fixed(0.5), every=60.0, lasts=6.0, factor=4.0)
    slow = [spells.slow(3, at / 10) for at in range(12_000)]
    assert sum(slow) == pytest.approx(1_200, rel=0.05)
    at = slow.index(True) / 10
    assert {spells.extra(Draw(3, key, 0, at)) for key in "abc"} == {2.0}
    assert [spells.slow(4, at / 10) for at in range(12_000)] != slow


def test_words_make_profiles() -> None:
    assert parse("fixed:0.3") == Fixed(0.3)
    assert parse("lognormal:0.3,0.2") == Lognormal(0.3, 0.2)
    assert parse("stragglers:0.5,0.1,0.02,5,1.9") == Stragglers(0.5, 0.1, 0.02, 5, 1.9)
    assert parse("stragglers:0.5,0.1,0.02,5,1.9,30").extra(Draw(0, "a", 0)) > 0
    assert parse("shared-endpoint") is SHARED_ENDPOINT
    assert parse("spells:60,5,4/fixed:1") == Spells(Fixed(1), 60, 5, 4)


@pytest.mark.parametrize(
    "words",
    ["", "fixed", "fixed:", "fixed:x", "fixed:-1", "fixed:nan", "fixed:1,2", "lognormal:0,1", "lognormal:1",
     "stragglers:1,1,2,1,1", "stragglers:1,1,0.1,5,0", "spells:60,5/fixed:1", "spells:5,60,2/fixed:1", "gauss:1",
     "replay:"],
)  # fmt: skip
def test_r20_bad_profiles_are_refused(words: str) -> None:
    with pytest.raises(ConfigurationError):
        parse(words)


@pytest.mark.parametrize(
    "setting", [{"slots": 0}, {"decode_rate": 0}, {"speedup": math.inf}, {"queue_limit": -1}, {"crowding": 0.5}]
)
def test_r20_bad_hardware_is_refused(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(setting))):
        one_slot(**setting)


def test_a_replay_file_is_read_in_either_unit(tmp_path: Path) -> None:
    (tmp_path / "ms.csv").write_text("turn,ttft_ms\n0,250\n1,\n2,500.5\n")
    (tmp_path / "s.csv").write_text("ttft_s\n0.25\n")
    assert Recorded.from_csv(tmp_path / "ms.csv").seconds == pytest.approx((0.25, 0.5005))
    assert parse(f"replay:{tmp_path}/s.csv") == Recorded((0.25,))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("chain,turn,latency\n1,2,3\n", "columns found: chain, turn, latency"),
        ("", "columns found: none"),
        ("ttft_ms\n", "no value"),
        ("ttft_ms\n12\noops\n", "line 3: ttft_ms is 'oops'"),
        ("ttft_s\n-1\n", "line 2"),
        ("ttft_s\ninf\n", "line 2"),
    ],
)
def test_r20_a_replay_file_that_cannot_be_used_is_named(tmp_path: Path, content: str, says: str) -> None:
    file = tmp_path / "bad.csv"
    file.write_text(content)
    with pytest.raises(ConfigurationError, match=says) as caught:
        Recorded.from_csv(file)
    assert str(file) in str(caught.value)


def test_r20_a_replay_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"none\.csv"):
        Recorded.from_csv(tmp_path / "none.csv")


@pytest.mark.skipif(not SHARED_CHAINS.exists(), reason=f"{SHARED_CHAINS} is not here")
def test_real_ttfts_replay() -> None:
    recorded = Recorded.from_csv(SHARED_CHAINS)
    assert len(recorded.seconds) >= 3000
    assert statistics.median(recorded.seconds) == pytest.approx(0.49, rel=0.05)
    assert max(recorded.seconds) > 30
