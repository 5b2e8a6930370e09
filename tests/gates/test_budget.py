"""Both purses of R13: exact counts, exact instants, any schedule, many threads."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Ended, Role, Verdict
from agent_hedge.errors import ConfigurationError
from agent_hedge.gates import FleetBudget
from agent_hedge.testing.fakes import View


class Client:
    """Asks a budget as races would."""

    def __init__(self, budget: FleetBudget | None = None, run: Run | None = None) -> None:
        self.budget = budget or FleetBudget()
        self.run = run

    def request(self, now: float, count: int = 1) -> None:
        for _ in range(count):
            view = View(now=now, run=self.run)
            assert self.budget.admit(view.attempt(), view) is PASS

    def ask(self, role: Role, now: float, launched: int = 1) -> Permit | Refused:
        view = View(now=now, run=self.run)
        for _ in range(launched):
            view.launch("a")
        return self.budget.admit(view.attempt(role, "b"), view)

    def grants(self, role: Role, now: float, tries: int) -> int:
        return sum(not isinstance(self.ask(role, now), Refused) for _ in range(tries))


def unsent(permit: Permit | Refused, role: Role, at: float) -> None:
    assert not isinstance(permit, Refused)
    permit.settle(Ended(View(now=at).attempt(role), Verdict.UNKNOWN, launched=False), at=at)


def sent(permit: Permit | Refused, role: Role, at: float, verdict: Verdict = Verdict.SUPERSEDED) -> None:
    assert not isinstance(permit, Refused)
    permit.committed(at=at)
    permit.settle(Ended(View(now=at).attempt(role), verdict), at=at)


# --- hedges: the window -----------------------------------------------------------------------------------------------


def test_r13_the_floor_is_two_an_hour_whatever_the_traffic() -> None:
    client = Client()
    assert client.grants(Role.HEDGE, 0.0, 10) == 2
    client.request(1.0, 40)  # 5 % of 40 is no more than the floor
    assert client.grants(Role.HEDGE, 1.0, 10) == 0
    client.request(2.0, 19)
    assert client.grants(Role.HEDGE, 2.0, 10) == 0
    client.request(2.0, 1)  # 60 requests: the third
    assert client.grants(Role.HEDGE, 2.0, 10) == 1


@pytest.mark.parametrize(("requests", "hedges"), [(0, 2), (59, 2), (60, 3), (100, 5), (119, 5), (120, 6), (200, 10)])
def test_r13_hedges_of_a_window_are_at_most_five_percent_of_its_requests(requests: int, hedges: int) -> None:
    client = Client()
    client.request(0.0, requests)
    assert client.grants(Role.HEDGE, 0.0, 50) == hedges


def test_r13_the_refusal_names_the_purse_and_its_numbers() -> None:
    client = Client()
    client.request(0.0, 100)
    client.grants(Role.HEDGE, 0.0, 5)
    assert client.ask(Role.HEDGE, 0.0) == Refused(Reason.FLEET_BUDGET, "5 hedges of 100 requests")


def test_r13_requests_and_hedges_leave_the_window_after_an_hour() -> None:
    client = Client()
    client.request(0.0, 100)
    assert client.grants(Role.HEDGE, 0.0, 10) == 5
    assert client.grants(Role.HEDGE, 3599.9, 10) == 0
    # At 3600 s the requests are gone, and the hedges are counted for one slice more.
    assert client.grants(Role.HEDGE, 3600.9, 10) == 0
    assert client.grants(Role.HEDGE, 3601.0, 10) == 2


# --- hedges: the bucket -----------------------------------------------------------------------------------------------


def test_r13_an_hour_of_quiet_does_not_pay_for_a_first_bad_minute() -> None:
    """1/s for 55 minutes, then everything is slow: the window alone would grant every one of the next 60."""
    client = Client()
    for second in range(3300):
        client.request(float(second))
    granted = 0
    for second in range(3300, 3360):
        client.request(float(second))
        granted += client.grants(Role.HEDGE, float(second), 1)
    assert granted == 10 + 2  # the burst, and 0.05 for each of the 59 requests after the first hedge


def test_r13_the_bucket_starts_full_and_holds_ten() -> None:
    client = Client()
    client.request(0.0, 1000)
    assert client.grants(Role.HEDGE, 0.0, 50) == 10
    assert client.ask(Role.HEDGE, 0.0) == Refused(Reason.FLEET_BUDGET, "burst used up")


def test_r13_the_bucket_is_fed_by_requests_exactly() -> None:
    client = Client()
    client.request(0.0, 1000)
    client.grants(Role.HEDGE, 0.0, 10)
    for _ in range(5):
        client.request(1.0, 19)
        assert client.grants(Role.HEDGE, 1.0, 5) == 0
        client.request(1.0, 1)  # twenty times 0.05 is one, not 0.9999
        assert client.grants(Role.HEDGE, 1.0, 5) == 1


def test_r13_the_bucket_is_never_fed_by_a_clock() -> None:
    client = Client()
    client.request(0.0, 1000)
    client.grants(Role.HEDGE, 0.0, 10)
    assert client.grants(Role.HEDGE, 3500.0, 5) == 0
    assert client.grants(Role.HEDGE, 1e9, 5) == 0
    assert client.budget.counts(1e9).tokens == 0.0


def test_r13_slow_agents_are_not_hedged_all_the_time() -> None:
    """0.5 calls a second, every call slow: clock-fed buckets grant 100 % of them (hedging_peers 2)."""
    client = Client()
    granted = 0
    for call in range(10_000):
        client.request(call * 2.0)
        granted += client.grants(Role.HEDGE, call * 2.0, 1)
    assert granted <= 0.05 * 10_000 + 2
    assert granted >= 0.045 * 10_000


# --- recoveries -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("requests", "recoveries"), [(0, 10), (4, 10), (5, 11), (100, 30), (104, 30), (105, 31)])
def test_r13_recoveries_are_a_fifth_of_the_requests_and_ten_a_minute(requests: int, recoveries: int) -> None:
    client = Client()
    client.request(0.0, requests)
    assert client.grants(Role.RECOVERY, 0.0, 100) == recoveries
    assert client.ask(Role.RECOVERY, 0.0) == Refused(
        Reason.FLEET_BUDGET, f"{recoveries} recoveries of {requests} requests in a minute"
    )


def test_r13_ten_recoveries_every_minute() -> None:
    client = Client()
    assert client.grants(Role.RECOVERY, 0.0, 20) == 10
    assert client.grants(Role.RECOVERY, 60.9, 20) == 0
    assert client.grants(Role.RECOVERY, 61.0, 20) == 10


def test_r13_at_most_three_attempts_a_step_are_recoveries() -> None:
    client = Client()
    assert not isinstance(client.ask(Role.RECOVERY, 0.0, launched=2), Refused)
    assert client.ask(Role.RECOVERY, 0.0, launched=3) == Refused(Reason.FLEET_BUDGET, "3 attempts a step")
    assert client.budget.counts(0.0).recoveries == 1


def test_r13_the_purses_are_apart() -> None:
    client = Client()
    client.request(0.0, 100)
    assert client.grants(Role.RECOVERY, 0.0, 100) == 30
    assert client.grants(Role.HEDGE, 0.0, 100) == 5
    assert client.budget.counts(0.0) == (100, 5, 30, 5.0)


# --- counted before it is sent, given back when it is not -------------------------------------------------------------


def test_r13_a_dispatch_is_counted_before_it_is_sent() -> None:
    client = Client()
    permit = client.ask(Role.HEDGE, 0.0)
    assert client.budget.counts(0.0).hedges == 1
    sent(permit, Role.HEDGE, 5.0)
    assert client.budget.counts(5.0).hedges == 1


@pytest.mark.parametrize("verdict", Verdict)
def test_r13_what_was_sent_is_never_given_back(verdict: Verdict) -> None:
    client = Client()
    for role in (Role.HEDGE, Role.RECOVERY):
        sent(client.ask(role, 0.0), role, 1.0, verdict)
    assert client.budget.counts(1.0) == (0, 1, 1, 9.0)


def test_r13_what_a_later_gate_refused_is_given_back() -> None:
    client = Client()
    for _ in range(100):
        unsent(client.ask(Role.HEDGE, 0.0), Role.HEDGE, 0.0)
        unsent(client.ask(Role.RECOVERY, 0.0), Role.RECOVERY, 0.0)
    assert client.budget.counts(0.0) == (0, 0, 0, 10.0)


def test_r13_giving_back_never_fills_the_bucket_above_its_burst() -> None:
    client = Client()
    permit = client.ask(Role.HEDGE, 0.0)
    client.request(0.0, 1000)
    unsent(permit, Role.HEDGE, 0.0)
    assert client.grants(Role.HEDGE, 0.0, 50) == 10


# --- the run's own purse ----------------------------------------------------------------------------------------------


def run_of(extra: int, steps: int = 0) -> Run:
    run = Run("r", clock=lambda: 0.0, extra_attempts=extra)
    for _ in range(steps):
        run.begin_step()
    return run


def test_r13_a_run_hedges_no_more_than_its_own_purse() -> None:
    run = run_of(3)
    client = Client(run=run)
    client.request(0.0, 1000)
    assert client.grants(Role.HEDGE, 0.0, 10) == 3
    assert client.ask(Role.HEDGE, 0.0) == Refused(Reason.RUN_BUDGET)
    assert client.budget.counts(0.0).hedges == 3


def test_r13_a_run_recovers_a_fifth_of_its_steps_and_ten() -> None:
    client = Client(run=run_of(0, steps=10))
    client.request(0.0, 1000)
    assert client.grants(Role.RECOVERY, 0.0, 100) == 12


def test_r13_what_the_fleet_refuses_goes_back_to_the_run() -> None:
    run = run_of(5)
    client = Client(run=run)
    assert client.grants(Role.HEDGE, 0.0, 10) == 2
    assert run.extra_attempts_used == 2
    assert client.grants(Role.RECOVERY, 0.0, 20) == 10
    assert run.recoveries_used == 10


def test_r13_what_is_never_sent_goes_back_to_the_run() -> None:
    run = run_of(1)
    client = Client(run=run)
    unsent(client.ask(Role.HEDGE, 0.0), Role.HEDGE, 0.0)
    unsent(client.ask(Role.RECOVERY, 0.0), Role.RECOVERY, 0.0)
    assert (run.extra_attempts_used, run.recoveries_used) == (0, 0)
    assert client.grants(Role.HEDGE, 0.0, 3) == 1


# --- any schedule, any thread -----------------------------------------------------------------------------------------

WINDOW = 90.0
moves = st.lists(
    st.tuples(
        st.sampled_from(
            ["request", "request", "requests", "hedge", "hedge", "recovery", "unsent hedge", "unsent recovery"]
        ),
        st.one_of(st.just(0.0), st.floats(0, 2), st.floats(0, 100)),
    ),
    max_size=120,
)


@settings(max_examples=300)
@given(moves=moves, share=st.sampled_from([0.05, 0.07, 0.1, 1 / 3]), floor=st.integers(0, 3), burst=st.integers(1, 5))
def test_r13_both_inequalities_hold_at_every_grant(
    moves: list[tuple[str, float]], share: float, floor: int, burst: int
) -> None:
    """Against exact instants and exact fractions, whatever the slices are."""
    client = Client(FleetBudget(share, floor=floor, burst=burst, window=WINDOW))
    exact, now = Fraction(round(share * 10**9), 10**9), 0.3
    requests, hedges, recoveries, tokens = list[float](), list[float](), list[float](), Fraction(burst)
    for move, dt in moves:
        now += dt
        if move.startswith("request"):
            count = 25 if move == "requests" else 1
            client.request(now, count)
            requests += [now] * count
            for _ in range(count):
                tokens = min(tokens + exact, Fraction(burst))
            continue
        role = Role.HEDGE if "hedge" in move else Role.RECOVERY
        permit = client.ask(role, now)
        if isinstance(permit, Refused):
            continue
        if move.startswith("unsent"):
            unsent(permit, role, now)
        elif role is Role.HEDGE:
            hedges.append(now)
            tokens -= 1
            inside = sum(at > now - WINDOW for at in hedges)
            assert inside <= max(exact * sum(at > now - WINDOW for at in requests), Fraction(floor))
            assert tokens >= 0
        else:
            recoveries.append(now)
            inside = sum(at > now - 60 for at in recoveries)
            assert inside <= Fraction(1, 5) * sum(at > now - 60 for at in requests) + 10


def test_r13_threads_never_get_more_than_there_is() -> None:
    client, workers, rounds = Client(), 8, 500
    start, granted = threading.Barrier(workers), [0] * workers

    def work(worker: int) -> None:
        start.wait()
        for turn in range(rounds):
            client.request(float(turn))
            granted[worker] += client.grants(Role.HEDGE, float(turn), 1)
            permit = client.ask(Role.HEDGE, float(turn))
            if not isinstance(permit, Refused):
                unsent(permit, Role.HEDGE, float(turn))

    threads = [threading.Thread(target=work, args=(worker,)) for worker in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = client.budget.counts(float(rounds - 1))
    assert counts.requests == workers * rounds
    assert counts.hedges == sum(granted) <= 0.05 * workers * rounds
    assert 0 <= counts.tokens <= 10


@pytest.mark.parametrize("extra", [1, 7])
def test_r13_threads_share_the_run_purse_exactly(extra: int) -> None:
    client = Client(FleetBudget(1.0, burst=10_000, recoveries=1.0), run=run_of(extra))
    client.request(0.0, 10_000)
    start, granted = threading.Barrier(8), list[int]()

    def work() -> None:
        start.wait()
        granted.append(client.grants(Role.HEDGE, 0.0, 200))

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(granted) == extra == client.budget.counts(0.0).hedges


def test_a_clock_that_runs_behind_counts_as_now() -> None:
    client = Client()
    client.request(5000.0, 100)
    client.request(10.0, 100)
    assert client.budget.counts(5000.0).requests == 200
    assert client.grants(Role.HEDGE, 10.0, 50) == 10


# --- the value --------------------------------------------------------------------------------------------------------


def test_a_budget_shows_its_settings() -> None:
    budget = FleetBudget(0.1, burst=5, cost=2)
    assert repr(budget) == (
        "FleetBudget(0.1, floor=2, burst=5, window=3600.0, recoveries=0.2, recoveries_per_minute=10, cost=2.0)"
    )
    assert FleetBudget().share == 0.05


def test_the_ends_of_the_ranges_can_be_meant() -> None:
    assert FleetBudget(0, floor=0, burst=1, window=60, recoveries=0, recoveries_per_minute=0).share == 0
    assert FleetBudget(1, recoveries=1).recoveries == 1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FleetBudget(-0.01), "share must be a ratio from 0 to 1, got -0.01"),
        (lambda: FleetBudget(5), "share .* got 5"),
        (lambda: FleetBudget(math.nan), "share .* got nan"),
        (lambda: FleetBudget("0.05"), "share .* got '0.05'"),  # type: ignore[arg-type]
        (lambda: FleetBudget(True), "share .* got True"),
        (lambda: FleetBudget(floor=-1), "floor must be a whole number >= 0, got -1"),
        (lambda: FleetBudget(floor=1.5), "floor .* got 1.5"),  # type: ignore[arg-type]
        (lambda: FleetBudget(burst=0), "burst must be a whole number >= 1, got 0"),
        (lambda: FleetBudget(window=0), "window must be a finite number of seconds >= 60, got 0"),
        (lambda: FleetBudget(window=math.inf), "window .* got inf"),
        (lambda: FleetBudget(window=math.nan), "window .* got nan"),
        (lambda: FleetBudget(recoveries=1.1), "recoveries must be a ratio from 0 to 1, got 1.1"),
        (lambda: FleetBudget(recoveries_per_minute=-1), "recoveries_per_minute must be a whole number >= 0, got -1"),
    ],
)
def test_r20_budgets_that_cannot_be_meant(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        make()
