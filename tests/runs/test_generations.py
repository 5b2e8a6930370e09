"""Which generation of a run a scope belongs to, and what of it counts on (DESIGN 5.14), with the clock in hand."""

from __future__ import annotations

import math

import pytest

from agent_hedge.core.events import Reason
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Role
from agent_hedge.engine.runbook import ALIVE_S, BEAT_S, BLOCK
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


def test_r13_a_killed_process_forfeits_its_block_and_no_more() -> None:
    world = World()
    killed, _ = world.process().open(extra=BLOCK + 4)
    killed.begin_step()
    killed.take(Role.HEDGE, 0.0)
    world.now += ALIVE_S + 1
    heir, _ = world.process().open()
    heir.begin_step()
    assert sum(heir.take(Role.HEDGE, 0.0) is None for _ in range(BLOCK)) == 4


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
    monkeypatch.setattr("agent_hedge.engine.runbook.os.getpid", lambda: -1)
    assert run.take(Role.HEDGE, 0.0) is Reason.RUN_BUDGET
