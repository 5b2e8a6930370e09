"""One logical call of a hedged model: what each attempt does, and what the caller is told of it."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from agent_hedge.adapters.langchain.chunks import as_result
from agent_hedge.adapters.langchain.content import Keeping
from agent_hedge.adapters.langchain.judge import Judge
from agent_hedge.adapters.langchain.limits import take_turn
from agent_hedge.adapters.langchain.meaning import is_meaningful
from agent_hedge.adapters.langchain.members import Member
from agent_hedge.adapters.langchain.silence import silence
from agent_hedge.adapters.langchain.usage import Meter, metered
from agent_hedge.core.race import Race
from agent_hedge.core.scope import ActiveAttempt
from agent_hedge.core.step import Attempt, Failure, Outcome, StepKey
from agent_hedge.engine.driver import Driver
from agent_hedge.engine.lane import Lane
from agent_hedge.engine.streams import EMPTY, iterate
from agent_hedge.errors import AllAttemptsFailed, AnswerRejected, DeadlineExceeded
from agent_hedge.latency import size_bucket
from agent_hedge.tools.bound import effect_of_call

if TYPE_CHECKING:
    from agent_hedge.adapters.langchain.model import HedgedChatModel

CHARACTERS_PER_TOKEN = 4
"""A cheap estimate, for prompt-size buckets (powers of two, so a factor near 1 does not matter) and for caps."""
MAX_KEYS = 1024
"""Step keys remembered per model: nodes times prompt sizes."""
Attempted = Callable[[ActiveAttempt], Awaitable[Any]]
METADATA = "agent_hedge"
"""The key of what we say in a message's `response_metadata`."""


class Call:
    """One call: the same messages and arguments for every attempt, each in its member's own form."""

    __slots__ = (
        "_arguments", "_judge", "_lane", "_members", "_messages", "_primary", "_rejected", "_stop", "effect", "key",
        "prompt_tokens",
    )  # fmt: skip

    def __init__(
        self, model: HedgedChatModel, messages: list[BaseMessage], stop: list[str] | None, arguments: dict[str, Any]
    ) -> None:
        members = model._members
        self._members: Mapping[str, Member] = model._by_name
        self._primary = members[0]
        self._judge = model._judge
        self._lane = model._lanes.first_token
        self._messages = messages
        self._stop = stop
        self._arguments = arguments
        self._rejected: ChatResult | None = None
        self.effect = effect_of_call(arguments, model._server_side, model._effects)
        self.key = self._key(model._lanes.first_token, model._keys)

    def _key(self, lane: Lane, known: dict[tuple[str, int], StepKey]) -> StepKey:
        """Return the key of this step: one object for all equal ones, which saves every look-up a comparison."""
        characters = 0
        for message in self._messages:
            content = message.content
            if isinstance(content, str):
                characters += len(content)
        context = lane.context_of()
        node = context.node if context is not None and context.node else lane.key.node
        self.prompt_tokens = tokens = max(1, characters // CHARACTERS_PER_TOKEN)
        bits = (tokens - 1).bit_length()  # of one bucket at most, and cheaper than its name
        key = known.get((node, bits))
        if key is None:
            if len(known) >= MAX_KEYS:
                known.clear()
            key = known[node, bits] = StepKey(node=node, model=lane.key.model, size=size_bucket(tokens))
        return key

    # --- what one attempt does --------------------------------------------------------------------------------------

    def stream(self, active: ActiveAttempt) -> AsyncIterator[ChatGenerationChunk]:
        """Return the member's own stream, to be iterated and closed in the attempt's task."""
        member = self._members[active.target.name]
        stream = self._open(member, active) if member.model.rate_limiter is None else self._in_turn(member, active)
        if not self._lane.funnel:
            return stream
        meter = active.usage = self._meter()
        return metered(stream, meter)

    def _meter(self) -> Meter:
        return Meter()

    def _open(self, member: Member, active: ActiveAttempt) -> AsyncIterator[ChatGenerationChunk]:
        arguments = self._dispatched(member, active.attempt)
        silence()
        return member.copies.here()._astream(list(self._messages), stop=member.stop(self._stop), **arguments)

    def _dispatched(self, member: Member, attempt: Attempt) -> dict[str, Any]:
        left = attempt.deadline
        if left < math.inf:
            left = max(0.0, left - self._lane.loops.current().spawner.now())
        return member.dispatched(self._primary, self._arguments, attempt, self._lane.headers, left)

    async def _in_turn(self, member: Member, active: ActiveAttempt) -> AsyncIterator[ChatGenerationChunk]:
        await take_turn(member, active)
        stream = self._open(member, active)
        try:
            async for chunk in stream:
                yield chunk
        finally:
            await cast("Any", stream).aclose()

    async def collect(self, active: ActiveAttempt) -> Any:
        """The whole answer, from the stream, so that the first token is seen."""
        chunks: list[ChatGenerationChunk] = []
        spoken = await iterate(active, self.stream, is_meaningful, chunks.append)
        if active.cancelled:
            return None
        if not chunks:
            return EMPTY
        result = as_result(chunks)
        return result if spoken else EMPTY._replace(value=result)

    async def generate(self, active: ActiveAttempt) -> ChatResult:
        """The whole answer at once, where no first token can be seen."""
        member = self._members[active.target.name]
        await take_turn(member, active)
        arguments = self._dispatched(member, active.attempt)
        arguments.pop("stream", None)
        silence()
        meter = self._meter() if self._lane.funnel else None
        active.usage = meter
        stop = member.stop(self._stop)
        result = await member.copies.here()._agenerate(list(self._messages), stop=stop, **arguments)
        if meter is not None:
            meter.whole(result)
        return result

    def _judged(self, call: Attempted, judge: Judge) -> Attempted:
        """Return `call` with its answer judged; a rejected one is a recoverable failure (R1)."""

        async def judged(active: ActiveAttempt) -> Any:
            try:
                result = await call(active)
            except judge.errors as error:
                return Outcome(None, error, False, Failure.RECOVERABLE)
            if not isinstance(result, ChatResult):  # empty, or not wanted any more
                return result
            rejected = judge(active.target.name, cast("AIMessage", result.generations[0].message))
            if rejected is None:
                return result
            if judge.forgives and active.number == 0:
                self._rejected = result
            return Outcome(result, rejected, False, Failure.RECOVERABLE)

        return judged

    # --- the caller's side ------------------------------------------------------------------------------------------

    async def run(self, lane: Lane, call: Attempted) -> ChatResult:
        """Race the call; a winner that breaks after its first token is replaced by a new race (R3): nobody saw it."""
        if self._judge is not None:
            call = self._judged(call, self._judge)
        driver: Driver[Any] = lane.driver(call, key=self.key, effect=self.effect, prompt_tokens=self.prompt_tokens)
        broken: list[Exception] = []
        while True:
            race = driver.race
            try:
                result = await driver.run()
            except AnswerRejected:
                if self._rejected is None:
                    raise
                return self.stamp_result(self._rejected, race)
            except Exception as error:
                if race.launched:
                    broken.append(error)
                if not self._is_to_be_run_again(driver, error, lane):
                    first = broken[0] if broken else error
                    if error is first or (race.launched and isinstance(error, DeadlineExceeded)):
                        raise
                    raise first from (AllAttemptsFailed(broken) if len(broken) > 1 else first.__cause__)
                driver = lane.driver(
                    call, key=self.key, effect=self.effect, prompt_tokens=self.prompt_tokens, after=race
                )
            else:
                if result is None:
                    raise ValueError("No generation chunks were returned")  # as a plain model says it
                return self.stamp_result(result, race)

    @staticmethod
    def _is_to_be_run_again(driver: Driver[Any], error: Exception, lane: Lane) -> bool:
        """Whether a winner broke, and the step can be run once more without doing anything twice."""
        race = driver.race
        return (
            driver.committed is not None
            and not race.claimed
            and race.launched < race.max_attempts
            and not isinstance(error, DeadlineExceeded)
            and lane.classifier(error) is not Failure.REQUEST
        )

    # --- what the caller is told ------------------------------------------------------------------------------------

    def stamp(self, chunk: ChatGenerationChunk, race: Race) -> None:
        """Put what happened on the first chunk of the winner."""
        message = chunk.message
        message.response_metadata = {**message.response_metadata, METADATA: _summary(race)}

    @staticmethod
    def stamp_result(result: ChatResult, race: Race) -> ChatResult:
        """Put what happened on a whole answer."""
        message = result.generations[0].message
        message.response_metadata = {**message.response_metadata, METADATA: _summary(race)}
        return result


class KeptCall(Call):
    """A call whose messages are kept for spans that show them."""

    __slots__ = ()

    def _meter(self) -> Meter:
        return Keeping(self._messages)


def _summary(race: Race) -> dict[str, Any]:
    attempts = race.attempts
    winner = race.winner or 0  # where every answer was rejected, the primary's is given
    return {
        "target": attempts[winner].target.name,
        "attempts": len(attempts),
        "hedged": race.hedges > 0,
        "trigger_s": attempts[1].started_at - race.started_at if len(attempts) > 1 else None,
        "ttft_s": race.latency_of(winner),
    }
