"""Drives one race: every attempt a task of its own, one timer and one waiter a race.

The race decides, the driver carries out. The caller waits for a single flag; attempts post facts; nothing here
looks at an outcome to decide anything.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Generic, TypeVar, cast

import anyio

from agent_hedge.core.classify import classify, retry_after
from agent_hedge.core.events import AttemptStarted, Event, Fenced
from agent_hedge.core.ports import Classifier, Spawner, TaskHandle, TimerHandle
from agent_hedge.core.race import (
    Answer,
    Cancel,
    Command,
    Commit,
    Done,
    Fact,
    Launch,
    Race,
    Report,
    State,
    Token,
)
from agent_hedge.core.scope import ActiveAttempt, Forced, attempt_scope, forced
from agent_hedge.core.step import Attempt, Failure, Outcome, Receipt
from agent_hedge.engine.funnel import Funnel
from agent_hedge.engine.reaper import Reaper
from agent_hedge.engine.release import canceller_of, confirmed
from agent_hedge.errors import AnswerRejected, AttemptCancelled

T = TypeVar("T")
Call = Callable[[ActiveAttempt], Awaitable[T]]

NOBODY = Funnel()
NO_RECEIPT = Receipt()


def accept_all(_: object) -> bool:
    return True


class Driver(Generic[T]):
    """One race and its tasks. `call` runs once per attempt, in that attempt's own task."""

    __slots__ = (
        "_accept", "_active", "_call", "_classify", "_ended", "_facts", "_flushing", "_forced", "_funnel", "_held",
        "_reaper", "_releases", "_spawner", "_started", "_timer", "_timer_at", "_waiter", "_wake_on_commit",
        "answer", "committed", "on_answer", "race",
    )  # fmt: skip

    def __init__(
        self,
        race: Race,
        call: Call[T],
        spawner: Spawner,
        reaper: Reaper,
        accept: Callable[[T], bool] = accept_all,
        classifier: Classifier = classify,
        funnel: Funnel = NOBODY,
    ) -> None:
        self.race = race
        self.answer: Answer | None = None
        self.committed: int | None = None
        self.on_answer: Callable[[], None] | None = None
        """Called when the caller's answer is known (a stream's consumer may wait for something else)."""
        self._call = call
        self._spawner = spawner
        self._reaper = reaper
        self._accept = accept
        self._classify = classifier
        self._funnel = funnel
        self._active: list[ActiveAttempt | None] = []
        self._started: dict[int, Event] = {}
        self._facts: tuple[Fact, ...] = ()  # tuples: most races never have two facts of one instant
        self._ended: tuple[ActiveAttempt, ...] = ()
        self._held: tuple[Fact, ...] = ()
        self._releases: dict[int, Receipt] = {}
        self._flushing = False
        self._timer: TimerHandle | None = None
        self._timer_at: float
        self._waiter = spawner.waiter()
        self._wake_on_commit = False
        self._forced: Forced | None = forced.get()

    # --- the caller's side --------------------------------------------------------------------------------------

    async def run(self) -> T:
        """Start the race and return the winner's result, or raise what the race has settled on."""
        self._carry_out(self.race.start(self._spawner.now()))
        if self.answer is None:
            try:  # `_wait`, spared one coroutine
                await self._waiter
            except self._spawner.cancelled:
                await self.leave()
                raise
        answer = self.answer
        if answer is not None and answer.outcome.error is None:  # `unwrap`, spared a call
            return answer.outcome.value  # type: ignore[return-value]
        return self.unwrap()

    async def until_committed(self) -> None:
        """Start the race and wait until a winner is elected or the step has failed (for streams)."""
        self._carry_out(self.race.start(self._spawner.now()))
        if self.answer is None and self.committed is None:
            self._wake_on_commit = True
            try:  # `_wait`, spared one coroutine
                await self._waiter
            except self._spawner.cancelled:
                await self.leave()
                raise

    async def until_answered(self) -> T:
        """After `until_committed`: wait for the end of the winner's stream, and return or raise as `run` does."""
        if self.answer is None:
            self._wake_on_commit = False
            self._waiter = self._spawner.waiter()
            await self._wait()
        return self.unwrap()

    async def _wait(self) -> None:
        try:
            await self._waiter
        except self._spawner.cancelled:
            await self.leave()
            raise

    async def leave(self) -> None:
        """The caller goes: cancel what is in flight and join it, at most the reaper's grace (R7)."""
        self._carry_out(self.race.on_cancel(self._spawner.now()))
        tasks = [active.task for active in self._active if active is not None and active.task is not None]
        pending = [task for task in tasks if not task.done()]
        if pending:
            with anyio.move_on_after(self._reaper.grace, shield=True):
                await self._spawner.join(pending)

    def unwrap(self) -> T:
        """Return the answer or raise it; a step that failed with several errors raises the primary's `from` them."""
        answer = self.answer
        assert answer is not None
        error = answer.outcome.error
        try:
            if error is None:
                return cast("T", answer.outcome.value)
            if answer.cause is not None:
                raise error from answer.cause
            raise error
        finally:
            del error, answer  # an exception that keeps its own frame alive is a cycle

    # --- the attempt's side -------------------------------------------------------------------------------------

    async def _attempt(self, active: ActiveAttempt) -> None:
        if active.task is not None:  # (None: an eager task, which is not known yet)
            active.task.remove_done_callback(self._lost)
        if active.cancelled:  # before its first step: nothing was sent
            self._end(active)
            return
        active.started = True
        attempt_scope.set(active)
        try:
            if self._started:
                with self._funnel.around(self._started.pop(active.number)):
                    value = await self._call(active)
            else:
                value = await self._call(active)
            outcome: Outcome[Any]
            if type(value) is Outcome:  # the attempt has judged itself (an empty stream)
                outcome = cast("Outcome[Any]", value)
            elif self._accept is accept_all or self._accept(value):
                outcome = Outcome(value)
            else:
                outcome = Outcome(value, AnswerRejected(), False, Failure.RECOVERABLE)
        except self._spawner.cancelled:
            if active.cancelled:
                await self._released(active)
                self._end(active)
                raise
            if self._spawner.is_cancelled():  # by someone else, as at the end of a loop: a new attempt would be stray
                self._done(active, Outcome(None, AttemptCancelled(), False, Failure.REQUEST))
                raise
            outcome = Outcome(None, AttemptCancelled(), False, Failure.RECOVERABLE)
        except Exception as error:
            outcome = self.outcome_of(error)
        except GeneratorExit:
            raise
        except BaseException as error:  # an exit, an interrupt, a test's outcome: the caller's to see, as without us
            outcome = Outcome(None, error)
        if active.cancelled:
            await self._released(active)
        self._done(active, outcome)

    def _lost(self, task: TaskHandle) -> None:
        """An attempt was cancelled before its first step, and not by us: nothing of it could say so."""
        active = next(active for active in self._active if active is not None and active.task is task)
        if active.cancelled:
            self._end(active)
        else:
            self._done(active, Outcome(None, AttemptCancelled(), False, Failure.REQUEST))

    async def _released(self, active: ActiveAttempt) -> None:
        """Our side of a cancelled attempt has closed: where its target can tell, hear when the engine let go."""
        canceller, known = canceller_of(active.target), self._releases.get(active.number)
        if canceller is None or known is None:
            return
        with suppress(self._spawner.cancelled):  # by the reaper, for the second time
            if await confirmed(canceller, active.attempt, grace=self._reaper.grace):
                self._releases[active.number] = replace(known, released=self._spawner.now())

    def outcome_of(self, error: BaseException) -> Outcome[Any]:
        """Classify what an attempt raised."""
        failure = self._classify(error)
        if failure is None:
            return Outcome(None, error)
        return Outcome(None, error, False, failure, False, retry_after(error))

    def _done(self, active: ActiveAttempt, outcome: Outcome[Any]) -> None:
        race, number = self.race, active.attempt.number
        if race.in_flight == 1 and self._forced is None and not self._facts and not active.cancelled:
            self._carry_out(race.on_finished(number, outcome, self._spawner.now(), self._let_go(active)))
            return
        self._post(Done(number, outcome))
        self._end(active)

    def _end(self, active: ActiveAttempt) -> None:
        if self._facts or self._held:
            self._ended += (active,)
            return
        if active.task is not None:
            self._reaper.forget(active.task)
        self._carry_out(self.race.on_ended(active.number, self._spawner.now(), self._let_go(active)))

    def _let_go(self, active: ActiveAttempt) -> Receipt:
        """Drop an attempt that has ended; its receipt stays. (A cycle here costs every call 5 us of the collector.)"""
        self._active[active.attempt.number] = active.task = None
        return self._receipt(active)

    def _receipt(self, active: ActiveAttempt) -> Receipt:
        known = self._releases.pop(active.number, NO_RECEIPT) if self._releases else NO_RECEIPT
        if active.phase or active.usage is not None or active.tokens is not None or active.tool_s:
            return Receipt(
                phase="decode" if active.spoken and active.phase == "headers" else active.phase,
                cancel_sent=known.cancel_sent,
                released=known.released,
                tokens=active.tokens,
                certainty=active.certainty,
                usage=active.usage,
                tool_s=active.tool_s,
            )
        return known

    # --- facts --------------------------------------------------------------------------------------------------

    def _post(self, fact: Fact) -> None:
        """Take a fact: at once when the attempt is alone, together with the others of its instant when it is not."""
        if self._forced is not None and self._hold(fact):
            return
        if self.race.in_flight <= 1 and not self._facts:
            now = self._spawner.now()
            if type(fact) is Done:
                self._carry_out(self.race.on_outcome(fact.number, fact.outcome, now))
            else:
                self._carry_out(self.race.on_token(fact.number, now))
            return
        self._facts += (fact,)
        if not self._flushing:
            self._flushing = True
            self._after_this_instant(self._flush)

    def _flush(self) -> None:
        self._flushing = False
        facts, self._facts = self._facts, ()
        if facts:
            self._carry_out(self.race.on_facts(facts, self._spawner.now()))
        ended, self._ended = self._ended, ()
        for active in ended:
            self._end(active)

    def _after_this_instant(self, callback: Callable[[], None]) -> None:
        """Run `callback` when every task that is due at this instant has had its turn (rule 7 of the race)."""
        self._spawner.call_soon(lambda: self._spawner.call_soon(callback))

    def _hold(self, fact: Fact) -> bool:
        """The test kit names the winner: facts of the others wait until it has won, or can no longer win."""
        named = cast("Forced", self._forced)
        if not named.hedge or self.race.launched <= named.winner:
            self._forced = None
            return False
        if fact.number != named.winner:
            self._held += (fact,)
            return True
        self._carry_out(self.race.on_facts([fact], self._spawner.now()))
        if type(fact) is Done or self.race.state is not State.OPEN:
            self._release()
        return True

    def _release(self) -> None:
        self._forced = None
        self._facts, self._held = self._facts + self._held, ()
        self._after_this_instant(self._flush)

    def _on_timer(self) -> None:
        self._timer = None
        self._after_this_instant(self._due)

    def _due(self) -> None:
        if self._facts:
            self._flush()
        if self.race.wake_at is not None:
            self._carry_out(self.race.on_timer(self._spawner.now()))

    def first_token(self, number: int) -> None:
        """An attempt says that its first meaningful token has come."""
        self._post(Token(number))

    def claim(self, number: int, tool: str = "") -> bool:
        """An attempt wants to win before a side effect; from any thread."""
        race, active = self.race, self._active[number]
        won = race.claim(number)
        if self._funnel and active is not None:
            at, attempt, passed = self._spawner.now(), active.attempt, won and not active.cancelled
            self._funnel.tell(
                Fenced(step_id=race.step_id, key=race.key, at=at, attempt=attempt, passed=passed, tool=tool)
            )
        if won:
            self._spawner.call_soon_threadsafe(self._on_claim)
        return won

    def _on_claim(self) -> None:
        self._carry_out(self.race.on_claim(self._spawner.now()))

    # --- commands -----------------------------------------------------------------------------------------------

    def _carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            kind = type(command)
            if kind is Launch:
                self._launch(command.attempt)  # type: ignore[union-attr]
            elif kind is Answer:
                if self._held:
                    self._release()
                self.answer = command  # type: ignore[assignment]
                self._spawner.wake(self._waiter)
                if self.on_answer is not None:
                    self.on_answer()
            elif kind is Commit:
                self.committed = command.number  # type: ignore[union-attr]
                if self._wake_on_commit:
                    self._spawner.wake(self._waiter)
            elif kind is Cancel:
                self._cancel(command)  # type: ignore[arg-type]
            elif kind is Report:
                event: Event = command.event  # type: ignore[union-attr]
                if type(event) is AttemptStarted:
                    self._started[event.attempt.number] = event
                else:
                    self._funnel.tell(event)
        if self.race.wake_at is not None or self._timer is not None:
            self._arm()

    def _launch(self, attempt: Attempt) -> None:
        active = ActiveAttempt(attempt, self)
        self._active.append(active)
        task = active.task = self._spawner.spawn(self._attempt(active), name=self.race.key.node)
        if not active.started:
            task.add_done_callback(self._lost)

    def _cancel(self, command: Cancel) -> None:
        active = self._active[command.number]
        if active is None:
            return
        active.cancelled = True
        task = active.task
        if task is None or task.done() or not active.started:
            return
        if canceller_of(active.target) is not None:
            self._releases[active.number] = Receipt(cancel_sent=self.race.now)
        task.cancel()
        name = f"{active.attempt} of {self.race.key}"
        self._reaper.take(task, name, lambda: self._abandon(active), self.race.run)

    def _abandon(self, active: ActiveAttempt) -> None:
        now, receipt = self._spawner.now(), self._receipt(active)
        self._carry_out(self.race.on_ended(active.number, now, receipt, abandoned=True))

    def _arm(self) -> None:
        wake_at = self.race.wake_at
        if wake_at is None:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self._spawner.call_at(wake_at, self._on_timer)
            self._timer_at = wake_at
        elif wake_at != self._timer_at:
            self._timer.cancel()
            self._timer = self._spawner.call_at(wake_at, self._on_timer)
            self._timer_at = wake_at
