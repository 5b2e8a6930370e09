"""The meter and the fleet's counts: logical requests and physical attempts, apart."""

from __future__ import annotations

import threading

import pytest

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import FleetView, Permit, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Effect, Ended, Role, Verdict
from agent_hedge.gates import Fleet, Meter
from agent_hedge.gates.fleet import Field, FleetCounts
from agent_hedge.testing.fakes import View, place


def admit(fleet: Fleet, view: View, role: Role) -> Permit:
    permit = Meter(fleet).admit(view.attempt(role, view.candidates[-1]), view)
    assert not isinstance(permit, Refused)
    return permit


def end(permit: Permit, view: View, *, launched: bool, won: bool = False) -> None:
    if won:
        permit.committed(at=view.now)
    permit.settle(Ended(view.attempt(), Verdict.WON if won else Verdict.SUPERSEDED, launched=launched), at=view.now)


def test_requests_hedges_recoveries_and_wins_are_counted_apart() -> None:
    fleet, view = Fleet(), View()
    assert admit(fleet, view, Role.PRIMARY) is PASS
    view.launch("a")
    hedge = admit(fleet, view, Role.HEDGE)
    view.launch("b", role=Role.HEDGE)
    second = admit(fleet, view, Role.HEDGE)
    recovery = admit(fleet, view, Role.RECOVERY)
    end(hedge, view, launched=True, won=True)
    end(second, view, launched=True)
    end(recovery, view, launched=True, won=True)
    assert fleet.counts(0.0) == FleetCounts(requests=1, eligible=1, hedges=2, second_hedges=1, recoveries=1, wins=1)


@pytest.mark.parametrize(("role", "wins"), [(Role.HEDGE, 1), (Role.RECOVERY, 0)])
def test_wins_are_those_of_hedges(role: Role, wins: int) -> None:
    fleet, view = Fleet(), View()
    view.launch("a")
    end(admit(fleet, view, role), view, launched=True, won=True)
    assert fleet.counts(0.0).wins == wins


def test_what_is_never_sent_is_not_counted() -> None:
    fleet, view = Fleet(), View()
    view.launch("a")
    for role in (Role.HEDGE, Role.RECOVERY):
        end(admit(fleet, view, role), view, launched=False)
    view.launch("b", role=Role.HEDGE)
    end(admit(fleet, view, Role.HEDGE), view, launched=False)
    assert fleet.counts(0.0) == FleetCounts(0, 0, 0, 0, 0, 0)


BATCH = Run("r", clock=lambda: 0.0, priority="batch")
INTERACTIVE = Run("r", clock=lambda: 0.0)


@pytest.mark.parametrize(
    ("view", "eligible"),
    [
        (View(), True),
        (View(run=INTERACTIVE), True),
        (View(effect=Effect.KEYED), True),
        (View(run=BATCH), False),
        (View(effect=Effect.ONCE), False),
        (View(effect=Effect.UNKNOWN), False),
        (View(barred=Refused(Reason.BARRED)), False),
        (View(candidates=(place("a"),)), False),
    ],
)
def test_a_request_is_eligible_when_a_hedge_of_it_is_possible(view: View, eligible: bool) -> None:
    fleet = Fleet()
    admit(fleet, view, Role.PRIMARY)
    assert fleet.counts(0.0)[:2] == (1, int(eligible))


def test_the_fleet_view_gives_ratios_per_logical_request() -> None:
    fleet: FleetView = Fleet(0.1)
    assert (fleet.budget, fleet.requests(0.0), fleet.second_hedge_rate(0.0), fleet.eligible_share(0.0)) == (
        0.1,
        0,
        0,
        1,
    )
    assert isinstance(fleet, Fleet)
    for _ in range(3):
        fleet.count(Field.ELIGIBLE, 0.0)
    fleet.count(Field.INELIGIBLE, 0.0)
    fleet.count(Field.SECOND_HEDGES, 0.0)
    assert (fleet.requests(0.0), fleet.second_hedge_rate(0.0), fleet.eligible_share(0.0)) == (4, 0.25, 0.75)


def test_the_eligible_share_is_never_zero() -> None:
    fleet = Fleet()
    for _ in range(4):
        fleet.count(Field.INELIGIBLE, 0.0)
    assert fleet.eligible_share(0.0) == 0.25


def test_the_window_is_sixty_buckets_of_a_minute() -> None:
    fleet = Fleet()
    fleet.count(Field.ELIGIBLE, 59.9)
    fleet.count(Field.ELIGIBLE, 60.0)
    assert fleet.requests(3599.9) == 2
    assert fleet.requests(3600.0) == 1
    assert fleet.requests(3660.0) == 0


def test_threads_lose_no_count() -> None:
    fleet = Fleet()

    def work() -> None:
        for _ in range(2000):
            admit(fleet, View(), Role.PRIMARY)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert fleet.requests(0.0) == 8000
