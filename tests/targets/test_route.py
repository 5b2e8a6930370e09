"""Where the next step of a run starts (DESIGN 5.9)."""

from __future__ import annotations

import pytest

from agent_hedge.core.ports import Choice, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Role
from agent_hedge.targets import Independent, Stay
from agent_hedge.testing.fakes import FakeHealth, FakeLatency, View, place


def run() -> Run:
    return Run(clock=lambda: 0.0)


def learnt() -> FakeLatency:
    return FakeLatency({0.5: 1.0, 0.9: 1.4})


def win(stay: Stay, view: View, number: int) -> None:
    permit = stay.admit(view.attempts[number], view)
    assert not isinstance(permit, Refused)
    permit.committed(at=9.0)


def answered(opened: Run, seconds: float, launched: int = 1) -> None:
    opened.last_step = (View().key, "a", seconds, launched)


def test_after_a_hedge_win_the_run_stays_with_the_winner() -> None:
    stay, opened = Stay(), run()
    view = View(run=opened)
    view.launch("a")
    view.launch("b", role=Role.HEDGE, at=1.0)
    win(stay, view, 1)
    assert opened.sticky_target == "b"
    chosen = Independent(FakeHealth(), sticky=stay).choose(Role.PRIMARY, View(run=opened))
    assert isinstance(chosen, Choice)
    assert chosen.target.name == "b"


@pytest.mark.parametrize(
    ("seconds", "launched", "goes_to"),
    [
        (1.39, 1, None),  # below its p90
        (1.45, 1, None),  # above it, but not 1.5 medians
        (1.6, 1, "b"),
        (5.0, 2, None),  # hedged, and the primary still won: the others were no better
    ],
)
def test_a_slow_step_that_was_not_hedged_moves_the_run(seconds: float, launched: int, goes_to: str | None) -> None:
    stay, opened = Stay(), run()
    answered(opened, seconds, launched)
    assert stay(View(run=opened, latency=learnt())) == goes_to


@pytest.mark.parametrize(
    ("others", "goes_to"),
    [
        (["acme us 2"], "acme us 2"),
        (["acme us 2", "acme eu 1", "acme eu 2"], "acme eu 1"),
        (["acme us 2", "acme eu 1", "best us 1", "cosy us 1"], "best us 1"),
    ],
)
def test_a_slow_step_moves_the_run_as_far_as_it_can(others: list[str], goes_to: str) -> None:
    """A spell covers a replica, a cluster or a region: the farthest place is the likeliest to be outside."""
    stay, opened = Stay(), run()
    answered(opened, 5.0)
    candidates = [place("a", "acme", "us", "1"), *(place(other, *other.split()) for other in others)]
    assert stay(View(run=opened, latency=learnt(), candidates=candidates)) == goes_to


def test_for_a_spell_after_a_hedge_win_no_slow_step_moves_the_run() -> None:
    stay, opened = Stay(60.0), run()
    view = View(run=opened)
    view.launch("a")
    view.launch("b", role=Role.HEDGE, at=1.0)
    win(stay, view, 1)  # at 9 s
    opened.last_step = (View().key, "b", 5.0, 1)
    assert stay(View(run=opened, latency=learnt(), now=68.9)) == "b"
    opened.last_step = (View().key, "b", 5.0, 1)
    assert stay(View(run=opened, latency=learnt(), now=69.1)) == "a"


def test_a_primary_that_answers_holds_the_run_nowhere() -> None:
    stay, opened = Stay(), run()
    view = View(run=opened)
    view.launch("a")
    assert stay.admit(view.attempts[0], view) is PASS


def test_a_place_that_a_slow_step_moved_the_run_to_may_be_left_at_once() -> None:
    stay, opened = Stay(60.0), run()
    answered(opened, 5.0)
    assert stay(View(run=opened, latency=learnt(), now=10.0)) == "b"
    opened.last_step = (View().key, "b", 5.0, 1)
    assert stay(View(run=opened, latency=learnt(), now=20.0)) == "a"


def test_another_hedge_win_moves_the_run_at_once() -> None:
    stay, opened = Stay(60.0), run()
    for number, (first, second) in enumerate([("a", "b"), ("b", "a")]):
        view = View(run=opened)
        view.launch(first)
        view.launch(second, role=Role.HEDGE, at=1.0)
        win(stay, view, 1)
        assert opened.sticky_target == second, number


@pytest.mark.parametrize(
    ("seconds", "tokens", "goes_to"),
    [
        (2.4, 0, "b"),
        (2.4, 13_900, "b"),  # 1.4 s slower than the median: more than a place takes to read it anew
        (2.4, 14_100, None),
    ],
)
def test_a_move_has_its_price_in_tokens_to_read_again(seconds: float, tokens: int, goes_to: str | None) -> None:
    stay, opened = Stay(), run()
    answered(opened, seconds)
    assert stay(View(run=opened, latency=learnt(), prompt_tokens=tokens)) == goes_to


def test_a_step_moves_the_run_once() -> None:
    stay, opened = Stay(), run()
    answered(opened, 5.0)
    assert stay(View(run=opened, latency=learnt())) == "b"
    opened.sticky_target = ""
    assert stay(View(run=opened, latency=learnt())) is None


def test_a_run_with_one_place_stays_there() -> None:
    stay, opened = Stay(), run()
    answered(opened, 5.0)
    assert stay(View(run=opened, latency=learnt(), candidates=(place("a"),))) is None


def test_while_latencies_are_learnt_nothing_counts_as_slow() -> None:
    stay, opened = Stay(), run()
    answered(opened, 50.0)
    assert stay(View(run=opened)) is None


def test_outside_a_run_nothing_is_sticky() -> None:
    stay, view = Stay(), View()
    view.launch("a")
    assert stay.admit(view.attempts[0], view) is PASS
    assert stay(view) is None
