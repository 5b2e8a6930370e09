"""What a race tells, to the last field: events, permits, the view, and the odd corners of its life cycle."""

from __future__ import annotations

import math
from typing import Any

import pytest

from agent_hedge.core.events import (
    AttemptEnded,
    AttemptRefused,
    AttemptStarted,
    CancelSent,
    Committed,
    Event,
    FirstToken,
    Reason,
    StepClosed,
    StepEnded,
    StepPlanned,
    StepReopened,
    StepStarted,
    TriggerArmed,
    TriggerLate,
)
from agent_hedge.core.ports import Choice, Grounds, Permit, RaceView, Refused
from agent_hedge.core.race import LATE_S, PASS, Answer, Cancel, Commit, Done, Launch, Race, State, Token
from agent_hedge.core.scope import Run
from agent_hedge.core.step import Ahead, Attempt, Effect, Ended, Failure, Outcome, Receipt, Role, StepKey, Verdict
from agent_hedge.errors import AnswerRejected, DeadlineExceeded, NotDispatched
from agent_hedge.testing.empty import QuietFleet
from agent_hedge.testing.scenario import After, Site
from tests.core.test_race import EMPTY, Elsewhere, Gatekeeper, failed, make, ok, reset

KEY = StepKey(node="n")


def told(commands: list[Any]) -> list[Event]:
    return [command.event for command in commands if hasattr(command, "event")]


def answer_of(commands: list[Any]) -> Answer:
    return next(command for command in commands if isinstance(command, Answer))


class Book:
    """Keeps all that it is told."""

    def __init__(self) -> None:
        self.recorded: list[tuple[Any, ...]] = []
        self.censored: list[tuple[Any, ...]] = []

    def record(self, *sample: Any) -> None:
        self.recorded.append(sample)

    def record_censored(self, *sample: Any) -> None:
        self.censored.append(sample)


class Settles:
    """A gate and a permit that keep their instants."""

    def __init__(self) -> None:
        self.seen: list[tuple[Attempt, RaceView]] = []
        self.ends: list[tuple[Ended, float]] = []

    def admit(self, attempt: Attempt, view: RaceView) -> Permit:
        self.seen.append((attempt, view))
        return self

    def committed(self, *, at: float) -> None: ...

    def settle(self, end: Ended, *, at: float) -> None:
        self.ends.append((end, at))


class Always:
    """A policy that would go on for ever."""

    def next_launch_at(self, view: RaceView) -> float:
        return view.last_launch_at + 1.0


class OneMore:
    """A policy for a hedge of its own, that then refuses."""

    def next_launch_at(self, view: RaceView) -> float | Refused:
        return view.last_launch_at + 1.0 if view.launched == 1 else Refused(Reason.COLD, "37 of 200")


# --- the story ------------------------------------------------------------------------------------------------------


def test_a_hedged_step_is_told_to_the_last_field() -> None:
    run = Run("thread-7", clock=lambda: 0.0, deadline=30.0, generation=2, tenant="acme")
    race = make(policy=OneMore(), run=run, deadline=30.0, commit_on_token=True, observed=True, step_id="s1")
    fact: dict[str, Any] = {"step_id": "s1", "key": KEY}

    started = told(race.start(10.0))
    first = race.attempts[0]
    assert started == [
        StepStarted(at=10.0, deadline=30.0, run_key="thread-7", generation=2, tenant="acme", **fact),
        AttemptStarted(at=10.0, attempt=first, **fact),
        TriggerArmed(at=10.0, due_at=11.0, **fact),
    ]
    hedged = told(race.on_timer(11.0))
    second = race.attempts[1]
    assert hedged == [
        AttemptStarted(at=11.0, attempt=second, **fact),
        AttemptRefused(at=11.0, role=Role.HEDGE, reason=Reason.COLD, detail="37 of 200", **fact),
    ]
    assert told(race.on_token(1, 11.5)) == [
        FirstToken(at=11.5, attempt=second, latency=0.5, **fact),
        Committed(at=11.5, attempt=second, by_claim=False, **fact),
        CancelSent(at=11.5, attempt=first, cause="superseded", **fact),
    ]
    receipt = Receipt(phase="decode", tokens=7)
    assert told(race.on_ended(0, 11.75, receipt)) == [
        AttemptEnded(
            at=11.75, attempt=first, verdict=Verdict.SUPERSEDED, receipt=receipt, failure=None, error="",
            latency=None, censored_at=1.5, **fact,
        ),
    ]  # fmt: skip
    assert told(race.on_outcome(1, ok(), 12.0)) == [
        StepEnded(at=12.0, winner=second, launched=2, elapsed=2.0, error="", **fact),
    ]
    assert told(race.on_ended(1, 12.0)) == [
        AttemptEnded(
            at=12.0, attempt=second, verdict=Verdict.WON, receipt=Receipt(), failure=None, error="", latency=0.5,
            censored_at=None, **fact,
        ),
        StepClosed(at=12.0, **fact),
    ]  # fmt: skip


class HeardRun(Run):
    """A run that remembers which steps have ended, by the size of their prompts."""

    def __init__(self) -> None:
        super().__init__(clock=lambda: 0.0)
        self.ended: list[int] = []

    def end_step(self, tokens: int = 0) -> None:
        self.ended.append(tokens)


def test_a_run_hears_how_its_step_was_answered_and_that_it_was() -> None:
    run = HeardRun()
    race = make(run=run, commit_on_token=True, prompt_tokens=77)
    race.start(2.0)
    race.on_timer(3.0)
    assert run.last_step is None
    race.on_token(1, 3.25)
    assert run.last_step == (race.key, "t1", 0.25, 2)
    assert run.ended == []
    race.on_outcome(1, failed(), 4.0)
    assert run.ended == [77]
    assert not run.answered, "its stream broke"


def test_a_run_hears_which_target_has_answered() -> None:
    run = HeardRun()
    race = make(run=run)
    race.start(0.0)
    race.on_timer(1.0)
    race.on_outcome(1, ok(), 1.5)
    assert run.answered == {"t1": 1}
    race = make(run=run)
    race.start(2.0)
    race.on_cancel(2.5)
    assert run.answered == {"t1": 1}, "nobody answered a caller who has left"


def test_a_race_shows_its_policy_what_is_ahead() -> None:
    assert make(ahead=Ahead(left=3, critical=False)).ahead == (3, False)


def test_r03_a_step_that_is_run_again_has_ended_once() -> None:
    run = HeardRun()
    again = make(run=run)
    again.follow(broken())
    again.start(1.0)
    again.on_outcome(0, ok(), 1.5)
    assert run.ended == []


def test_r10_a_winner_by_claim_says_nothing_of_how_fast_it_speaks() -> None:
    run = HeardRun()
    race = make(run=run)
    race.start(0.0)
    assert race.claim(0)
    race.on_claim(0.5)
    assert run.last_step is None


class Planning:
    """A policy with grounds, which remembers who asked for them."""

    def __init__(self, known: Grounds | None) -> None:
        self.known = known
        self.asked: list[RaceView] = []

    def next_launch_at(self, view: RaceView) -> float:
        return view.last_launch_at + 1.0

    def grounds(self, view: RaceView) -> Grounds | None:
        self.asked.append(view)
        return self.known


def test_the_grounds_of_a_plan_are_told_once_to_the_last_field() -> None:
    policy = Planning(Grounds(d0=0.5, slack=3.0, price=0.1))
    race = make(policy=policy, observed=True, step_id="s3")
    planned = StepPlanned(step_id="s3", key=race.key, at=2.0, d0=0.5, slack=3.0, price=0.1)
    assert [event for event in told(race.start(2.0)) if isinstance(event, StepPlanned)] == [planned]
    assert not any(isinstance(event, StepPlanned) for event in told(race.on_timer(3.0)))
    assert policy.asked == [race]


def test_a_plan_that_has_no_grounds_is_not_told() -> None:
    policy = Planning(None)
    race = make(policy=policy, observed=True)
    assert not any(isinstance(event, StepPlanned) for event in told(race.start(0.0)))
    assert policy.asked == [race]
    assert race.wake_at == 1.0


def test_nobody_is_asked_for_grounds_where_nobody_listens() -> None:
    policy = Planning(Grounds(d0=None, slack=1.0, price=0.0))
    make(policy=policy).start(0.0)
    assert policy.asked == []


def test_a_failed_step_is_told_to_the_last_field() -> None:
    race = make(policy=After(), observed=True, step_id="s2", max_attempts=1)
    fact: dict[str, Any] = {"step_id": "s2", "key": KEY}
    assert told(race.start(1.0))[0] == StepStarted(at=1.0, deadline=math.inf, run_key="", **fact)
    commands = race.on_outcome(0, failed(reset()), 1.5)
    assert answer_of(commands).cause is None
    assert told(commands) == [
        StepEnded(at=1.5, winner=None, launched=1, elapsed=0.5, error="ConnectionResetError", **fact),
    ]
    assert told(race.on_ended(0, 1.5))[0] == AttemptEnded(
        at=1.5, attempt=race.attempts[0], verdict=Verdict.FAILED, receipt=Receipt(), failure=Failure.RECOVERABLE,
        error="ConnectionResetError", latency=None, censored_at=0.5, **fact,
    )  # fmt: skip
    assert race.state is State.FAILED


def test_a_late_timer_is_told() -> None:
    race = make(observed=True, step_id="s")
    race.start(0.0)
    assert told(race.on_timer(1.25)) == [TriggerLate(step_id="s", key=KEY, at=1.25, late=0.25, due_at=1.55)]


def test_a_cancelled_step_is_told() -> None:
    race = make(observed=True, step_id="s")
    race.start(2.0)
    commands = race.on_cancel(2.5)
    (sent, ended) = told(commands)
    assert sent == CancelSent(step_id="s", key=KEY, at=2.5, attempt=race.attempts[0], cause="caller")
    assert ended == StepEnded(step_id="s", key=KEY, at=2.5, winner=None, launched=1, elapsed=0.5, error="Cancelled")
    assert answer_of(commands).outcome == Outcome(accepted=False)
    assert race.state is State.FAILED
    (attempt, closed) = told(race.on_ended(0, 2.6))
    assert isinstance(attempt, AttemptEnded)
    assert (attempt.verdict, attempt.failure, attempt.error) == (Verdict.CANCELLED, None, "")
    assert isinstance(closed, StepClosed)
    assert race.on_cancel(2.7) == []


def test_a_deadline_is_told() -> None:
    race = make(observed=True, deadline=5.0, policy=After())
    race.start(2.0)
    commands = race.on_timer(5.0)
    (sent, ended) = told(commands)
    assert isinstance(sent, CancelSent)
    assert sent.cause == "deadline"
    assert isinstance(ended, StepEnded)
    assert ended.error == "DeadlineExceeded"
    outcome = answer_of(commands).outcome
    assert isinstance(outcome.error, DeadlineExceeded)
    assert outcome.error.elapsed == 3.0
    assert outcome.accepted is False


def test_a_claim_is_told_as_such() -> None:
    race = make(observed=True)
    race.start(0.0)
    assert race.claim(0)
    assert race.state is State.COMMITTED
    (committed,) = told(race.on_claim(0.5))
    assert isinstance(committed, Committed)
    assert committed.by_claim is True


@pytest.mark.parametrize("role", [Role.HEDGE, Role.RECOVERY])
@pytest.mark.parametrize("why", ["gate", "chooser", "pushback", "deadline"])
def test_r04_a_refusal_is_told_with_its_role_and_reason(role: Role, why: str) -> None:
    class Chooser(Elsewhere):
        def choose(self, asked: Role, view: RaceView) -> Choice | Refused:
            if asked is Role.PRIMARY or why in ("gate", "deadline"):
                return super().choose(asked, view)
            return Refused(Reason.UNHEALTHY, "out") if why == "chooser" else Choice(Site("t"), not_before=9.0)

    gates = [Gatekeeper(role)] if why == "gate" else []
    race = make(chooser=Chooser(), gates=gates, observed=True, deadline=9.0)
    race.start(0.0)
    if why == "deadline":
        race.now = 9.0
        race._launch(role)
        commands = race._take()
    else:
        commands = race.on_timer(1.0) if role is Role.HEDGE else race.on_outcome(0, failed(), 0.5)
    reasons = {"gate": Reason.FLEET_BUDGET, "chooser": Reason.UNHEALTHY, "pushback": Reason.PUSHBACK}
    refusals = [event for event in told(commands) if isinstance(event, AttemptRefused)]
    assert [(no.role, no.reason) for no in refusals] == [(role, reasons.get(why, Reason.DEADLINE))]
    assert refusals[0].detail == ("out" if why == "chooser" else "")


# --- what gates hear --------------------------------------------------------------------------------------------------


def test_gates_see_the_race_and_hear_how_each_attempt_ended() -> None:
    gate = Settles()
    race = make(gates=[gate], policy=After())
    race.start(0.0)
    attempt, view = gate.seen[0]
    assert view is race
    assert attempt == race.attempts[0]
    outcome: Outcome[Any] = Outcome(None, reset(), False, Failure.RECOVERABLE, False, 2.5)
    race.on_outcome(0, outcome, 0.5)
    assert gate.ends == [(Ended(attempt, Verdict.FAILED, Failure.RECOVERABLE, None, 0.5, True, 2.5), 0.5)]
    race.on_ended(0, 0.75)
    assert len(gate.ends) == 1
    race.on_outcome(1, ok(), 1.0)
    race.on_ended(1, 1.25)
    assert gate.ends[1:] == [(Ended(race.attempts[1], Verdict.WON, None, 0.5, None, True, None), 1.25)]


def test_a_cancelled_attempt_has_no_failure_even_if_it_had_an_outcome_before() -> None:
    gate = Settles()
    race = make(gates=[gate])
    race.start(0.0)
    race.on_timer(1.0)
    race.on_outcome(1, ok(), 1.5)
    race.on_ended(0, 1.75)
    assert [(end.verdict, end.failure, end.retry_after, at) for end, at in gate.ends] == [
        (Verdict.SUPERSEDED, None, None, 1.75)
    ]


def test_a_primary_is_spared_the_gates_that_have_nothing_to_say_to_it() -> None:
    for_all, for_extras = Gatekeeper(), Gatekeeper()
    race = make(gates=[for_extras, for_all], primary_gates=[for_all])
    race.start(0.0)
    assert (for_extras.asked, for_all.asked) == ([], [Role.PRIMARY])
    race.on_timer(1.0)
    assert (for_extras.asked, for_all.asked) == ([Role.HEDGE], [Role.PRIMARY, Role.HEDGE])


def test_every_gate_is_asked_after_a_pass_and_after_a_no_that_does_not_count() -> None:
    class Passes:
        asked = 0

        def admit(self, attempt: Attempt, view: RaceView) -> Permit:
            self.asked += 1
            return PASS

    passes, refuses, last = Passes(), Gatekeeper(Role.PRIMARY), Settles()
    race = make(gates=[passes, refuses, last])
    assert any(isinstance(command, Launch) for command in race.start(0.0))
    assert (passes.asked, len(refuses.asked), len(last.seen)) == (1, 1, 1)


def test_a_dispatch_that_is_taken_back_is_settled_unlaunched_at_its_instant() -> None:
    gate = Settles()
    race = make(gates=[gate, Gatekeeper(Role.HEDGE)])
    race.start(0.0)
    race.on_timer(1.0)
    (end, at) = gate.ends[0]
    assert (end.attempt.number, end.attempt.role) == (1, Role.HEDGE)
    assert (end.verdict, end.launched, at) == (Verdict.UNKNOWN, False, 1.0)


def test_r10_a_dispatch_overtaken_by_a_claim_is_settled_unlaunched() -> None:
    class Claims:
        def admit(self, attempt: Attempt, view: RaceView) -> Permit:
            if attempt.role is Role.HEDGE:
                assert race.claim(0)
            return PASS

    gate = Settles()
    race = make(gates=[gate, Claims()])
    race.start(0.0)
    race.on_timer(1.0)
    (end, _) = gate.ends[0]
    assert (end.attempt.number, end.attempt.role, end.launched) == (1, Role.HEDGE, False)


# --- the view -------------------------------------------------------------------------------------------------------


def test_a_race_that_has_not_begun() -> None:
    plans, run = object(), Run(clock=lambda: 0.0)
    fleet, sites, barred = QuietFleet(), [Site("x")], Refused(Reason.BARRED)
    known: dict[str, Any] = {"fleet": fleet, "candidates": sites, "barred": barred, "run": run, "plans": plans}
    race = make(**known, effect=Effect.KEYED, step_id="mine", time_left=run.clock)
    assert make().time_left is None
    assert race.time_left is run.clock
    assert (race.now, race.started_at, race.last_launch_at, race.last_target) == (0.0, 0.0, 0.0, "")
    assert (race.launched, race.hedges, race.in_flight, race.winner) == (0, 0, 0, None)
    assert race.prompt_tokens == 0
    assert race.fleet is fleet
    assert race.candidates is sites
    assert race.barred is barred
    assert race.run is run
    assert race.plans is plans
    assert race.effect is Effect.KEYED
    assert race.step_id == "mine"
    assert race.excluded == frozenset()
    assert race.state is State.OPEN
    assert race.stalled is False
    assert race.claimed is False
    assert race.closed is False
    assert race.wake_at is None
    assert race.on_timer(5.0) == []


def test_the_view_moves_on_with_every_launch() -> None:
    race = make(max_attempts=4, policy=After(1.0, attempts=4), deadline=9.0)
    race.start(0.0)
    assert (race.last_target, race.last_launch_at, race.attempts[0].deadline) == ("t0", 0.0, 9.0)
    race.on_timer(1.0)
    race.on_timer(2.0)
    assert (race.hedges, race.launched, race.in_flight, race.last_target) == (2, 3, 3, "t2")
    race.on_outcome(0, failed(), 2.5)
    assert (race.hedges, race.launched, race.in_flight) == (2, 4, 3)
    race.on_outcome(2, ok(), 2.75)
    assert race.state is State.COMMITTED
    assert race.in_flight == 0
    assert [race.is_cancelled(number) for number in range(4)] == [False, True, False, True]
    assert race.latency_of(2) == 0.75
    assert race.latency_of(1) is None


def test_a_streaming_winner_stays_in_flight() -> None:
    race = make(commit_on_token=True)
    race.start(0.0)
    race.on_timer(1.0)
    race.on_token(0, 1.5)
    assert race.in_flight == 1
    race.on_cancel(2.0)
    assert race.in_flight == 0
    assert race.state is State.COMMITTED


def test_r08_ids_are_64_bits_and_all_different() -> None:
    races = [make() for _ in range(64)]
    for race in races:
        race.start(0.0)
    nonces = {race.attempts[0].nonce for race in races}
    assert len(nonces) == 64
    assert max(nonces) < 2**64
    assert {len(race.attempts[0].id) for race in races} == {19}
    assert len({race.step_id for race in races}) == 64


# --- corners --------------------------------------------------------------------------------------------------------


def test_r04_a_timer_late_by_just_20_ms_fires() -> None:
    assert LATE_S == 0.02
    race = make(policy=After(0.02), latency=(book := Book()))
    race.start(0.0)
    assert isinstance(race.on_timer(0.04)[0], Launch)
    assert not race.stalled
    race = make(policy=After(0.02), latency=book)
    race.start(0.0)
    race.on_outcome(0, ok(), 0.04)
    assert book.recorded == [(KEY, "t0", 0.04, 0.04)]


def test_r16_samples_carry_key_target_and_instant() -> None:
    race = make(latency=(book := Book()))
    race.start(1.0)
    race.on_timer(2.0)
    race.on_outcome(1, ok(), 2.5)
    assert book.recorded == [(KEY, "t1", 0.5, 2.5)]
    assert book.censored == [(KEY, "t0", 1.5, 2.5)]


def test_the_last_attempt_arms_nothing() -> None:
    race = make(policy=Always(), max_attempts=2)
    race.start(0.0)
    race.on_timer(1.0)
    assert race.wake_at is None


def test_a_policy_that_raises_costs_the_hedge_and_never_the_step(caplog: pytest.LogCaptureFixture) -> None:
    class Broken:
        def next_launch_at(self, view: RaceView) -> float:
            raise ZeroDivisionError

    for _ in range(2):
        race = make(policy=Broken())
        assert [type(command) for command in race.start(0.0)] == [Launch]
        assert race.wake_at is None
        assert [type(command) for command in race.on_outcome(0, failed(), 0.5)] == [Launch]
        assert answer_of(race.on_outcome(1, ok("fine"), 1.0)).outcome.value == "fine"
    assert [record.getMessage() for record in caplog.records] == [
        "policy Broken raised, so nothing is hedged by it; logged once"
    ]
    assert caplog.records[0].exc_info is not None


def test_what_is_due_at_once_starts_at_once() -> None:
    commands = make(policy=After(0.0)).start(0.0)
    assert [type(command) for command in commands] == [Launch, Launch, Launch]


def test_r01_no_attempt_allowed_is_an_error_that_says_so() -> None:
    answer = answer_of(make(max_attempts=0).start(0.0))
    assert isinstance(answer.outcome.error, NotDispatched)
    assert str(answer.outcome.error) == "No attempt could be dispatched: run_budget 0 attempts."
    assert answer.outcome.accepted is False


def test_r01_a_reason_without_detail_leaves_no_gap() -> None:
    class Nowhere:
        def choose(self, role: Role, view: RaceView) -> Refused:
            return Refused(Reason.NO_TARGET)

    answer = answer_of(make(chooser=Nowhere()).start(0.0))
    assert str(answer.outcome.error) == "No attempt could be dispatched: no_target."


def test_r12_a_deadline_already_past_has_run_for_no_time() -> None:
    answer = answer_of(make(deadline=0.0).start(1.0))
    assert isinstance(answer.outcome.error, DeadlineExceeded)
    assert answer.outcome.error.elapsed == 0.0


def test_r01_targets_that_failed_add_up() -> None:
    race = make(policy=After())
    race.start(0.0)
    race.on_outcome(0, failed(failure=Failure.TARGET), 0.1)
    race.on_outcome(1, failed(failure=Failure.TARGET), 0.2)
    assert race.excluded == {"t0", "t1"}


def test_r01_after_a_request_failure_a_later_failure_is_not_recovered_from() -> None:
    race = make(policy=After(1.0))
    race.start(0.0)
    race.on_timer(1.0)
    race.on_outcome(0, failed(failure=Failure.REQUEST), 1.5)
    commands = race.on_outcome(1, failed(), 1.75)
    assert [type(command) for command in commands] == [Answer]
    assert len(answer_of(commands).cause.exceptions) == 2  # type: ignore[union-attr]
    assert race.state is State.FAILED


def test_the_facts_of_one_instant_bring_all_their_commands() -> None:
    race = make(policy=After(1.0, attempts=2))
    race.start(0.0)
    race.on_timer(1.0)
    commands = race.on_facts([Done(1, failed()), Done(0, failed())], 2.0)
    assert [type(command) for command in commands] == [Launch]
    commands = race.on_facts([Token(2), Done(2, ok())], 3.0)
    assert [type(command) for command in commands] == [Commit, Answer]

    race = make(commit_on_token=True)
    race.start(0.0)
    race.on_timer(1.0)
    commands = race.on_facts([Done(1, ok()), Token(0)], 2.0)
    assert [type(command) for command in commands] == [Commit, Cancel]
    commands = race.on_facts([Token(0), Done(0, ok())], 3.0)
    assert [type(command) for command in commands] == [Answer]


def test_a_second_outcome_is_not_heard() -> None:
    race = make(policy=After())
    race.start(0.0)
    race.on_outcome(0, failed(), 0.5)
    assert race.on_outcome(0, ok(), 0.75) == []
    assert race.winner is None
    assert race.in_flight == 1


def test_an_end_is_heard_once() -> None:
    race = make(observed=True)
    race.start(0.0)
    race.on_outcome(0, ok(), 0.5)
    assert [type(event) for event in told(race.on_ended(0, 0.5))] == [AttemptEnded, StepClosed]
    assert race.on_ended(0, 0.75) == []


def test_r10_the_claimants_outcome_may_come_before_the_loop_hears_of_the_claim() -> None:
    race = make()
    race.start(0.0)
    race.on_timer(1.0)
    race.claim(1)
    commands = race.on_outcome(1, ok(), 1.5)
    assert [type(command) for command in commands] == [Commit, Cancel, Answer]
    assert race.on_claim(1.6) == []


def test_r10_what_comes_between_claim_and_commit_is_superseded_if_good_and_failed_if_not() -> None:
    for outcome, verdict in [(ok(), Verdict.SUPERSEDED), (failed(), Verdict.FAILED)]:
        gate = Settles()
        race = make(gates=[gate])
        race.start(0.0)
        race.on_timer(1.0)
        race.claim(0)
        assert race.on_outcome(1, outcome, 1.5) == []
        race.on_ended(1, 1.5)
        assert [end.verdict for end, _ in gate.ends] == [verdict]


@pytest.mark.parametrize(
    ("outcome", "verdict", "failure"),
    [
        (ok(), Verdict.WON, None),
        (Outcome(None, KeyError()), Verdict.WON, None),
        (failed(), Verdict.FAILED, Failure.RECOVERABLE),
    ],
    ids=["a value", "control flow", "an error after the commit"],
)
def test_the_verdict_of_a_winner(outcome: Outcome[Any], verdict: Verdict, failure: Failure | None) -> None:
    gate = Settles()
    race = make(gates=[gate], commit_on_token=True)
    race.start(0.0)
    race.on_token(0, 0.5)
    race.on_outcome(0, outcome, 1.0)
    race.on_ended(0, 1.0)
    assert [(end.verdict, end.failure) for end, _ in gate.ends] == [(verdict, failure)]


def test_r02_the_verdict_of_an_empty_winner() -> None:
    gate = Settles()
    race = make(gates=[gate], policy=After(), max_attempts=1)
    race.start(0.0)
    race.on_outcome(0, EMPTY, 0.5)
    race.on_ended(0, 0.5)
    assert [end.verdict for end, _ in gate.ends] == [Verdict.WON]


def test_an_attempt_that_ends_without_a_word_is_unknown() -> None:
    gate = Settles()
    race = make(gates=[gate])
    race.start(0.0)
    race.on_ended(0, 0.5)
    assert [end.verdict for end, _ in gate.ends] == [Verdict.UNKNOWN]


def test_r13_retry_after_ends_at_the_deadline_is_no_retry() -> None:
    class Later(Elsewhere):
        def choose(self, role: Role, view: RaceView) -> Choice | Refused:
            return Choice(Site("only"), not_before=0.0 if role is Role.PRIMARY else 5.0)

    race = make(chooser=Later(), deadline=5.0, policy=After())
    race.start(0.0)
    assert [type(command) for command in race.on_outcome(0, failed(), 0.5)] == [Answer]


# --- a step run again -----------------------------------------------------------------------------------------------


def broken(*, targets: tuple[str, ...] = ("t0", "t1"), step_id: str = "s") -> Race:
    """A race whose winner, at t0, has broken after its commit."""
    race = make(commit_on_token=True, candidates=[Site(name) for name in targets], step_id=step_id, observed=True)
    race.start(0.0)
    race.on_token(0, 0.5)
    race.on_outcome(0, failed(), 1.0)
    race.on_ended(0, 1.0)
    return race


def test_r03_a_step_run_again_is_the_same_request_as_a_recovery_elsewhere_with_what_is_left() -> None:
    again = make(candidates=[Site("t0"), Site("t1")], observed=True, policy=Always())
    again.follow(broken())
    assert again.step_id == "s"
    assert again.excluded == {"t0"}
    assert again.max_attempts == 2
    (first, *_) = told(again.start(1.0))
    assert isinstance(first, StepReopened)
    assert again.attempts[0].role is Role.RECOVERY


def test_r03_where_there_is_no_other_place_the_same_one_is_asked() -> None:
    again = make(candidates=[Site("t0")])
    again.follow(broken(targets=("t0",)))
    assert again.excluded == frozenset()


def test_r03_what_was_out_before_stays_out() -> None:
    first = make(policy=After(), commit_on_token=True, candidates=[Site(f"t{n}") for n in range(3)])
    first.start(0.0)
    first.on_outcome(0, failed(failure=Failure.TARGET), 0.1)
    first.on_token(1, 0.5)
    first.on_outcome(1, failed(), 1.0)
    again = make(candidates=[Site(f"t{n}") for n in range(3)])
    again.follow(first)
    assert again.excluded == {"t0", "t1"}
    assert again.max_attempts == 1
    last = make(candidates=[Site("t0"), Site("t1")])
    last.follow(first)
    assert last.excluded == {"t0"}


def test_r03_a_race_without_a_winner_leaves_nobody_out() -> None:
    first = make()
    first.start(0.0)
    again = make()
    again.follow(first)
    assert again.excluded == frozenset()


def test_r03_a_second_run_may_be_refused() -> None:
    again = make(candidates=[Site("t0"), Site("t1")], gates=[Gatekeeper(Role.RECOVERY)])
    again.follow(broken())
    commands = again.start(1.0)
    assert isinstance(answer_of(commands).outcome.error, NotDispatched)
    assert again.closed


def test_a_rejection_is_an_error_of_its_own() -> None:
    race = make(policy=After(), max_attempts=2)
    race.start(0.0)
    first, second = AnswerRejected(), AnswerRejected()
    race.on_outcome(0, failed(first), 0.5)
    answer = answer_of(race.on_outcome(1, failed(second), 1.0))
    assert answer.outcome.error is first
    assert answer.cause is not None
    assert answer.cause.exceptions == (first, second)  # type: ignore[attr-defined]
