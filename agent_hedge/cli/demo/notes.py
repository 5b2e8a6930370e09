"""What is written down while the agents run: one note a run, step and attempt. Plain data, sent between processes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from agent_hedge.core.events import (
    AttemptRefused,
    AttemptStarted,
    CancelSent,
    Committed,
    Event,
    FirstToken,
    StepStarted,
    TriggerArmed,
)
from agent_hedge.core.step import Role


@dataclass(slots=True)
class AttemptNote:
    """One physical dispatch. Instants are on the monotonic clock; `id` is what the engine calls the request."""

    id: str
    target: str
    hedge: bool
    started: float
    first_token: float | None = None
    cancelled: float | None = None
    won: bool = False


@dataclass(slots=True)
class StepNote:
    """One logical request: when it was made, when its first token came, and what was dispatched for it."""

    started: float
    counted: bool = True
    answered: float | None = None
    attempts: list[AttemptNote] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Seconds to the first token the caller saw."""
        assert self.answered is not None
        return self.answered - self.started


@dataclass(slots=True)
class RunNote:
    """One run of the agent."""

    number: int
    started: float
    elapsed: float
    steps: list[StepNote]

    @property
    def ttft_sum(self) -> float:
        """Seconds the run has waited for first tokens."""
        return sum(step.ttft for step in self.steps)


@dataclass(slots=True)
class PolicyNotes:
    """All that one policy's process has to tell.

    `cpu` in seconds; `lags`: by how much timers were late, in seconds; `learnt` calls were made before the first run.
    """

    policy: str
    runs: list[RunNote]
    cpu: float
    lags: list[float]
    mode: str
    learnt: int
    triggers: list[float]
    refused: Counter[str]


class Notebook:
    """An observer that writes notes, by run. The runs numbered below `first` are for learning and count for nothing."""

    def __init__(self, first: int) -> None:
        self._first = first
        self.triggers: list[float] = []
        """Delays after which a first hedge was due, in seconds."""
        self.refused: Counter[str] = Counter()
        """Hedges that were refused, by reason."""
        self._steps: dict[str, StepNote] = {}
        self._runs: dict[str, list[StepNote]] = {}

    def take(self, run_key: str) -> list[StepNote]:
        """Return the steps of a run that has ended, in order."""
        return self._runs.pop(run_key)

    def on_event(self, event: Event) -> None:
        """Hear an event of a hedger."""
        if isinstance(event, StepStarted):
            step = self._steps[event.step_id] = StepNote(event.at, counted=int(event.run_key) >= self._first)
            self._runs.setdefault(event.run_key, []).append(step)
        elif isinstance(event, AttemptStarted):
            attempt = event.attempt
            note = AttemptNote(attempt.id, attempt.target.name, attempt.role is Role.HEDGE, attempt.started_at)
            self._steps[event.step_id].attempts.append(note)
        elif isinstance(event, FirstToken):
            self._steps[event.step_id].attempts[event.attempt.number].first_token = event.at
        elif isinstance(event, Committed):
            step = self._steps[event.step_id]
            step.answered = event.at
            step.attempts[event.attempt.number].won = True
        elif isinstance(event, CancelSent):
            self._steps[event.step_id].attempts[event.attempt.number].cancelled = event.at
        elif isinstance(event, TriggerArmed):
            step = self._steps[event.step_id]
            if step.counted and len(step.attempts) < 2:
                self.triggers.append(event.due_at - step.started)
        elif isinstance(event, AttemptRefused) and event.role is Role.HEDGE and self._steps[event.step_id].counted:
            self.refused[event.reason] += 1
