"""A race as a script: one line `(target, delay, result)` per attempt, in launch order.

    Scenario(("a", 0.8, "slow"), ("b", 0.1, "fast"), policy=Fixed(0.25)).simulate()
    await Scenario(("a", 0.005, ConnectionError()), ("b", 0.3, "ok")).play()

`simulate` needs no run loop; `play` drives the shipped driver on the running asyncio or trio loop, which a test
puts on virtual time. Both say who won, when every attempt was launched and how it ended, to the nanosecond.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from agent_hedge.core.events import AttemptEnded, AttemptRefused, AttemptStarted, Committed, Event, Reason
from agent_hedge.core.ports import Choice, Gate, HedgePolicy, Refused, RunView, Spawner
from agent_hedge.core.race import Race
from agent_hedge.core.scope import ActiveAttempt
from agent_hedge.core.step import FOREVER, Attempt, Effect, Place, Role, StepKey, Verdict, instant
from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.empty import EmptyBook, QuietFleet

KEY = StepKey(node="scenario")


@dataclass(frozen=True, slots=True)
class Site:
    """A place with nothing behind it."""

    name: str

    @property
    def domain(self) -> tuple[str, ...]:
        return (self.name,)


@dataclass(frozen=True, slots=True)
class Line:
    """One attempt: after `delay` seconds it returns `result`, or raises it when it is an exception.

    `first_token`: seconds to a first meaningful token, where that comes before the result.
    `ignores_cancel`: seconds for which it swallows a cancellation.
    """

    target: str
    delay: float
    result: Any = "ok"
    first_token: float | None = None
    ignores_cancel: float = 0.0

    def __post_init__(self) -> None:
        if math.isnan(self.delay) or self.delay < 0:
            raise ConfigurationError(f"The delay of a scenario line is {self.delay!r}; it is seconds, 0 or more.")


@dataclass(frozen=True, slots=True)
class Ending:
    """How one attempt ended: its verdict and its instant."""

    number: int
    verdict: Verdict
    at: float


@dataclass(slots=True)
class Played:
    """What happened. Instants are seconds since the race began."""

    winner: int | None = None
    value: Any = None
    error: BaseException | None = None
    elapsed: float = math.nan
    launches: list[tuple[int, Role, str, float]] = field(default_factory=list)
    refusals: list[Reason] = field(default_factory=list)
    endings: list[Ending] = field(default_factory=list)

    @property
    def launched_at(self) -> dict[int, float]:
        return {number: at for number, _, _, at in self.launches}

    @property
    def verdicts(self) -> dict[int, Verdict]:
        return {ending.number: ending.verdict for ending in self.endings}


class Recorder:
    """The observer that fills a `Played`."""

    def __init__(self, played: Played, started_at: float) -> None:
        self.played = played
        self.started_at = started_at

    def on_event(self, event: Event) -> None:
        at = instant(event.at - self.started_at)
        match event:
            case AttemptStarted(attempt=attempt):
                self.played.launches.append((attempt.number, attempt.role, attempt.target.name, at))
            case AttemptRefused(reason=reason):
                self.played.refusals.append(reason)
            case Committed(attempt=attempt):
                self.played.winner = attempt.number
            case AttemptEnded(attempt=attempt, verdict=verdict):
                self.played.endings.append(Ending(attempt.number, verdict, at))


class ScriptedChooser:
    """Attempt n goes where line n says; no line, no target."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._places: Sequence[Place] = [Site(line.target) for line in lines]

    def choose(self, role: Role, view: Any) -> Choice | Refused:
        if view.launched < len(self._places):
            return Choice(self._places[view.launched])
        return Refused(Reason.NO_TARGET)


@dataclass(frozen=True, slots=True)
class After:
    """The policy of scenarios: the next attempt `delay` seconds after the last, `attempts` in all."""

    delay: float = FOREVER
    attempts: int = 3

    def next_launch_at(self, view: Any) -> float | None:
        if self.delay == FOREVER or view.launched >= self.attempts:
            return None
        return float(view.last_launch_at + self.delay)


class Scenario:
    """A scripted race. Lines are `Line`s or tuples of their fields."""

    def __init__(
        self,
        *lines: Line | tuple[Any, ...],
        policy: HedgePolicy | float = FOREVER,
        gates: Sequence[Gate] = (),
        deadline: float = FOREVER,
        accept: Callable[[Any], bool] | None = None,
        commit_on_token: bool = False,
        run: RunView | None = None,
        max_attempts: int = 3,
    ) -> None:
        self.lines = [line if isinstance(line, Line) else Line(*line) for line in lines]
        if not self.lines:
            raise ConfigurationError("A scenario has no line; it needs one (target, delay, result) per attempt.")
        self.policy: HedgePolicy = After(policy) if isinstance(policy, int | float) else policy
        self.gates = gates
        self.deadline = deadline
        self.accept = accept
        self.commit_on_token = commit_on_token
        self.run = run
        self.max_attempts = max_attempts

    def race(self, now: float) -> Race:
        """Return the race of this scenario, begun at `now`."""
        return Race(
            KEY,
            policy=self.policy,
            chooser=ScriptedChooser(self.lines),
            candidates=[Site(line.target) for line in self.lines],
            latency=EmptyBook(),
            fleet=QuietFleet(),
            gates=self.gates,
            run=self.run,
            effect=Effect.READ_ONLY,
            deadline=instant(now + self.deadline),
            commit_on_token=self.commit_on_token,
            max_attempts=self.max_attempts,
            observed=True,
        )

    def line(self, attempt: Attempt) -> Line:
        return self.lines[attempt.number]

    def simulate(self, start: float = 0.0) -> Played:
        """Run the script on a heap."""
        from agent_hedge.testing.simulator import simulate

        played = Played()
        recorder = Recorder(played, start)
        outcome, ended_at = simulate(
            self.race(start), self.line, start=start, accept=self.accept, observe=recorder.on_event
        )
        played.elapsed = instant(ended_at - start)
        played.error = outcome.error
        played.value = None if outcome.error else outcome.value
        return played

    async def play(self, spawner: Spawner | None = None, *, grace: float = 1.0) -> Played:
        """Run the script with the shipped driver on the running loop (under trio: with a `TrioSpawner`)."""
        from agent_hedge.engine.driver import Driver, accept_all
        from agent_hedge.engine.funnel import Funnel
        from agent_hedge.engine.reaper import Reaper
        from agent_hedge.engine.spawn import asyncio_spawner

        loop = spawner or asyncio_spawner()
        played, start = Played(), loop.now()
        reaper = Reaper(loop, grace=grace)
        driver: Driver[Any] = Driver(
            self.race(start),
            lambda active: self.perform(active, loop),
            spawner=loop,
            reaper=reaper,
            accept=self.accept or accept_all,
            funnel=Funnel([Recorder(played, start)]),
        )
        try:
            played.value = await driver.run()
        except Exception as error:
            played.error = error
        played.elapsed = instant(loop.now() - start)
        await reaper.join()
        played.launches.sort()  # attempts of one instant report in the order in which their tasks happen to start
        return played

    async def perform(self, active: ActiveAttempt, spawner: Spawner) -> Any:
        """Be the attempt of the script."""
        line = self.line(active.attempt)
        started_at = active.attempt.started_at
        try:
            if line.first_token is not None:
                await sleep_until(spawner, started_at + line.first_token)
                active.first_token()
            await sleep_until(spawner, started_at + line.delay)
        except spawner.cancelled:
            if line.ignores_cancel:
                await _be_stubborn(spawner, line.ignores_cancel)
            raise
        if isinstance(line.result, BaseException):
            raise line.result
        return line.result


async def sleep_until(spawner: Spawner, when: float) -> None:
    """Sleep to an exact instant: `anyio.sleep_until` goes through a difference and is off by a rounding error."""
    waiter = spawner.waiter()
    timer = spawner.call_at(instant(when), lambda: spawner.wake(waiter)) if when < FOREVER else None
    try:
        await waiter
    finally:
        if timer is not None:
            timer.cancel()


async def _be_stubborn(spawner: Spawner, seconds: float) -> None:
    until = instant(spawner.now() + seconds)
    while spawner.now() < until:
        try:
            with anyio.CancelScope(shield=True):
                await sleep_until(spawner, until)
        except spawner.cancelled:
            continue
