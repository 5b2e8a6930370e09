"""The choice of a target: independent of what is in flight, well, and refused with the right reason."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Choice, Refused
from agent_hedge.core.step import Place, Role
from agent_hedge.targets import Independent, Target, as_targets, places
from agent_hedge.targets.choose import common
from agent_hedge.testing.fakes import FakeHealth, View, place

A1 = place("A1", "alpha", "us", "c1", "A1")
A2 = place("A2", "alpha", "us", "c1", "A2")
A3 = place("A3", "alpha", "us", "c2", "A3")
AE = place("AE", "alpha", "eu", "c1", "AE")
B = place("B", "beta", "us", "c1", "B")
SICK = Refused(Reason.UNHEALTHY, "out")
BUSY = Refused(Reason.PUSHBACK, "for 9 s")
DRAINED = Refused(Reason.DRAINING, "target drained")


def choose(role: Role, view: View, health: FakeHealth | None = None) -> str | Reason:
    choice = Independent(health or FakeHealth()).choose(role, view)
    if isinstance(choice, Refused):
        return choice.reason
    assert choice.not_before == 0.0
    return choice.target.name


def racing(*candidates: Place, running: str | None = None) -> View:
    view = View(candidates=candidates, now=10.0)
    view.launch(running or candidates[0])
    return view


# --- primary ----------------------------------------------------------------------------------------------------------


def test_a_primary_goes_to_the_first_candidate_that_is_well() -> None:
    view = View(candidates=(A1, B, AE))
    assert choose(Role.PRIMARY, view) == "A1"
    assert choose(Role.PRIMARY, view, FakeHealth({"A1": SICK})) == "B"
    assert choose(Role.PRIMARY, view, FakeHealth({"A1": BUSY, "B": DRAINED})) == "AE"


@pytest.mark.parametrize(
    ("a", "b", "chosen"), [(SICK, SICK, "A1"), (SICK, BUSY, "B"), (DRAINED, SICK, "B"), (DRAINED, DRAINED, "A1")]
)
def test_a_primary_is_never_refused_for_health(a: Refused, b: Refused, chosen: str) -> None:
    assert choose(Role.PRIMARY, View(candidates=(A1, B)), FakeHealth({"A1": a, "B": b})) == chosen


def test_a_primary_starts_at_the_sticky_target_while_it_is_well() -> None:
    view, health = View(candidates=(A1, AE, B)), FakeHealth()
    chooser = Independent(health, sticky=lambda view: "AE")

    def first() -> str:
        choice = chooser.choose(Role.PRIMARY, view)
        assert isinstance(choice, Choice)
        return choice.target.name

    assert first() == "AE"
    health.refusals["AE"] = SICK
    assert first() == "A1"


@pytest.mark.parametrize("sticky", [None, "", "gone"])
def test_an_unknown_sticky_target_is_no_preference(sticky: str | None) -> None:
    choice = Independent(FakeHealth(), sticky=lambda view: sticky).choose(Role.PRIMARY, View(candidates=(A1, B)))
    assert isinstance(choice, Choice)
    assert choice.target is A1


def test_no_candidate_is_a_refusal() -> None:
    assert choose(Role.PRIMARY, View(candidates=())) is Reason.NO_TARGET


# --- hedge ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("candidates", "chosen"),
    [
        ((A1, A2, A3, AE, B), "B"),
        ((A1, A2, A3, AE), "AE"),
        ((A1, A2, A3), "A3"),
        ((A1, A2), "A2"),
        ((A1, B, place("C")), "B"),
    ],
)
def test_a_hedge_goes_as_far_away_as_it_can(candidates: tuple[Place, ...], chosen: str) -> None:
    assert choose(Role.HEDGE, racing(*candidates)) == chosen


def test_a_second_hedge_avoids_both_in_flight() -> None:
    view = racing(A1, A2, AE, B)
    view.launch("B", role=Role.HEDGE)
    assert choose(Role.HEDGE, view) == "AE"
    view.launch("AE", role=Role.HEDGE)
    assert choose(Role.HEDGE, view) == "A2"


def test_r04_a_single_target_has_nowhere_to_hedge_to() -> None:
    assert choose(Role.HEDGE, racing(A1)) is Reason.NO_TARGET


def test_r04_a_hedge_never_goes_where_an_attempt_is_in_flight() -> None:
    view = racing(A1, B)
    view.launch("B", role=Role.HEDGE)
    assert choose(Role.HEDGE, view) is Reason.NO_TARGET


def test_two_names_of_one_domain_are_not_independent() -> None:
    one, two, around = place("one", "dc", "host"), place("two", "dc", "host"), place("around", "dc")
    assert choose(Role.HEDGE, racing(one, two, around)) is Reason.NO_TARGET


def test_copies_of_one_address_are_independent() -> None:
    candidates = places(as_targets([Target("pool", 1, copies=2)]))
    view = racing(*candidates)
    choice = Independent(FakeHealth()).choose(Role.HEDGE, view)
    assert isinstance(choice, Choice)
    assert choice.target is candidates[1]
    view.launch(candidates[1], role=Role.HEDGE)
    assert choose(Role.HEDGE, view) is Reason.NO_TARGET


def test_another_address_comes_before_another_copy() -> None:
    candidates = places(as_targets([Target("pool", 1, copies=4), Target("other", 2)]))
    assert choose(Role.HEDGE, racing(*candidates)) == "other"


def test_a_hedge_prefers_who_has_not_failed_this_step() -> None:
    view = racing(A1, B, AE, running="B")
    view.end(0)
    view.launch("A1", role=Role.RECOVERY)
    assert choose(Role.HEDGE, view) == "AE"
    view.candidates = (A1, B)
    assert choose(Role.HEDGE, view) == "B"


def test_r01_a_target_that_failed_fatally_is_out_for_the_step() -> None:
    view = racing(A1, B, AE)
    view.excluded = frozenset({"B"})
    assert choose(Role.HEDGE, view) == "AE"
    view.excluded = frozenset({"B", "AE"})
    assert choose(Role.HEDGE, view) is Reason.NO_TARGET


@pytest.mark.parametrize(("refusal", "reason"), [(SICK, Reason.UNHEALTHY), (BUSY, Reason.PUSHBACK)])
def test_r15_a_hedge_leaves_targets_alone_that_are_not_well(refusal: Refused, reason: Reason) -> None:
    view = racing(A1, B, AE)
    assert choose(Role.HEDGE, view, FakeHealth({"B": refusal})) == "AE"
    assert choose(Role.HEDGE, view, FakeHealth({"B": refusal, "AE": SICK})) is reason


# --- recovery ---------------------------------------------------------------------------------------------------------


def failed(*candidates: Place) -> View:
    view = racing(*candidates)
    view.end(0)
    return view


def test_a_recovery_goes_to_another_healthy_domain_at_once() -> None:
    assert choose(Role.RECOVERY, failed(A1, A2, B)) == "B"
    assert choose(Role.RECOVERY, failed(A1, A2, B), FakeHealth({"A1": BUSY}, {"A1": 99.0})) == "B"


def test_a_recovery_takes_the_first_of_equals() -> None:
    assert choose(Role.RECOVERY, failed(A1, B, place("C"))) == "B"


def test_a_recovery_of_a_single_target_goes_there_again() -> None:
    assert choose(Role.RECOVERY, failed(A1)) == "A1"


def test_r13_a_recovery_of_a_single_target_waits_for_its_retry_after() -> None:
    chooser = Independent(FakeHealth({"A1": BUSY}, {"A1": 19.0}))
    assert chooser.choose(Role.RECOVERY, failed(A1)) == Choice(A1, 19.0)


def test_a_recovery_waits_for_the_shortest_pushback() -> None:
    chooser = Independent(FakeHealth({"A1": BUSY, "B": BUSY}, {"A1": 19.0, "B": 12.0}))
    assert chooser.choose(Role.RECOVERY, failed(A1, B)) == Choice(B, 12.0)


def test_a_recovery_prefers_a_failing_target_to_a_wait_past_the_deadline() -> None:
    view = failed(A1, B)
    for view.deadline in (15.0, 19.0):
        assert choose(Role.RECOVERY, view, FakeHealth({"A1": BUSY, "B": SICK}, {"A1": 19.0})) == "B"
    view.deadline = 25.0
    chooser = Independent(FakeHealth({"A1": BUSY, "B": SICK}, {"A1": 19.0}))
    assert chooser.choose(Role.RECOVERY, view) == Choice(A1, 19.0)


def test_a_recovery_may_go_to_a_failing_target_when_nothing_else_is_left() -> None:
    assert choose(Role.RECOVERY, failed(A1), FakeHealth({"A1": SICK})) == "A1"
    assert choose(Role.RECOVERY, failed(A1, B), FakeHealth({"A1": SICK})) == "B"


def test_a_recovery_never_goes_to_a_drained_or_excluded_target() -> None:
    assert choose(Role.RECOVERY, failed(A1), FakeHealth({"A1": DRAINED})) is Reason.DRAINING
    view = failed(A1)
    view.excluded = frozenset({"A1"})
    assert choose(Role.RECOVERY, view) is Reason.NO_TARGET


def test_a_recovery_does_not_join_an_attempt_in_flight() -> None:
    view = racing(A1, B)
    view.launch("B", role=Role.HEDGE)
    view.end(0)
    assert choose(Role.RECOVERY, view) == "A1"
    view.excluded = frozenset({"A1"})
    assert choose(Role.RECOVERY, view) is Reason.NO_TARGET


# --- always -----------------------------------------------------------------------------------------------------------

domains = st.lists(st.sampled_from("xyz"), min_size=1, max_size=4).map(tuple)


@given(paths=st.lists(domains, min_size=1, max_size=6, unique=True), launches=st.integers(1, 3), data=st.data())
def test_r04_a_hedge_is_always_independent_and_well(
    paths: list[tuple[str, ...]], launches: int, data: st.DataObject
) -> None:
    candidates = tuple(place(f"p{number}", *path) for number, path in enumerate(paths))
    view = View(candidates=candidates)
    for _ in range(launches):
        view.launch(data.draw(st.sampled_from(candidates)))
    for number in range(launches):
        if data.draw(st.booleans()):
            view.end(number)
    sick = data.draw(st.sets(st.sampled_from([c.name for c in candidates])))
    choice = Independent(FakeHealth(dict.fromkeys(sick, SICK))).choose(Role.HEDGE, view)
    running = [a.target.domain for a in view.attempts if view.is_running(a.number)]
    if isinstance(choice, Choice):
        assert choice.target.name not in sick
        for domain in running:
            assert common(choice.target.domain, domain) < min(len(choice.target.domain), len(domain))
    else:
        assert choice.reason in (Reason.NO_TARGET, Reason.UNHEALTHY)


@given(one=domains, other=domains)
def test_common_levels(one: tuple[str, ...], other: tuple[str, ...]) -> None:
    shared = common(one, other)
    assert shared == common(other, one)
    assert one[:shared] == other[:shared]
    assert shared == min(len(one), len(other)) or one[shared] != other[shared]
