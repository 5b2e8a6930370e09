"""Which generation of a run a scope belongs to, and what of it counts on (DESIGN 5.14), with the clock in hand."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agent_hedge.core.events import Reason
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Role
from agent_hedge.engine.holding import BLOCK, EXPIRY_S
from agent_hedge.engine.runbook import ALIVE_S, AWAY_S, BEAT_S
from tests.runs.kit import World


def left(run: Run) -> float:
    return round(run.remaining, 6)


def test_r12_leaving_stops_the_clock_and_a_resume_goes_on_with_what_was_left() -> None:
    world = World()
    run, record = world.process().open()
    run.begin_step()
    run.take(Role.HEDGE, 0.0)
    world.now += 10
    record.close()
    world.now += 7_200
    again, other = world.process().open()
    assert other.undecided
    other.see(True)
    assert (again.generation, left(again), again.steps, again.extra_attempts_used) == (0, 20.0, 1, 1)
    assert [again.take(Role.HEDGE, 0.0) for _ in range(3)] == [None, None, Reason.RUN_BUDGET]


def test_r12_dying_inside_stops_nothing() -> None:
    world = World()
    run, _ = world.process().open()
    run.begin_step()
    world.now += ALIVE_S + 1
    again, record = world.process().open()
    assert (again.generation, left(again)) == (0, 14.0)
    again.begin_step()
    assert not record.undecided
    assert (again.generation, left(again), again.extra_attempts) == (0, 14.0, 3)


def test_r12_other_input_starts_the_next_generation_with_a_fresh_deadline_and_purse() -> None:
    world = World()
    run, record = world.process().open(extra=1)
    run.begin_step()
    run.take(Role.HEDGE, 0.0)
    record.close()
    world.now += 100
    turn, _ = world.process().open(extra=2)
    turn.begin_step(resumed=False)
    assert (turn.generation, left(turn), turn.steps) == (1, 30.0, 1)
    assert [turn.take(Role.HEDGE, 0.0) for _ in range(3)] == [None, None, Reason.RUN_BUDGET]


@pytest.mark.parametrize("resumed", [True, False])
def test_r12_after_a_crash_the_input_decides(resumed: bool) -> None:
    world = World()
    run, _ = world.process().open()
    run.begin_step()
    world.now += 20
    again, record = world.process().open()
    record.see(resumed)
    again.begin_step()
    assert (again.generation, left(again)) == ((0, 10.0) if resumed else (1, 30.0))


def test_r12_a_crashed_run_past_its_deadline_does_not_hold_up_the_next_turn() -> None:
    world = World()
    world.process().open()[0].begin_step()
    world.now += 31
    turn, _ = world.process().open()
    turn.begin_step()
    assert (turn.generation, left(turn)) == (1, 30.0)
    world.now += 31
    resumed, record = world.process().open()
    record.see(True)
    assert (resumed.generation, resumed.remaining) == (1, 0.0)  # whoever resumes it has no time left


@pytest.mark.parametrize(("resume", "generation"), [(True, 0), (False, 1)])
def test_resume_decides_before_anything_runs(resume: bool, generation: int) -> None:
    world = World()
    run, record = world.process().open()
    run.begin_step()
    record.close()
    again, other = world.process().open(resume=resume)
    assert not other.undecided
    again.begin_step(resumed=not resume)
    assert again.generation == generation


def test_a_run_that_is_over_is_not_gone_on_with() -> None:
    world = World()
    run, record = world.process().open()
    run.begin_step()
    run.end()
    record.close()
    again, _ = world.process().open(resume=True)
    assert again.generation == 1


def test_r12_a_pause_inside_the_scope_stops_the_clock() -> None:
    world = World()
    run, _ = world.process().open()
    run.begin_step()
    world.now += 10
    run.pause()
    run.pause()
    world.now += 7_200
    assert left(run) == 20.0
    stored = world.row()
    assert stored is not None
    assert (stored.state, stored.remaining, stored.deadline_epoch) == ("paused", 20.0, None)
    run.go_on()
    run.go_on()
    assert left(run) == 20.0
    world.now += 5
    assert left(run) == 15.0


def test_r12_a_run_that_was_left_without_a_word_stands_still_elsewhere_and_not_here() -> None:
    """Configuration has opened it, and whether its graph has stopped nobody says."""
    world = World()
    process = world.process()
    run, record = process.open(deadline=600.0)
    record.unscoped = True
    run.begin_step()
    world.now += AWAY_S + 1
    process.flush()
    assert state_of(world) == ("open", None), "its step is still open"
    run.end_step()
    world.now += AWAY_S
    process.flush()
    assert state_of(world) == ("paused", 600.0 - AWAY_S - 1)
    world.now += 7_200
    again, other = world.process().open()
    other.see(True)
    assert left(again) == 600.0 - AWAY_S - 1


def test_r12_a_step_after_a_long_time_without_one_finds_the_clock_as_it_was() -> None:
    world = World()
    process = world.process()
    run, record = process.open(deadline=600.0)
    record.unscoped = True
    run.begin_step()
    run.end_step()
    world.now += AWAY_S
    process.flush()
    run.begin_step()
    process.flush()
    assert left(run) == 600.0 - AWAY_S
    assert state_of(world) == ("open", None)


def state_of(world: World) -> tuple[str, float | None]:
    row = world.row()
    assert row is not None
    return row.state, row.remaining


def test_a_paused_run_is_not_written_over_where_it_has_gone_on_elsewhere() -> None:
    world = World()
    first = world.process()
    run, _ = first.open()
    run.begin_step()
    run.pause()
    world.now += BEAT_S
    second = world.process()
    again, other = second.open()
    other.see(True)
    again.begin_step()
    world.now += BEAT_S
    for process in (second, first):
        process.flush()
    row = world.row()
    assert row is not None
    assert row.state == "open"


def test_r13_a_process_spends_what_it_was_granted_and_a_second_one_what_is_left() -> None:
    world = World()
    first, _ = world.process().open(extra=20)
    first.begin_step()
    second, _ = world.process().open(extra=20)
    second.begin_step()
    assert second.generation == 0
    taken = 0
    for _ in range(20):  # by turns
        taken += (first.take(Role.HEDGE, 0.0) is None) + (second.take(Role.HEDGE, 0.0) is None)
    assert taken == 20
    row = world.row()
    assert row is not None
    assert row.hedges_granted == 20


def hedges_left(run: Run, wanted: int = 99) -> int:
    """How many hedges the run can still take, by taking them."""
    return sum(run.take(Role.HEDGE, 0.0) is None for _ in range(wanted))


def test_r13_a_killed_process_forfeits_its_block_and_no_more() -> None:
    """E4. One step was open, so one hedge was held."""
    world = World()
    killed, _ = world.process().open(extra=4)
    killed.begin_step()
    assert hedges_left(killed, 1) == 1
    world.now += ALIVE_S + 1
    heir, _ = world.process().open()
    heir.begin_step()
    assert hedges_left(heir) == 2


@pytest.mark.parametrize(("branches", "held"), [(5, 5), (40, BLOCK)])
def test_r13_a_block_is_one_hedge_for_each_open_step_and_sixteen_at_most(branches: int, held: int) -> None:
    world = World()
    killed, _ = world.process().open(extra=50)
    for _ in range(branches):
        killed.begin_step()
    world.now += ALIVE_S + 1
    heir, _ = world.process().open()
    heir.begin_step()
    assert hedges_left(heir) == 50 - held


def test_r13_a_process_that_came_first_leaves_the_purse_to_a_second_one() -> None:
    world = World()
    first, _ = world.process().open(extra=10)
    first.begin_step()
    second, _ = world.process().open()
    second.begin_step()
    assert hedges_left(second) == 9
    assert hedges_left(first) == 1


def test_r13_what_no_step_needs_any_more_goes_back_after_ten_seconds() -> None:
    world = World()
    process = world.process()
    first, _ = process.open(extra=8, deadline=600.0)
    for _ in range(8):
        first.begin_step()
    process.flush()
    second, _ = world.process().open()
    second.begin_step()
    assert hedges_left(second) == 0
    for _ in range(8):
        first.end_step()
    world.now += EXPIRY_S - 0.1
    process.flush()
    assert hedges_left(second) == 0
    world.now += 0.2
    process.flush()
    world.now += BEAT_S
    assert hedges_left(second) == 7, "one is kept for the next step"


CAPS: dict[str, Any] = {"tokens": 2_500, "cost": 0.025}
"""Of a run whose prompts have a thousand tokens, a cent each."""


@pytest.mark.parametrize(("caps", "reason"), [({"tokens": 2_500}, Reason.TOKENS), ({"cost": 0.025}, Reason.COST)])
def test_r13_two_processes_share_the_caps_of_a_run(caps: dict[str, Any], reason: Reason) -> None:
    world = World()
    runs = [world.process().open(extra=50, caps=caps)[0] for _ in range(2)]
    refusals = []
    for run in [*runs, *runs]:
        run.begin_step(None, 1_000)
        refusals.append(run.spend(1_000, 0.01))
        run.end_step(1_000)
    assert [refused and refused.reason for refused in refusals] == [None, None, reason, reason]
    row = world.row()
    assert row is not None
    assert row.tokens_granted == 2_500 if "tokens" in caps else row.cost_granted == 0.025


def test_r13_what_was_spent_of_the_caps_is_spent_in_the_next_process() -> None:
    """E5 for tokens and money: not refilled by a resume, and the next generation has caps of its own."""
    world = World()
    run, record = world.process().open(caps=CAPS)
    run.begin_step(None, 1_000)
    assert run.spend(1_000, 0.01) is None
    record.close()
    again, other = world.process().open(caps={"tokens": 10**9})
    other.see(True)
    again.begin_step(None, 1_000)
    assert (again.tokens, again.tokens_used, again.cost, again.cost_used) == (2_500, 1_000, 0.025, 0.01)
    assert again.spend(1_000, 0.01) is None
    refused = again.spend(1_000, 0.01)
    assert refused is not None
    assert (refused.reason, refused.detail) == (Reason.TOKENS, "2000 of 2500 used, 1000 wanted")
    other.close()
    turn, _ = world.process().open(caps={"tokens": 3_000})
    turn.begin_step(False, 1_000)
    assert (turn.generation, turn.tokens, turn.tokens_used, turn.cost) == (1, 3_000, 0, None)


def test_r13_a_killed_process_forfeits_the_prompts_of_its_open_steps_and_no_more() -> None:
    world = World()
    killed, _ = world.process().open(caps={"tokens": 10_000})
    for _ in range(2):
        killed.begin_step(None, 1_000)
    assert killed.spend(1_000, None) is None
    world.now += ALIVE_S + 1
    heir, _ = world.process().open()
    heir.begin_step(None, 1_000)
    assert sum(heir.spend(1_000, None) is None for _ in range(10)) == 8


def test_r13_tokens_that_a_later_gate_gave_back_can_be_spent() -> None:
    world = World()
    run, record = world.process().open(caps=CAPS)
    run.begin_step(None, 1_000)
    assert run.spend(1_000, 0.01) is None
    run.unspend(1_000, 0.01)
    assert [run.spend(1_000, 0.01) is None for _ in range(3)] == [True, True, False]
    record.close()
    row = world.row()
    assert row is not None
    assert (row.tokens_used, row.tokens_granted) == (2_000, 2_000)
    assert (row.cost_used, row.cost_granted) == pytest.approx((0.02, 0.02))


def test_what_two_processes_have_used_adds_up() -> None:
    world = World()
    processes = [world.process() for _ in range(2)]
    for process in processes:
        run, _ = process.open(extra=9, caps=CAPS)
        for _ in range(2):
            run.begin_step(None, 100)
            assert hedges_left(run, 1) == 1
            assert run.spend(100, 0.001) is None
    for process in [*processes, *processes]:
        process.flush()
    row = world.row()
    assert row is not None
    assert (row.steps, row.hedges_used, row.tokens_used) == (4, 4, 400)
    assert row.cost_used == pytest.approx(0.004)


def test_r13_what_was_not_spent_goes_back_on_leaving_and_on_a_refusal_by_a_later_gate() -> None:
    world = World()
    run, record = world.process().open(extra=2)
    run.begin_step()
    run.take(Role.HEDGE, 0.0)
    run.give_back(Role.HEDGE)
    assert [run.take(Role.HEDGE, 0.0) for _ in range(2)] == [None, None]
    run.give_back(Role.HEDGE)
    record.close()
    again, _ = world.process().open(resume=True)
    assert [again.take(Role.HEDGE, 0.0) for _ in range(2)] == [None, Reason.RUN_BUDGET]


def test_a_run_inside_a_run_is_stored_and_shares_the_outer_purse() -> None:
    world = World()
    process = world.process()
    outer, _ = process.open("outer", extra=1)
    inner = Run("inner", clock=process.clock, deadline=process.clock() + 99, extra_attempts=5, parent=outer)
    process.book.open(inner)
    inner.begin_step()
    assert [inner.take(Role.HEDGE, 0.0) for _ in range(2)] == [None, Reason.RUN_BUDGET]
    process.flush()
    stored = world.row("inner")
    assert stored is not None
    assert stored.deadline_epoch == pytest.approx(world.now + 30.0)
    assert (stored.steps, stored.hedges_used) == (1, 1)


def test_rows_are_written_when_something_changed_and_at_least_every_beat() -> None:
    world = World()
    process = world.process()
    run, _ = process.open()
    writes: list[float] = []
    save = world.store.save

    async def counted(row: object) -> None:
        writes.append(world.now)
        await save(row)  # type: ignore[arg-type]

    world.store.save = counted  # type: ignore[method-assign]
    for _ in range(3):
        process.flush()
    assert writes == []
    for _ in range(50):
        run.begin_step()
    process.flush()
    process.flush()
    assert len(writes) == 1
    world.now += BEAT_S
    process.flush()
    assert len(writes) == 2


def test_a_run_without_a_deadline_has_none_in_the_store() -> None:
    world = World()
    run, record = world.process().open(deadline=math.inf)
    run.begin_step()
    record.close()
    again, _ = world.process().open(resume=True)
    assert again.remaining == math.inf


def test_the_winner_a_run_stays_with_is_remembered() -> None:
    world = World()
    run, record = world.process().open()
    run.begin_step()
    run.sticky_target = "eu"
    record.close()
    assert world.process().open(resume=True)[0].sticky_target == "eu"
    assert world.process().open(resume=False)[0].sticky_target == ""


def test_threads_decide_once() -> None:
    from concurrent.futures import ThreadPoolExecutor

    world = World()
    run, record = world.process().open()
    run.begin_step()
    record.close()
    again, other = world.process().open()
    other.see(True)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: again.begin_step(), range(64)))
    assert again.steps == 65


def test_a_fork_has_none_of_its_parents_block(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    run, _ = world.process().open(extra=3)
    run.begin_step()
    assert run.take(Role.HEDGE, 0.0) is None
    monkeypatch.setattr("agent_hedge.engine.holding.os.getpid", lambda: -1)
    assert hedges_left(run) == 1, "the parent has taken one and holds another"
