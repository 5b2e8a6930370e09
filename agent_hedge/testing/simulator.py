"""A discrete-event driver for the race: a heap instead of a run loop, the same commands carried out."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Protocol

from agent_hedge.core.classify import classify, retry_after
from agent_hedge.core.events import Event
from agent_hedge.core.race import Answer, Cancel, Command, Done, Fact, Launch, Race, Report, Token
from agent_hedge.core.step import Attempt, Failure, Outcome, instant
from agent_hedge.errors import AnswerRejected


class Service(Protocol):
    """What an attempt meets: `delay` seconds to `result`, `first_token` seconds to its first token if earlier."""

    @property
    def delay(self) -> float: ...
    @property
    def result(self) -> Any: ...
    @property
    def first_token(self) -> float | None: ...


def outcome_of(result: Any, accept: Callable[[Any], bool] | None) -> Outcome[Any]:
    """Turn a scripted result into the outcome a driver would report."""
    if isinstance(result, BaseException):
        return Outcome(None, result, False, classify(result), False, retry_after(result))
    if accept is not None and not accept(result):
        return Outcome(result, AnswerRejected(), False, Failure.RECOVERABLE)
    return Outcome(result)


def simulate(
    race: Race,
    serve: Callable[[Attempt], Service],
    *,
    start: float = 0.0,
    accept: Callable[[Any], bool] | None = None,
    observe: Callable[[Event], object] | None = None,
) -> tuple[Outcome[Any], float]:
    """Run a race to its close; return the caller's outcome and its instant. Cancelled attempts end at once."""
    heap: list[tuple[float, int, int, Fact]] = []
    answer: Answer | None = None
    answered_at = now = start
    ended: list[int] = []

    def carry_out(commands: list[Command]) -> None:
        nonlocal answer, answered_at
        for command in commands:
            match command:
                case Launch(attempt):
                    service = serve(attempt)
                    if service.first_token is not None:
                        token = instant(now + service.first_token)
                        heapq.heappush(heap, (token, attempt.number, 0, Token(attempt.number)))
                    done = Done(attempt.number, outcome_of(service.result, accept))
                    heapq.heappush(heap, (instant(now + service.delay), attempt.number, 1, done))
                case Cancel(number, _):
                    ended.append(number)
                case Answer():
                    answer, answered_at = command, now
                case Report(event) if observe is not None:
                    observe(event)

    carry_out(race.start(start))
    while not race.closed:
        if race.wake_at is not None and (not heap or race.wake_at < heap[0][0]):
            now = race.wake_at
            carry_out(race.on_timer(now))
        elif heap:
            now = heap[0][0]
            facts: list[Fact] = []
            while heap and heap[0][0] == now:
                facts.append(heapq.heappop(heap)[3])
            carry_out(race.on_facts(facts, now))
            ended += [fact.number for fact in facts if isinstance(fact, Done)]
        while ended:
            carry_out(race.on_ended(ended.pop(0), now))
    assert answer is not None
    return answer.outcome, answered_at
