"""The kernel's rules, played on the simulator; `tests/scenarios` proves that the drivers agree with it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from agent_hedge.core.events import AttemptEnded, Reason
from agent_hedge.core.ports import Choice, Permit, RaceView, Refused
from agent_hedge.core.race import PASS, Answer, Cancel, Commit, Done, Launch, Race, Report, State, Token
from agent_hedge.core.step import Attempt, Ended, Failure, Outcome, Receipt, Role, StepKey, Verdict
from agent_hedge.errors import AllAttemptsFailed, AnswerRejected, DeadlineExceeded, HedgeError
from agent_hedge.testing.empty import EmptyBook, QuietFleet
from agent_hedge.testing.scenario import After, Scenario, Site


class Unauthorized(Exception):
    status_code = 401


class BadRequest(Exception):
    status_code = 400


def reset() -> ConnectionError:
    return ConnectionResetError("reset")


class Gatekeeper:
    """A gate that refuses some roles and remembers what it heard."""

    def __init__(self, *refuses: Role, reason: Reason = Reason.FLEET_BUDGET) -> None:
        self.refuses, self.reason = refuses, reason
        self.asked: list[Role] = []
        self.committed_at: list[float] = []
        self.settled: list[Ended] = []

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        self.asked.append(attempt.role)
        return Refused(self.reason) if attempt.role in self.refuses else self

    def committed(self, *, at: float) -> None:
        self.committed_at.append(at)

    def settle(self, end: Ended, *, at: float) -> None:
        self.settled.append(end)


class Elsewhere:
    """A chooser that sends every attempt to a new place."""

    def choose(self, role: Role, view: RaceView) -> Choice | Refused:
        return Choice(Site(f"t{view.launched}"))


def make(**settings: Any) -> Race:
    defaults: dict[str, Any] = {
        "policy": After(1.0),
        "chooser": Elsewhere(),
        "candidates": [Site("t0"), Site("t1")],
        "latency": EmptyBook(),
        "fleet": QuietFleet(),
    }
    return Race(StepKey(node="n"), **(defaults | settings))


def ok(value: object = "ok") -> Outcome[Any]:
    return Outcome(value)


def failed(error: Exception | None = None, failure: Failure = Failure.RECOVERABLE) -> Outcome[Any]:
    return Outcome(None, error or reset(), False, failure)


# --- R1: the first acceptable outcome wins ----------------------------------------------------------------------


def test_r01_an_error_never_beats_an_attempt_that_can_still_succeed() -> None:
    played = Scenario(("a", 0.4, BadRequest()), ("b", 0.7), policy=0.2).simulate()
    assert (played.winner, played.value, played.elapsed) == (1, "ok", 0.9)


def test_r01_a_failure_before_the_trigger_makes_a_recovery_due_at_once() -> None:
    played = Scenario(("a", 0.005, reset()), ("b", 0.1), policy=10.0).simulate()
    assert played.launches == [(0, Role.PRIMARY, "a", 0.0), (1, Role.RECOVERY, "b", 0.005)]
    assert (played.winner, played.elapsed) == (1, 0.105)


def test_r01_a_fatal_hedge_takes_its_target_out_and_never_the_race() -> None:
    played = Scenario(("a", 0.3, "answer"), ("b", 0.005, Unauthorized()), policy=0.0).simulate()
    assert (played.winner, played.value, played.elapsed) == (0, "answer", 0.3)
    assert played.verdicts == {0: Verdict.WON, 1: Verdict.FAILED}


def test_r01_a_target_failure_excludes_the_target() -> None:
    race = make()
    race.start(0.0)
    race.on_outcome(0, failed(Unauthorized(), Failure.TARGET), 0.1)
    assert race.excluded == {"t0"}


def test_r01_a_failure_fatal_for_the_request_launches_nothing_more() -> None:
    error = BadRequest()
    played = Scenario(("a", 0.1, error), ("b", 0.1), policy=1.0).simulate()
    assert len(played.launches) == 1
    assert played.error is error
    assert error.__cause__ is None


def test_r01_after_a_request_failure_what_is_in_flight_may_still_win_but_gets_no_company() -> None:
    played = Scenario(("a", 0.3, BadRequest()), ("b", 0.9), ("c", 0.1), policy=0.2).simulate()
    assert len(played.launches) == 2
    assert (played.winner, played.elapsed) == (1, 1.1)


def test_r01_when_all_fail_the_caller_gets_the_primarys_own_exception() -> None:
    first, second, third = reset(), TimeoutError("slow"), reset()
    first.__cause__ = origin = OSError("socket")
    race = make(policy=After())
    race.start(0.0)
    race.on_outcome(0, failed(first), 0.1)
    race.on_outcome(1, failed(second), 0.2)
    answer = next(c for c in race.on_outcome(2, failed(third), 0.3) if isinstance(c, Answer))
    assert answer.outcome.error is first
    assert isinstance(answer.cause, AllAttemptsFailed)
    assert answer.cause.exceptions == (first, second, third)
    assert answer.cause.__cause__ is origin


def test_r01_the_primary_is_the_answer_even_when_it_failed_last() -> None:
    slow = reset()
    played = Scenario(("a", 1.0, slow), ("b", 0.1, TimeoutError()), policy=0.2).simulate()
    assert played.error is slow


def test_r01_at_most_three_attempts() -> None:
    played = Scenario(*[(f"t{n}", 0.1, reset()) for n in range(6)]).simulate()
    assert [role for _, role, _, _ in played.launches] == [Role.PRIMARY, Role.RECOVERY, Role.RECOVERY]


def test_r01_a_rejected_answer_is_a_recoverable_failure() -> None:
    played = Scenario(("a", 0.1, "bad"), ("b", 0.1, "good"), accept=lambda value: value == "good").simulate()
    assert (played.winner, played.value, played.elapsed) == (1, "good", 0.2)


def test_r01_when_every_answer_is_rejected_the_caller_hears_so() -> None:
    played = Scenario(("a", 0.1, "bad"), accept=lambda _: False).simulate()
    assert isinstance(played.error, AnswerRejected)


def test_r01_retry_after_postpones_a_recovery_on_the_same_target() -> None:
    class Later:
        def choose(self, role: Role, view: RaceView) -> Choice | Refused:
            return Choice(Site("only"), not_before=0.0 if role is Role.PRIMARY else 2.0)

    race = make(chooser=Later(), policy=After())
    race.start(0.0)
    assert race.on_outcome(0, failed(), 0.5) == []
    assert race.wake_at == 2.0
    assert race.on_timer(1.9) == []
    (launch,) = race.on_timer(2.0)
    assert isinstance(launch, Launch)
    assert launch.attempt.role is Role.RECOVERY


@pytest.mark.parametrize(("not_before", "role"), [(9.0, Role.RECOVERY), (2.0, Role.HEDGE)])
def test_r04_a_hedge_never_waits_and_a_recovery_not_past_the_deadline(not_before: float, role: Role) -> None:
    class Later:
        def choose(self, role: Role, view: RaceView) -> Choice | Refused:
            return Choice(Site("only"), not_before=0.0 if role is Role.PRIMARY else not_before)

    race = make(chooser=Later(), deadline=5.0, policy=After(1.0), observed=True)
    race.start(0.0)
    commands = race.on_outcome(0, failed(), 0.5) if role is Role.RECOVERY else race.on_timer(1.0)
    assert not any(isinstance(command, Launch) for command in commands)
    assert Reason.PUSHBACK in [getattr(getattr(c, "event", None), "reason", None) for c in commands]


# --- R2: what an empty stream is worth --------------------------------------------------------------------------

EMPTY: Outcome[Any] = Outcome(None, None, False, Failure.RECOVERABLE, True)


def test_r02_an_empty_stream_loses_to_one_that_answers() -> None:
    race = make(policy=After())
    race.start(0.0)
    assert any(isinstance(c, Launch) for c in race.on_outcome(0, EMPTY, 0.1))
    race.on_outcome(1, ok(), 0.2)
    assert race.winner == 1


def test_r02_an_empty_stream_is_the_answer_when_nothing_else_answers() -> None:
    race = make(policy=After())
    race.start(0.0)
    race.on_outcome(0, EMPTY, 0.1)
    race.on_outcome(1, failed(), 0.2)
    commands = race.on_outcome(2, failed(), 0.3)
    assert Commit(0) in commands
    assert next(c for c in commands if isinstance(c, Answer)).outcome is EMPTY
    for number in range(3):
        race.on_ended(number, 0.3)
    assert race.closed


# --- R3: no switch after the commit -----------------------------------------------------------------------------


def test_r03_a_failure_after_the_commit_is_the_steps_failure() -> None:
    race = make(commit_on_token=True, observed=True)
    race.start(0.0)
    assert Commit(0) in race.on_token(0, 0.2)
    error = reset()
    commands = race.on_outcome(0, failed(error), 0.5)
    assert [type(c) for c in commands if not hasattr(c, "event")] == [Answer]
    assert race.launched == 1
    assert race.wake_at is None


def test_r03_the_trigger_is_disarmed_by_the_commit() -> None:
    race = make(commit_on_token=True)
    race.start(0.0)
    race.on_token(0, 0.2)
    assert race.wake_at is None
    assert race.on_timer(1.0) == []


def test_r03_a_second_token_of_the_winner_changes_nothing() -> None:
    race = make(commit_on_token=True)
    race.start(0.0)
    race.on_token(0, 0.2)
    assert race.on_token(0, 0.3) == []


def test_r03_the_deadline_stops_the_winners_stream() -> None:
    race = make(commit_on_token=True, deadline=2.0)
    race.start(0.0)
    race.on_token(0, 0.2)
    assert race.wake_at == 2.0
    commands = race.on_timer(2.0)
    assert Cancel(0, "deadline") in commands
    assert isinstance(commands[-1], Answer)
    assert isinstance(commands[-1].outcome.error, DeadlineExceeded)


# --- R4: when no attempt is launched ----------------------------------------------------------------------------


def test_r04_a_refused_hedge_is_silence_plus_one_event() -> None:
    gate = Gatekeeper(Role.HEDGE)
    played = Scenario(("a", 5.0, "answer"), ("b", 0.1), policy=1.0, gates=[gate]).simulate()
    assert (played.value, played.elapsed) == ("answer", 5.0)
    assert played.refusals == [Reason.FLEET_BUDGET]
    assert gate.asked == [Role.PRIMARY, Role.HEDGE]


def test_r04_a_refused_recovery_does_not_fail_a_step_that_can_still_succeed() -> None:
    gate = Gatekeeper(Role.RECOVERY)
    script = [("a", 0.5, reset()), ("b", 2.0), ("c", 0.1)]
    played = Scenario(*script, policy=After(0.2, attempts=2), gates=[gate]).simulate()
    assert (played.winner, played.elapsed) == (1, 2.2)


def test_r04_the_policy_may_refuse_with_a_reason() -> None:
    class Learning:
        def next_launch_at(self, view: RaceView) -> Refused:
            return Refused(Reason.COLD, "37 of 200")

    played = Scenario(("a", 1.0), policy=Learning()).simulate()
    assert played.refusals == [Reason.COLD]
    assert len(played.launches) == 1


def test_r04_no_target_no_hedge() -> None:
    played = Scenario(("a", 2.0), policy=0.5).simulate()
    assert played.refusals == [Reason.NO_TARGET]


def test_r04_a_deadline_already_past_dispatches_nothing() -> None:
    race = make(deadline=1.0)
    (answer,) = race.start(1.0)
    assert isinstance(answer, Answer)
    assert isinstance(answer.outcome.error, DeadlineExceeded)
    assert race.closed


def test_r04_no_place_for_the_primary_is_an_error_that_says_why() -> None:
    class Nowhere:
        def choose(self, role: Role, view: RaceView) -> Refused:
            return Refused(Reason.UNHEALTHY, "t0 is drained")

    answer = make(chooser=Nowhere()).start(0.0)[0]
    assert isinstance(answer, Answer)
    with pytest.raises(HedgeError, match="unhealthy t0 is drained"):
        answer.outcome.unwrap()


def test_r04_the_deadline_names_what_was_still_running() -> None:
    played = Scenario(("a", 9.0), ("b", 9.0), policy=1.0, deadline=3.0).simulate()
    assert isinstance(played.error, DeadlineExceeded)
    assert isinstance(played.error, TimeoutError)
    assert played.error.running == ("a#0", "b#1")
    assert played.error.elapsed == played.elapsed == 3.0
    assert set(played.verdicts.values()) == {Verdict.CANCELLED}


def test_r04_an_answer_at_the_very_deadline_counts() -> None:
    played = Scenario(("a", 3.0), deadline=3.0).simulate()
    assert played.value == "ok"


def test_r04_a_late_timer_rearms_by_twice_the_lateness_and_50_ms() -> None:
    race = make(latency=(book := EmptyBook()))
    race.start(0.0)
    assert race.on_timer(1.2) == []
    assert race.wake_at == pytest.approx(1.45)
    race.on_outcome(0, ok(), 1.3)
    assert race.stalled
    assert book.recorded == []  # the clock stood still: the sample is not believed


def test_r04_a_timer_late_by_less_than_20_ms_still_fires() -> None:
    race = make()
    race.start(0.0)
    assert isinstance(race.on_timer(1.019)[0], Launch)
    assert not race.stalled


def test_r04_the_timer_rearms_at_most_three_times() -> None:
    race = make()
    race.start(0.0)
    for _ in range(3):
        assert race.wake_at is not None
        assert race.on_timer(race.wake_at + 0.1) == []
    assert isinstance(race.on_timer((race.wake_at or 0.0) + 0.1)[0], Launch)


def test_r04_a_sample_that_outlived_its_trigger_spans_a_stall() -> None:
    race = make(latency=(book := EmptyBook()))
    race.start(0.0)
    race.on_outcome(0, ok(), 1.3)
    assert book.recorded == []


def test_r04_the_first_token_disarms_the_trigger_where_it_does_not_commit() -> None:
    race = make()
    race.start(0.0)
    assert race.on_token(0, 0.4) == []
    assert race.wake_at is None
    assert race.state is State.OPEN
    launch = race.on_outcome(0, failed(AnswerRejected()), 0.9)[0]
    assert isinstance(launch, Launch)
    assert launch.attempt.role is Role.RECOVERY
    assert race.wake_at is None  # spoken once: only failures make more due


# --- R6, R7: endings ----------------------------------------------------------------------------------------------


def test_r06_losers_are_cancelled_at_the_commit_and_the_race_closes_when_all_have_ended() -> None:
    race = make()
    race.start(0.0)
    race.on_timer(1.0)
    commands = race.on_outcome(1, ok(), 1.5)
    assert [type(c) for c in commands] == [Commit, Cancel, Answer]
    assert not race.closed
    assert race.on_ended(1, 1.5) == []
    assert race.on_ended(0, 1.9, Receipt(phase="decode")) == []
    assert race.closed


@pytest.mark.parametrize(
    "outcome", [ok(), failed(), failed(BadRequest(), Failure.REQUEST)], ids=["answer", "recoverable", "request"]
)
def test_r06_a_lone_attempt_that_is_finished_has_its_outcome_and_its_end_in_one_call(outcome: Outcome[Any]) -> None:
    def opened() -> Race:
        race = make(observed=True, max_attempts=2)
        race.start(0.0)
        return race

    def told(commands: list[Any]) -> list[Any]:
        """What the commands are, and what they report, but for the ids that differ from race to race."""
        return [type(c.event if isinstance(c, Report) else c) for c in commands]

    both, apart = opened(), opened()
    receipt = Receipt(phase="end")
    commands = both.on_finished(0, outcome, 0.5, receipt)
    assert told(commands) == told(apart.on_outcome(0, outcome, 0.5) + apart.on_ended(0, 0.5, receipt))
    (end,) = [c.event for c in commands if isinstance(c, Report) and isinstance(c.event, AttemptEnded)]
    assert end.receipt is receipt
    assert end.verdict is (Verdict.WON if outcome.accepted else Verdict.FAILED)
    assert end.at == 0.5
    assert (both.now, both.in_flight, both.wake_at, both.closed) == (0.5, apart.in_flight, apart.wake_at, apart.closed)
    assert both.on_finished(0, outcome, 0.6, receipt) == []


def test_r06_what_a_cancelled_attempt_still_brings_is_ignored() -> None:
    race = make(observed=True)
    race.start(0.0)
    race.on_timer(1.0)
    race.on_outcome(1, ok(), 1.5)
    assert race.on_outcome(0, ok("late"), 1.6) == []
    assert race.on_token(0, 1.6) == []


def test_r06_an_attempt_settles_once_also_when_it_ends_after_it_was_abandoned() -> None:
    gate = Gatekeeper()
    race = make(gates=[gate])
    race.start(0.0)
    race.on_timer(1.0)
    race.on_outcome(1, ok(), 1.5)
    race.on_ended(1, 1.5)
    assert race.on_ended(0, 2.5, abandoned=True) == []
    assert race.closed
    assert race.on_ended(0, 3.5) == []
    assert [end.verdict for end in gate.settled] == [Verdict.WON, Verdict.ABANDONED]


def test_r07_the_callers_cancel_stops_every_attempt() -> None:
    gate = Gatekeeper()
    race = make(gates=[gate])
    race.start(0.0)
    race.on_timer(1.0)
    commands = race.on_cancel(1.2)
    assert [c for c in commands if isinstance(c, Cancel)] == [Cancel(0, "caller"), Cancel(1, "caller")]
    assert race.wake_at is None
    for number in range(2):
        race.on_ended(number, 1.3)
    assert {end.verdict for end in gate.settled} == {Verdict.CANCELLED}
    assert race.closed


def test_r07_nothing_is_launched_after_the_caller_left() -> None:
    race = make()
    race.start(0.0)
    race.on_cancel(0.5)
    assert race.on_timer(1.0) == []
    assert race.on_outcome(0, failed(), 1.0) == []


def test_r07_control_flow_passes_through_as_the_winner() -> None:
    interrupt = KeyError("interrupt")
    race = make()
    race.start(0.0)
    race.on_timer(1.0)
    commands = race.on_outcome(0, Outcome(None, interrupt), 1.1)
    assert Commit(0) in commands
    assert next(c for c in commands if isinstance(c, Answer)).outcome.error is interrupt


# --- R8, R10: identity and the election ---------------------------------------------------------------------------


def test_r08_attempts_have_their_own_ids_and_share_the_effect_key() -> None:
    race = make(effect_key="pay-7")
    race.start(0.0)
    race.on_timer(1.0)
    first, second = race.attempts
    assert first.id != second.id
    assert not first.id.startswith(second.id)
    assert first.effect_key == second.effect_key == "pay-7"


def test_r10_a_claim_elects_exactly_one_attempt_from_any_thread() -> None:
    race = make()
    race.start(0.0)
    race.on_timer(1.0)
    barrier, won = threading.Barrier(8), []

    def run(number: int) -> None:
        barrier.wait()
        if race.claim(number):
            won.append(number)

    threads = [threading.Thread(target=run, args=(n % 2,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [race.winner] * 4
    commands = race.on_claim(1.1)
    assert commands == [Commit(race.winner or 0), Cancel(1 - (race.winner or 0), "superseded")]
    assert race.on_claim(1.2) == []
    assert race.claimed


def test_r10_after_a_claim_nothing_is_launched_and_the_other_cannot_win() -> None:
    race = make()
    race.start(0.0)
    race.on_timer(1.0)
    assert race.claim(0)
    assert not race.claim(1)
    assert race.on_outcome(1, ok(), 1.1) == []
    assert race.on_timer(2.0) == []
    answer = next(c for c in race.on_outcome(0, ok("mine"), 3.0) if isinstance(c, Answer))
    assert answer.outcome.value == "mine"


def test_r10_a_claim_during_a_launch_keeps_the_launch_from_happening() -> None:
    class Claims:
        """Another thread claims while a later gate is being asked."""

        def admit(self, attempt: Attempt, view: RaceView) -> Permit:
            if attempt.role is Role.HEDGE:
                assert race.claim(0)
            return PASS

    before = Gatekeeper()
    race = make(gates=[before, Claims()])
    race.start(0.0)
    assert race.on_timer(1.0) == []
    assert race.launched == 1
    assert [end.launched for end in before.settled] == [False]


def test_r10_a_superseded_or_failed_attempt_cannot_claim() -> None:
    race = make(policy=After())
    race.start(0.0)
    race.on_outcome(0, failed(), 0.1)
    assert not race.claim(0)
    assert race.claim(1)


def test_r10_a_claimed_attempt_that_fails_fails_the_step() -> None:
    race = make()
    race.start(0.0)
    race.claim(0)
    error = reset()
    answer = next(c for c in race.on_outcome(0, failed(error), 0.5) if isinstance(c, Answer))
    assert answer.outcome.error is error
    assert race.launched == 1


# --- rule 7: one instant ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_same_instant_the_acceptable_outcome_comes_first(order: tuple[int, int]) -> None:
    race = make()
    race.start(0.0)
    race.on_timer(1.0)
    facts = {0: Done(0, failed()), 1: Done(1, ok("hedge"))}
    race.on_facts([facts[n] for n in order], 2.0)
    assert race.winner == 1
    assert race.launched == 2


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_same_instant_the_lower_number_wins(order: tuple[int, int]) -> None:
    race = make(commit_on_token=True)
    race.start(0.0)
    race.on_timer(1.0)
    race.on_facts([Token(n) for n in order], 2.0)
    assert race.winner == 0


def test_same_instant_an_answer_comes_before_the_trigger() -> None:
    played = Scenario(("a", 1.0), ("b", 0.1), policy=1.0).simulate()
    assert len(played.launches) == 1


# --- gates and latency ----------------------------------------------------------------------------------------------


def test_r04_a_primary_is_refused_by_its_deadline_only() -> None:
    assert Scenario(("a", 0.1), gates=[Gatekeeper(Role.PRIMARY)]).simulate().value == "ok"
    late = Scenario(("a", 0.1), gates=[Gatekeeper(Role.PRIMARY, reason=Reason.DEADLINE)]).simulate()
    assert isinstance(late.error, DeadlineExceeded)


def test_r13_a_permit_given_before_a_refusal_is_given_back() -> None:
    before, after = Gatekeeper(), Gatekeeper(Role.HEDGE)
    Scenario(("a", 5.0), ("b", 0.1), policy=1.0, gates=[before, after]).simulate()
    assert [(end.attempt.role, end.launched) for end in before.settled] == [(Role.HEDGE, False), (Role.PRIMARY, True)]
    assert before.committed_at == [5.0]


def test_r16_winner_exact_loser_and_failure_censored() -> None:
    book = EmptyBook()
    race = make(latency=book)
    race.start(0.0)
    race.on_outcome(0, failed(), 0.25)  # censored at its failure
    race.on_timer(1.25)  # attempt 1 began at 0.25, the hedge follows a second later
    race.on_outcome(2, ok(), 1.75)
    assert book.recorded == [("t2", 0.5)]
    assert book.censored == [("t0", 0.25), ("t1", 1.5)]


def test_r16_both_first_tokens_are_exact_where_tokens_do_not_commit() -> None:
    book = EmptyBook()
    race = make(latency=book)
    race.start(0.0)
    race.on_timer(1.0)
    race.on_token(0, 1.2)
    race.on_token(1, 1.5)
    race.on_outcome(1, ok(), 2.0)
    assert book.recorded == [("t0", 1.2), ("t1", 0.5)]
    assert book.censored == []


def test_r16_the_settled_end_carries_the_latency() -> None:
    gate = Gatekeeper()
    race = make(gates=[gate])
    race.start(0.0)
    race.on_timer(1.0)
    race.on_outcome(1, ok(), 1.5)
    race.on_ended(0, 1.6)
    race.on_ended(1, 1.6)
    assert [(end.latency, end.censored_at) for end in gate.settled] == [(None, 1.5), (0.5, None)]


def test_events_tell_the_whole_story_in_order() -> None:
    race = make(observed=True, commit_on_token=True)
    told: list[str] = []

    def hear(commands: list[Any]) -> None:
        told.extend(type(c.event).__name__ for c in commands if hasattr(c, "event"))

    hear(race.start(0.0))
    hear(race.on_timer(1.0))
    hear(race.on_token(1, 1.2))
    hear(race.on_ended(0, 1.3))
    hear(race.on_outcome(1, ok(), 1.4))
    hear(race.on_ended(1, 1.4))
    assert told == [
        "StepStarted", "AttemptStarted", "TriggerArmed", "AttemptStarted", "TriggerArmed", "FirstToken", "Committed",
        "CancelSent", "AttemptEnded", "StepEnded", "AttemptEnded", "StepClosed",
    ]  # fmt: skip


def test_an_unobserved_race_makes_no_events() -> None:
    race = make()
    commands = race.start(0.0) + race.on_timer(1.0) + race.on_outcome(0, ok(), 1.1)
    assert not any(hasattr(command, "event") for command in commands)


def test_r13_a_failed_attempt_settles_before_the_next_place_is_chosen_and_only_once() -> None:
    gate = Gatekeeper()
    heard: list[int] = []

    class Asks(Elsewhere):
        def choose(self, role: Role, view: RaceView) -> Choice | Refused:
            heard.append(len(gate.settled))
            return super().choose(role, view)

    race = make(gates=[gate], chooser=Asks(), policy=After())
    race.start(0.0)
    race.on_outcome(0, failed(), 0.1)
    race.on_ended(0, 0.2)
    assert heard == [0, 1]
    assert [end.verdict for end in gate.settled] == [Verdict.FAILED]


class Sceptic(Gatekeeper):
    """A gate whose permits learn from losses only."""

    losses_only = True


def test_a_permit_that_learns_from_losses_is_not_told_of_a_win() -> None:
    wins, loses, fails = Sceptic(), Sceptic(), Sceptic()
    Scenario(("a", 0.1), gates=[wins]).simulate()
    Scenario(("a", 5.0), ("b", 0.1), policy=1.0, gates=[loses]).simulate()
    Scenario(("a", 0.1, reset()), ("b", 0.1), gates=[fails]).simulate()
    assert (wins.settled, wins.committed_at) == ([], [])
    assert [end.verdict for end in loses.settled] == [Verdict.SUPERSEDED]
    assert [end.verdict for end in fails.settled] == [Verdict.FAILED]


def test_beside_a_permit_that_wants_to_know_every_permit_is_told() -> None:
    sceptic, curious = Sceptic(), Gatekeeper()
    Scenario(("a", 0.1), gates=[sceptic, curious]).simulate()
    assert [end.verdict for end in sceptic.settled + curious.settled] == [Verdict.WON, Verdict.WON]
