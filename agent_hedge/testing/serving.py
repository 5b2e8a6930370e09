"""One LLM serving engine as a pure model: slots, a waiting queue, KV blocks, prefill and decode clocks.

Nothing here sleeps or does I/O. The caller brings `now` (seconds on its own clock), asks `due` for the next instant
at which something happens, and hears from `advance` what happened until then. The fake engine drives the model with
a real clock, a simulator with a virtual one. The rules:

- A request waits in one FIFO queue until a slot is free and its KV blocks (prompt and whole answer) are. Blocks are
  reserved at admission: a real engine takes them as it goes and preempts; this one queues instead.
- Prefill computes the prompt in chunks. Then comes the extra time of the TTFT profile (the slot stays taken), then
  the first token; every further step computes `decode_step` tokens.
- An abort takes effect at once in the queue and in waits, and at the end of the running chunk or step otherwise: a
  scheduler looks up only between steps (measured on vLLM and llama.cpp: a cancel in prefill costs at most one step).
- A disconnect is not an abort: when, if ever, the engine notices it is the caller's to say (`Notice`). Tokens
  computed between the disconnect and the release are counted; they are the waste a lost hedge really causes.
- All durations are engine seconds and pass `speedup` times faster on the caller's clock.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from typing import NamedTuple

from agent_hedge.core.step import instant
from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.profiles import Draw, Profile


class Phase(StrEnum):
    """Where a request is."""

    QUEUED = "queued"
    PREFILL = "prefill"
    DECODE = "decode"
    GONE = "gone"


class Ending(StrEnum):
    """How a request ended."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    FAILED = "failed"
    """The engine itself broke it off."""
    REJECTED = "rejected"
    """It was never admitted: queue full, longer than the whole KV cache, or refused before the model was asked."""


class Notice(StrEnum):
    """When an engine notices that its client is gone."""

    AT_ONCE = "at_once"
    LATE = "late"
    FIRST_TOKEN = "first_token"
    """Only when it first tries to send something (Ollama, llama.cpp in prefill)."""
    NEVER = "never"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """What the engine runs on.

    Rates are tokens a second of one request; `block_tokens` is vLLM's default page, `prefill_step` of its order.
    `crowding` is the factor by which a step slows when all slots run (1: not at all), linear in between.
    """

    slots: int = 16
    blocks: int = 8192
    block_tokens: int = 16
    prefill_rate: float = 20_000.0
    prefill_step: int = 2048
    decode_rate: float = 80.0
    decode_step: int = 1
    queue_limit: int | None = None
    crowding: float = 1.0
    speedup: float = 1.0

    def __post_init__(self) -> None:
        for name in ("slots", "blocks", "block_tokens", "prefill_step", "decode_step"):
            if getattr(self, name) < 1:
                raise ConfigurationError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("prefill_rate", "decode_rate", "speedup"):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be positive, not {getattr(self, name)}")
        if not math.isfinite(self.speedup):
            raise ConfigurationError(f"speedup must be finite, not {self.speedup}")
        if self.queue_limit is not None and self.queue_limit < 0:
            raise ConfigurationError(f"queue_limit must not be negative, not {self.queue_limit}")
        if not 1 <= self.crowding < math.inf:
            raise ConfigurationError(f"crowding must be at least 1, not {self.crowding}")

    def blocks_for(self, tokens: int) -> int:
        """Return how many KV blocks hold that many tokens."""
        return -(-tokens // self.block_tokens)


@dataclass(slots=True, kw_only=True)
class Record:
    """What happened to one request. Instants are on the caller's clock, None where it did not come to that.

    `extra`: engine seconds the profile added before the first token. `disconnected`: the client was gone;
    `noticed`: the engine learnt it, or was told to abort; `released`: it held no slot, block or queue place any more.
    """

    id: str
    key: str
    prompt_tokens: int
    completion_tokens: int
    arrived: float
    extra: float = 0.0
    prefill_started: float | None = None
    first_token: float | None = None
    finished: float | None = None
    disconnected: float | None = None
    noticed: float | None = None
    released: float | None = None
    prompt_computed: int = 0
    completion_computed: int = 0
    computed_after_disconnect: int = 0
    ending: Ending | None = None

    @property
    def phase(self) -> Phase:
        """Where the request is now."""
        if self.ending is not None:
            return Phase.GONE
        if self.prefill_started is None:
            return Phase.QUEUED
        return Phase.PREFILL if self.first_token is None else Phase.DECODE

    @property
    def ttft(self) -> float | None:
        """Seconds from arrival to the first token, on the caller's clock."""
        return None if self.first_token is None else self.first_token - self.arrived

    @property
    def release_delay(self) -> float | None:
        """Seconds the engine went on for nobody: from the disconnect to the release."""
        if self.disconnected is None or self.released is None:
            return None
        return self.released - self.disconnected


class Fact(NamedTuple):
    """Something happened to request `id` at `at`: `tokens` more were computed, or (`ending`) it left the engine."""

    id: str
    at: float
    tokens: int = 0
    ending: Ending | None = None


class Stall(NamedTuple):
    """The engine pauses for `seconds` once `after` tokens are out (0: before the first)."""

    after: int
    seconds: float


@dataclass(slots=True, eq=False)
class _Job:
    """A request inside the engine. While it is `waiting` (queue, extra time, stall) an abort takes effect at once."""

    record: Record
    blocks: int
    stall: Stall | None
    breaks_after: float
    waiting: bool = True
    stopping: bool = False
    notice_at_first_token: bool = False


@dataclass(slots=True)
class Totals:
    """Counters since the start. `prompt_tokens` are counted at a request's first output, as vLLM does."""

    prompt_tokens: int = 0
    generation_tokens: int = 0
    endings: Counter[Ending] = field(default_factory=Counter)


class Serving:
    """The engine. Every call takes `now`, which must not go back; facts come out of `advance` in order of time."""

    def __init__(
        self, profile: Profile, hardware: Hardware | None = None, *, seed: int = 0, started_at: float = 0.0
    ) -> None:
        self.profile = profile
        self.hardware = hardware or Hardware()
        self.totals = Totals()
        self.running = 0
        self.free_blocks = self.hardware.blocks
        self._seed = seed
        self._started_at = started_at
        self._jobs: dict[str, _Job] = {}
        self._queue: deque[_Job] = deque()
        self._agenda: list[tuple[float, int, _Job, Callable[[float], None]]] = []
        self._tickets = count()
        self._ordinals = count()
        self._facts: list[Fact] = []

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._queue)

    @property
    def kv_usage(self) -> float:
        """Share of the KV blocks in use, 0 to 1."""
        return 1.0 - self.free_blocks / self.hardware.blocks

    @property
    def due(self) -> float | None:
        """The next instant at which something happens by itself, None when nothing will."""
        while self._agenda and self._agenda[0][2].record.ending is not None:
            heapq.heappop(self._agenda)
        return self._agenda[0][0] if self._agenda else None

    def arrive(
        self,
        id: str,  # noqa: A002
        now: float,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        key: str = "",
        stall: Stall | None = None,
        breaks_after: int | None = None,
    ) -> Record:
        """Take a request of so many tokens; `key` names its TTFT draw. Its `Record` fills as time goes on.

        With `breaks_after` the engine fails once it has computed that many tokens (0: where the first would come).

        A record that comes back with the ending `REJECTED` was not taken. An id may be used again once it is gone.
        """
        self._run(now)
        if id in self._jobs:
            raise ValueError(f"request {id!r} is already here")
        if prompt_tokens < 0 or completion_tokens < 1:
            raise ValueError(f"no request has {prompt_tokens} prompt and {completion_tokens} answer tokens")
        draw = Draw(self._seed, key, next(self._ordinals), (now - self._started_at) * self.hardware.speedup)
        record = Record(
            id=id,
            key=key,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            arrived=now,
            extra=self.profile.extra(draw),
        )
        blocks = self.hardware.blocks_for(prompt_tokens + completion_tokens)
        job = _Job(record, blocks, stall, math.inf if breaks_after is None else breaks_after)
        if job.blocks > self.hardware.blocks or self._is_full(job):
            record.ending = Ending.REJECTED
            self.totals.endings[Ending.REJECTED] += 1
            return record
        self._jobs[id] = job
        self._queue.append(job)
        self._admit(now)
        return record

    def abort(self, id: str, now: float) -> bool:  # noqa: A002
        """Take a request out, in any phase; False when there is none of that id (any more)."""
        self._run(now)
        job = self._jobs.get(id)
        if job is not None:
            self._stop(job, now)
        return job is not None

    def disconnect(self, id: str, now: float, notice: Notice = Notice.AT_ONCE, after: float = 0.0) -> None:  # noqa: A002
        """The client of a request is gone; the engine notices it by `notice` (`LATE`: `after` engine seconds later)."""
        self._run(now)
        job = self._jobs.get(id)
        if job is None or job.record.disconnected is not None:
            return
        job.record.disconnected = now
        if notice is Notice.LATE:
            self._put(now + after / self.hardware.speedup, job, lambda at: self._stop(job, at))
        elif notice is Notice.FIRST_TOKEN and job.record.first_token is None:
            job.notice_at_first_token = True
        elif notice is not Notice.NEVER:
            self._stop(job, now)

    def advance(self, now: float) -> list[Fact]:
        """Let time pass until `now` and return what happened since the last call."""
        self._run(now)
        facts, self._facts = self._facts, []
        return facts

    def _run(self, now: float) -> None:
        while (due := self.due) is not None and due <= now:
            at, _, _, act = heapq.heappop(self._agenda)
            act(at)

    def _put(self, at: float, job: _Job, act: Callable[[float], None]) -> None:
        heapq.heappush(self._agenda, (instant(at), next(self._tickets), job, act))

    def _work(self, job: _Job, now: float, seconds: float, then: Callable[[float], None], *, wait: bool) -> None:
        """Occupy the job for so many engine seconds; a `wait` can be broken off, computing cannot."""
        hardware = self.hardware
        if not wait and hardware.slots > 1:
            seconds *= 1.0 + (hardware.crowding - 1.0) * (self.running - 1) / (hardware.slots - 1)
        job.waiting = wait
        self._put(now + seconds / hardware.speedup, job, then)

    def _is_full(self, job: _Job) -> bool:
        limit = self.hardware.queue_limit
        return limit is not None and len(self._queue) >= limit and not (not self._queue and self._fits(job))

    def _fits(self, job: _Job) -> bool:
        return self.running < self.hardware.slots and job.blocks <= self.free_blocks

    def _admit(self, now: float) -> None:
        while self._queue and self._fits(self._queue[0]):
            job = self._queue.popleft()
            self.running += 1
            self.free_blocks -= job.blocks
            job.record.prefill_started = now
            self._prefill(job, now)

    def _prefill(self, job: _Job, now: float) -> None:
        left = job.record.prompt_tokens - job.record.prompt_computed
        if left == 0:
            pause = job.stall.seconds if job.stall is not None and job.stall.after == 0 else 0.0
            self._work(job, now, job.record.extra + pause, lambda at: self._first(job, at), wait=True)
            return
        chunk = min(self.hardware.prefill_step, left)

        def done(at: float) -> None:
            job.record.prompt_computed += chunk
            if job.record.disconnected is not None:
                job.record.computed_after_disconnect += chunk
            if job.stopping:
                self._release(job, at, Ending.ABORTED)
            else:
                self._prefill(job, at)

        self._work(job, now, chunk / self.hardware.prefill_rate, done, wait=False)

    def _first(self, job: _Job, now: float) -> None:
        if job.notice_at_first_token:
            job.record.noticed, job.stopping = now, True
        if job.breaks_after == 0:
            self._release(job, now, Ending.FAILED)
            return
        job.record.first_token = now
        self.totals.prompt_tokens += job.record.prompt_tokens
        self._computed(job, now, 1)

    def _decode(self, job: _Job, now: float) -> None:
        done = job.record.completion_computed
        step = int(min(self.hardware.decode_step, job.record.completion_tokens - done, job.breaks_after - done))
        seconds = step / self.hardware.decode_rate
        self._work(job, now, seconds, lambda at: self._computed(job, at, step), wait=False)

    def _computed(self, job: _Job, now: float, tokens: int) -> None:
        record = job.record
        before = record.completion_computed
        record.completion_computed += tokens
        self.totals.generation_tokens += tokens
        if record.disconnected is not None:
            record.computed_after_disconnect += tokens
        self._facts.append(Fact(record.id, now, tokens))
        if record.completion_computed == record.completion_tokens:
            record.finished = now
            self._release(job, now, Ending.COMPLETED)
        elif record.completion_computed == job.breaks_after:
            self._release(job, now, Ending.FAILED)
        elif job.stopping:
            self._release(job, now, Ending.ABORTED)
        elif job.stall is not None and before < job.stall.after <= record.completion_computed:
            self._work(job, now, job.stall.seconds, lambda at: self._decode(job, at), wait=True)
        else:
            self._decode(job, now)

    def _stop(self, job: _Job, now: float) -> None:
        if job.record.noticed is None:
            job.record.noticed = now
        job.stopping = True
        if job.waiting:
            self._release(job, now, Ending.ABORTED)

    def _release(self, job: _Job, now: float, ending: Ending) -> None:
        record = job.record
        del self._jobs[record.id]
        if record.prefill_started is None:
            self._queue.remove(job)
        else:
            self.running -= 1
            self.free_blocks += job.blocks
        record.released, record.ending = now, ending
        self.totals.endings[ending] += 1
        self._facts.append(Fact(record.id, now, 0, ending))
        self._admit(now)
