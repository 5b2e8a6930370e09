"""The planner: when it has a plan, what it hears, and that it never builds where a step waits."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest

from agent_hedge.core.ports import Permit, Refused
from agent_hedge.core.ports import Planned as Plan
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Ahead, Attempt, Ended, Role, StepKey, Verdict
from agent_hedge.errors import ConfigurationError
from agent_hedge.latency import LatencyBook
from agent_hedge.planning.planner import LONGEST, NEEDED, Planner, Steps, path
from agent_hedge.planning.price import Price
from agent_hedge.planning.steps import ENOUGH
from agent_hedge.policies import Fixed, Planned
from agent_hedge.testing.fakes import View, place

KEY = StepKey(node="step")


class Jobs:
    """Background jobs, run when the test says so."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def __call__(self, job: Callable[[], None]) -> None:
        self.waiting.append(job)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class Broken:
    """Curves that cannot be read."""

    def long_curve(self, key: StepKey, target: str, now: float) -> Steps | None:
        raise ZeroDivisionError


def make(samples: int = NEEDED) -> tuple[Planner, Jobs, LatencyBook]:
    book, rest, jobs = LatencyBook(), LatencyBook(), Jobs()
    rng = random.Random(1)
    for number in range(samples):
        stall = 2 * rng.paretovariate(1.3) if rng.random() < 0.04 else 0.0
        book.record(KEY, "a", rng.lognormvariate(-0.22, 0.35) + stall, number * 0.001)
        rest.record(KEY, "", rng.lognormvariate(0.7, 0.5), number * 0.001)
    return Planner(book, rest, rest, Price(0.05), jobs), jobs, rest


def run(steps: int | None = 20, done: int = 1, graph: str = "", purse: int = 100, parent: Run | None = None) -> Run:
    opened = Run(
        clock=lambda: 10.0, deadline=1e9, declared_steps=steps, graph=graph, extra_attempts=purse, parent=parent
    )
    opened.steps = done
    return opened


def view(*, launched: int = 1, hedges: int = 0, **settings: Any) -> View:
    """Return a step as seen at 10 s (unless told else), its primary launched at 10 s."""
    defaults: dict[str, Any] = {"key": KEY, "started_at": 10.0}
    seen = View(**(defaults | settings))
    if isinstance(seen.run, Run) and "deadline" in settings:
        seen.run.deadline = settings["deadline"]
    now = settings.get("now", 10.0)
    for number in range(launched + hedges):
        seen.launch("a", role=Role.PRIMARY if number < launched else Role.HEDGE, at=10.0)
    seen.now = now
    return seen


def test_a_plan_is_built_off_the_loop_and_used_when_it_is_there() -> None:
    planner, jobs, _ = make()
    asked = view(run=run(), deadline=98.0)
    assert planner.delay(asked) is None
    assert planner.delay(asked) is None
    assert len(jobs.waiting) == 1  # asked for once
    jobs.run()
    plan = planner.delay(asked)
    assert plan is not None
    assert 0 < plan.delay < 10
    assert not plan.estimated


def test_a_plan_is_built_again_as_the_window_rolls() -> None:
    planner, jobs, _ = make()
    planner.delay(view(run=run(), deadline=88.0))
    jobs.run()
    planner.delay(view(run=run(), deadline=88.0, now=39.0))
    assert not jobs.waiting
    planner.delay(view(run=run(), deadline=88.0, now=40.5))
    assert len(jobs.waiting) == 1


def test_a_build_that_fails_is_tried_again_when_the_next_would_be_due() -> None:
    planner, jobs, _ = make()
    planner._first_tokens = Broken()
    planner.delay(view(run=run(), deadline=88.0))
    with pytest.raises(ZeroDivisionError):
        jobs.run()
    planner.delay(view(run=run(), deadline=88.0, now=39.0))
    assert not jobs.waiting
    planner.delay(view(run=run(), deadline=88.0, now=40.5))
    assert len(jobs.waiting) == 1


def test_tables_are_built_one_at_a_time() -> None:
    planner, jobs, _ = make()
    curves, others = planner._first_tokens, []

    class Meanwhile:
        def long_curve(self, key: StepKey, target: str, now: float) -> Steps | None:
            if jobs.waiting:  # while the first table is built, another thread takes the second job
                others.append(thread := threading.Thread(target=jobs.waiting.pop()))
                thread.start()
                assert planner._one_at_a_time.locked()
                built.append("first")
            else:
                built.append("second")
            return curves.long_curve(KEY, target, now)

    planner._first_tokens, built = Meanwhile(), list[str]()
    for node in ("one", "two"):
        planner.delay(view(key=StepKey(node=node), run=run(), deadline=88.0))
    jobs.waiting.pop(0)()
    others[0].join()
    assert built == ["first", "second"]


def test_no_plan_from_too_few_latencies() -> None:
    planner, jobs, _ = make(NEEDED - 1)
    planner.delay(view(run=run(), deadline=88.0))
    jobs.run()
    assert planner.delay(view(run=run(), deadline=88.0)) is None


@pytest.mark.parametrize("settings", [{"run": None}, {"deadline": 9.0}])
def test_no_plan_outside_a_run_or_for_one_that_is_late(settings: dict[str, Any]) -> None:
    planner, jobs, _ = make()
    planner.delay(view(run=run(), deadline=88.0))
    jobs.run()
    defaults: dict[str, Any] = {"run": run(), "deadline": 88.0}
    assert planner.delay(view(**(defaults | settings))) is None


def test_a_time_out_of_the_step_says_nothing_about_the_slack_of_the_run() -> None:
    planner, jobs, _ = make()
    planner.delay(view(run=run(), deadline=98.0))
    jobs.run()
    plan = planner.delay(view(run=run(), deadline=98.0))
    asked = view(run=run(), deadline=98.0)
    asked.deadline = 15.0
    assert planner.delay(asked) == plan
    assert plan is not None
    assert plan.slack == 88.0


def test_an_undeclared_length_is_learnt_from_ended_runs_of_the_graph() -> None:
    planner, jobs, _ = make()
    unknown = view(run=run(None, graph="g"), deadline=88.0)
    assert planner.delay(unknown) is None
    for number in range(ENOUGH):
        planner.ended(run(None, done=15 + number % 10, graph="g"))
    planner.delay(unknown)
    jobs.run()
    plan = planner.delay(unknown)
    assert plan is not None
    assert plan.estimated
    assert planner.delay(view(run=run(None, graph="other"), deadline=88.0)) is None


def left_by(planner: Planner, jobs: Jobs, opened: Run, ahead: Ahead | None) -> Plan | None:
    """Return the delay, and whether it is an estimate, of a step with 60 s to its deadline."""
    asked = view(run=opened, deadline=70.0, ahead=ahead)
    planner.delay(asked)
    jobs.run()
    return planner.delay(asked)


def test_the_steps_that_a_graph_still_has_stand_in_for_declared_ones() -> None:
    planner, jobs, _ = make()
    declared = left_by(planner, jobs, run(20, done=5), None)
    assert declared is not None
    static = left_by(planner, jobs, run(None, done=5), Ahead(16, critical=True))
    assert static == declared._replace(estimated=True)
    assert left_by(planner, jobs, run(20, done=5), Ahead(2, critical=True)) == declared
    assert left_by(planner, jobs, run(None), Ahead(None, critical=True)) is None
    assert left_by(planner, jobs, run(None), Ahead(LONGEST + 1, critical=True)) is None


def test_learnt_lengths_come_before_a_graphs_longest_path_where_their_graph_is_named() -> None:
    """They know of loops within nodes, and how often a branch is taken; unnamed, runs of any graphs are mixed."""
    planner, jobs, _ = make()
    ahead = Ahead(20, critical=True)
    longest = left_by(planner, jobs, run(None, graph="g"), ahead)
    assert longest is not None
    for graph in ("", "g"):
        for _ in range(ENOUGH):
            planner.ended(run(None, done=5, graph=graph))
    assert left_by(planner, jobs, run(None, graph=""), ahead) == longest
    learnt = left_by(planner, jobs, run(None, graph="g"), ahead)
    assert learnt is not None
    assert learnt[0] > longest[0]
    assert left_by(planner, jobs, run(None, graph=""), None) == learnt


@pytest.mark.parametrize("declared", [20, None])
def test_a_branch_that_is_not_waited_for_has_no_plan(declared: int | None) -> None:
    planner, jobs, _ = make()
    assert left_by(planner, jobs, run(declared), Ahead(20, critical=True)) is not None
    assert left_by(planner, jobs, run(declared), Ahead(20, critical=False)) is None


def test_fewer_steps_left_with_the_same_slack_hedge_later() -> None:
    planner, jobs, _ = make()
    planner.delay(view(run=run(), deadline=70.0))
    jobs.run()
    delays = []
    for done in (1, 5, 10):
        plan = planner.delay(view(run=run(done=done), deadline=70.0))
        assert plan is not None
        delays.append(plan.delay)
    assert delays == sorted(delays)
    assert delays[0] < delays[-1]


def test_a_run_makes_its_purse_last() -> None:
    planner, jobs, _ = make()
    late = 50.0  # slack for half of the steps: with a full purse it would hedge at once
    planner.delay(view(run=run(), deadline=late))
    jobs.run()

    def delay(opened: Run) -> float:
        plan = planner.delay(view(run=opened, deadline=late))
        assert plan is not None
        return plan.delay

    delays = [delay(run(purse=purse)) for purse in (1, 2, 4, 20)]
    assert delays == sorted(delays, reverse=True)
    assert delays[0] > delays[1] > delays[2] > delays[3] == 0.0
    assert delay(run(purse=10, parent=run(purse=1))) == delay(run(purse=1))
    assert delay(run(purse=0)) == delay(run(purse=1))  # the purse itself says no, and why


def test_a_purse_that_is_not_ample_for_the_steps_left_is_no_full_one() -> None:
    planner, jobs, _ = make()
    planner.delay(view(run=run(50), deadline=110.0))
    jobs.run()
    six, four, many = (planner.delay(view(run=run(50, purse=purse), deadline=110.0)) for purse in (6, 4, 50))
    assert six == four != many
    six, many = (planner.delay(view(run=run(50, done=21, purse=purse), deadline=70.0)) for purse in (6, 50))
    assert six == many  # for 30 steps left


def test_an_infinite_price_hedges_nothing() -> None:
    planner, jobs, _ = make()
    planner.delay(view(run=run(), deadline=50.0))
    jobs.run()
    planner.price.closed = True
    assert planner.delay(view(run=run(), deadline=50.0)) == (math.inf, False, 40.0)


def test_more_steps_than_a_table_has_are_not_planned_until_they_fit() -> None:
    planner, jobs, _ = make()
    planner.delay(view(run=run(LONGEST), deadline=400.0))
    jobs.run()
    assert planner.delay(view(run=run(LONGEST + 1), deadline=400.0)) is None
    assert planner.delay(view(run=run(LONGEST + 1, done=2), deadline=400.0)) is not None


def test_parallel_branches_count_once() -> None:
    """One step, then ten branches of two steps each, then one: on the path that is four."""
    planner, _, _ = make(0)
    opened = run(4, done=0)

    def step() -> tuple[Permit, View]:
        opened.steps += 1
        return admit(planner, seen := view(run=opened)), seen

    planner.delay(view(run=opened))  # somebody plans: from now on it listens
    step()[0].committed(at=11.0)
    assert path(opened) == 1
    for level in (2, 3):
        permits = []
        for _ in range(10):
            permits.append(step())
            assert path(opened) == level
        for permit, _ in permits:
            permit.committed(at=12.0)
    step()
    assert path(opened) == 4
    assert opened.steps == 22


def test_the_length_that_is_learnt_is_that_of_the_path() -> None:
    planner, jobs, _ = make()
    for _ in range(ENOUGH):
        ended = run(None, done=22, graph="g")
        ended.beside = 18
        planner.ended(ended)
    asked = view(run=run(None, graph="g"), deadline=30.0)
    planner.delay(asked)
    jobs.run()
    with_four_steps = planner.delay(asked)
    planner.delay(view(run=run(4), deadline=30.0))
    jobs.run()
    assert with_four_steps is not None
    declared = planner.delay(view(run=run(4), deadline=30.0))
    assert declared is not None
    assert with_four_steps.delay == declared.delay


def test_it_hears_what_a_step_takes_beside_its_first_token() -> None:
    planner, _, rest = make(0)
    opened = run()
    planner.delay(view(run=opened))  # somebody plans: from now on it listens
    first = admit(planner, view(run=opened, now=10.0))
    first.committed(at=11.0)
    admit(planner, view(run=opened, now=13.5))
    assert rest.learning(KEY, "", 14.0)[0] == 1
    admit(planner, view(run=opened, now=13.6))  # beside a step that still waits: no gap to learn from
    assert rest.learning(KEY, "", 14.0)[0] == 1


def test_the_price_hears_each_eligible_step_once() -> None:
    planner, _, _ = make(0)
    opened, before = run(), planner.price.value
    planner.delay(view(run=opened))
    for _ in range(400):
        permit = admit(planner, view(run=opened, hedges=1))
        permit.settle(Ended(attempt(), Verdict.SUPERSEDED), at=11.0)
    assert planner.price.value > before
    settled = planner.price.value
    permit = admit(planner, view(run=opened, hedges=1, candidates=(place("a"),)))
    permit.settle(Ended(attempt(), Verdict.WON), at=11.0)
    assert planner.price.value == settled


def test_nothing_is_heard_outside_runs() -> None:
    planner, _, _ = make(0)
    assert admit(planner, view(run=None)) is PASS


def attempt() -> Attempt:
    return Attempt(0, Role.PRIMARY, place("a"), 10.0, math.inf)


def admit(planner: Planner, seen: View) -> Permit:
    answer = planner.admit(attempt(), seen)
    assert not isinstance(answer, Refused)
    return answer


class Plans:
    """A plan view that answers what the test says."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def delay(self, _: object) -> Any:
        return self.answer


POLICY = Planned(base=Fixed(2.0))


@pytest.mark.parametrize(
    ("answer", "due"),
    [((0.5, False), 10.5), ((5.0, False), 15.0), ((math.inf, False), None), (None, 12.0)],
)
def test_the_policy_follows_the_plan(answer: tuple[float, bool] | None, due: float | None) -> None:
    plans = Plans(None if answer is None else Plan(*answer, 78.0))
    assert POLICY.next_launch_at(view(run=run(), deadline=88.0, plans=plans)) == due


@pytest.mark.parametrize(("delay", "due"), [(0.5, 10.5), (5.0, 12.0), (math.inf, 12.0)])
def test_an_estimated_length_never_makes_a_hedge_later_than_the_static_trigger(delay: float, due: float) -> None:
    assert POLICY.next_launch_at(view(run=run(), deadline=88.0, plans=Plans(Plan(delay, True, 78.0)))) == due


@pytest.mark.parametrize("settings", [{"run": None}, {"deadline": math.inf}, {"plans": None}, {"launched": 2}])
def test_without_a_run_a_deadline_or_for_a_second_hedge_the_base_decides(settings: dict[str, Any]) -> None:
    defaults: dict[str, Any] = {"run": run(), "deadline": 88.0, "plans": Plans(Plan(0.5, False, 78.0))}
    expected = Fixed(2.0).next_launch_at(view(**(defaults | settings)))
    assert POLICY.next_launch_at(view(**(defaults | settings))) == expected


def test_r20_a_base_that_is_no_policy() -> None:
    with pytest.raises(ConfigurationError, match="base"):
        Planned(base=3)  # type: ignore[arg-type]
