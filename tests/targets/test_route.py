"""Where the next step of a run starts (DESIGN 5.9)."""

from __future__ import annotations

from agent_hedge.core.ports import Choice, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Role
from agent_hedge.targets import Independent, Stay
from agent_hedge.testing.fakes import FakeHealth, FakeLatency, View


def run() -> Run:
    return Run(clock=lambda: 0.0)


def learnt() -> FakeLatency:
    return FakeLatency({0.5: 1.0, 0.9: 1.4})


def commit(stay: Stay, view: View, number: int, at: float) -> None:
    permit = stay.admit(view.attempts[number], view)
    assert permit is not PASS
    assert not isinstance(permit, Refused)
    permit.committed(at=at)


def test_after_a_hedge_win_the_run_stays_with_the_winner() -> None:
    stay, opened = Stay(), run()
    view = View(run=opened)
    view.launch("a")
    view.launch("b", role=Role.HEDGE, at=1.0)
    commit(stay, view, 1, 1.5)
    assert opened.sticky_target == "b"
    chosen = Independent(FakeHealth(), sticky=stay).choose(Role.PRIMARY, View(run=opened))
    assert isinstance(chosen, Choice)
    assert chosen.target.name == "b"


def test_a_primary_that_wins_in_time_leaves_the_run_where_it_is() -> None:
    stay, opened = Stay(), run()
    view = View(run=opened, latency=learnt())
    view.launch("a")
    commit(stay, view, 0, 1.39)
    assert opened.sticky_target == ""


def test_a_slow_step_that_was_not_hedged_moves_the_run() -> None:
    stay, opened = Stay(), run()
    view = View(run=opened, latency=learnt())
    view.launch("a")
    commit(stay, view, 0, 1.6)
    assert opened.sticky_target == "b"


def test_a_slow_primary_that_was_hedged_and_still_won_does_not_move_the_run() -> None:
    stay, opened = Stay(), run()
    view = View(run=opened, latency=learnt())
    view.launch("a")
    view.launch("b", role=Role.HEDGE, at=1.0)
    commit(stay, view, 0, 2.0)
    assert opened.sticky_target == ""


def test_a_slow_step_never_moves_the_run_to_a_target_that_is_out() -> None:
    stay, opened = Stay(), run()
    view = View(run=opened, latency=learnt(), excluded=frozenset({"b"}))
    view.launch("a")
    commit(stay, view, 0, 5.0)
    assert opened.sticky_target == ""


def test_while_latencies_are_learnt_nothing_counts_as_slow() -> None:
    stay, opened = Stay(), run()
    view = View(run=opened)
    view.launch("a")
    commit(stay, view, 0, 50.0)
    assert opened.sticky_target == ""


def test_outside_a_run_nothing_is_sticky() -> None:
    stay, view = Stay(), View()
    view.launch("a")
    assert stay.admit(view.attempts[0], view) is PASS
    assert stay(view) is None
