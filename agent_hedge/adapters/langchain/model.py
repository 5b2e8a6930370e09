"""The hedged chat model: a drop-in for its plain primary (DESIGN 5.1, 5.19).

Members are driven through the protected `_astream`: no callback runs inside, so no token, usage or event of a loser
can leak; there is one run and one message id, as with a plain model. What the public method would have done is done
here: usage is asked for, rate limiters are acquired, the cache identity covers every member.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, cast

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.base import LangSmithParams
from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable, RunnableBinding
from pydantic import PrivateAttr

from agent_hedge.adapters.langchain.meaning import is_meaningful
from agent_hedge.adapters.langchain.members import Member
from agent_hedge.adapters.langchain.server_tools import effect_of_call
from agent_hedge.core.classify import classify
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, Portal, RaceView, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import ActiveAttempt
from agent_hedge.core.step import Attempt, Failure, Role, StepKey
from agent_hedge.engine.driver import Driver, accept_all
from agent_hedge.engine.lane import Lane
from agent_hedge.engine.streams import EMPTY, hedged_stream, iterate
from agent_hedge.errors import AllAttemptsFailed, ConfigurationError, NotDispatched
from agent_hedge.latency import size_bucket

if TYPE_CHECKING:
    from agent_hedge.core.race import Race

CHARACTERS_PER_TOKEN = 4
"""A cheap estimate for prompt-size buckets; they are powers of two, so a factor near 1 does not matter."""


class Lanes:
    """The three ways a call can be raced: by its first token, by an accepted answer, by a whole answer."""

    def __init__(self, first_token: Lane, accepted: Lane, whole: Lane) -> None:
        self.first_token = first_token
        self.accepted = accepted
        self.whole = whole


class HedgedChatModel(BaseChatModel):
    """A chat model over several members; made by `Hedger.chat_model`, used like the first of them."""

    __agent_hedge_model__: ClassVar[bool] = True
    streaming: bool = False

    _members: tuple[Member, ...] = PrivateAttr()
    _lanes: Lanes = PrivateAttr()
    _portal: Portal = PrivateAttr()
    _accept: Callable[[AIMessage], bool] | None = PrivateAttr(default=None)
    _buffers: bool = PrivateAttr(default=False)

    @classmethod
    def over(
        cls,
        members: Sequence[Member],
        lanes: Lanes,
        portal: Portal,
        *,
        accept: Callable[[AIMessage], bool] | None = None,
        buffers: bool = False,
    ) -> HedgedChatModel:
        """Return the model over these members; what the primary carries (callbacks, tags, cache...) it carries too."""
        primary = members[0].model
        kept = ("name", "cache", "verbose", "callbacks", "tags", "metadata", "custom_get_token_ids")
        settings = {name: getattr(primary, name) for name in kept if getattr(primary, name, None) is not None}
        settings |= {"disable_streaming": primary.disable_streaming, "output_version": primary.output_version}
        settings["profile"] = primary.profile
        if "streaming" in primary.model_fields_set:
            settings["streaming"] = primary.streaming  # type: ignore[attr-defined]
        model = cls(**settings)
        model._members = tuple(members)
        model._lanes = lanes
        model._portal = portal
        model._accept = accept
        model._buffers = buffers
        return model

    # --- calls ----------------------------------------------------------------------------------------------------

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        if self._accept is not None or not self._can_stream(kwargs):
            if self._accept is not None and not self._buffers:
                raise ConfigurationError(
                    "accept= judges whole answers, and this caller streams: say accept_on='final' to buffer them."
                )
            result = await self._agenerate(messages, stop, **kwargs)
            yield _as_chunk(result)
            return
        call = Call(self, messages, stop, kwargs)
        stream = hedged_stream(
            self._lanes.first_token, call.stream, is_meaningful, call.key, effect=call.effect, started=call.started
        )
        try:
            async for chunk in stream:
                yield call.stamp(chunk)
        finally:
            await cast("Any", stream).aclose()

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = Call(self, messages, stop, kwargs)
        if not self._can_stream(kwargs):
            return await call.run(self._lanes.whole, call.generate)
        if self._accept is not None:
            return await call.run(self._lanes.accepted, call.collect)
        return await call.run(self._lanes.first_token, call.collect)

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        return self._portal.call(lambda: self._agenerate(messages, stop, **kwargs))

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Iterator[ChatGenerationChunk]:
        return self._portal.iterate(lambda: self._astream(messages, stop, **kwargs))

    def _can_stream(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether first tokens can be seen: native streams, one answer a call, nothing but text and tool calls."""
        primary = self._primary
        several = kwargs.get("n", getattr(primary, "n", None))
        audio = "audio" in kwargs or "audio" in (kwargs.get("modalities") or getattr(primary, "modalities", None) or ())
        return all(member.streams for member in self._members) and (several or 1) == 1 and not audio

    # --- tools and structured output --------------------------------------------------------------------------------

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Bind the tools to each member in its own wire format, from the raw tools."""
        bound = [
            cast("RunnableBinding[Any, Any]", member.model.bind_tools(tools, **kwargs)) for member in self._members
        ]
        return self.bound_as([dict(binding.kwargs) for binding in bound])

    def bound_as(self, kwargs: Sequence[dict[str, Any]]) -> RunnableBinding[Any, AIMessage]:
        """Return a binding of this model that gives each member its own arguments; it shows the primary's."""
        model = self.model_copy()
        model._members = tuple(member.with_wire(own) for member, own in zip(self._members, kwargs, strict=True))
        return model.bind(**kwargs[0])

    def with_structured_output(self, schema: Any, *, include_raw: bool = False, **kwargs: Any) -> Runnable[Any, Any]:
        """Bind the schema to each member in its own way; the winner's answer is parsed by the winner's parser."""
        from agent_hedge.adapters.langchain.structured import structured

        return structured(self, self._members, schema, include_raw=include_raw, **kwargs)

    # --- identity: as the primary ---------------------------------------------------------------------------------

    @property
    def _primary(self) -> BaseChatModel:
        return self._members[0].model

    @property
    def _llm_type(self) -> str:
        return self._primary._llm_type

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return self._primary._identifying_params

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return self._primary._get_ls_params(stop=stop, **kwargs)

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """The cache identity covers every member: any of them may have given the cached answer."""
        return "|".join(
            member.model._get_llm_string(stop=stop, **member.arguments(self._members[0], kwargs))
            for member in self._members
        )

    @classmethod
    def is_lc_serializable(cls) -> bool:
        return False

    def get_num_tokens(self, text: str) -> int:
        return self._primary.get_num_tokens(text)

    def get_token_ids(self, text: str) -> list[int]:
        return self._primary.get_token_ids(text)

    def get_num_tokens_from_messages(self, messages: list[BaseMessage], tools: Sequence[Any] | None = None) -> int:
        return self._primary.get_num_tokens_from_messages(messages, tools)

    def __getattr__(self, name: str) -> Any:
        """What this class does not have is the primary's: `model_name`, `temperature`..."""
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            if name.startswith("_"):
                raise
            return getattr(self._primary, name)


class Call:
    """One logical call of a hedged model: what each attempt is given, and what the caller is told of it."""

    def __init__(
        self, model: HedgedChatModel, messages: list[BaseMessage], stop: list[str] | None, kwargs: dict[str, Any]
    ) -> None:
        self._members = {member.name: member for member in model._members}
        self._primary = model._members[0]
        self._accept = model._accept
        self._messages = messages
        self._stop = stop
        self._kwargs = kwargs
        self._race: Race | None = None
        self._stamped = False
        self.effect = effect_of_call(kwargs.get("tools"))
        self.key = self._key(model._lanes.first_token)

    def _key(self, lane: Lane) -> StepKey:
        characters = sum(len(message.content) for message in self._messages if isinstance(message.content, str))
        context = lane.context_of()
        node = context.node if context is not None and context.node else lane.key.node
        return StepKey(node=node, model=lane.key.model, size=size_bucket(characters // CHARACTERS_PER_TOKEN))

    # --- what one attempt does --------------------------------------------------------------------------------------

    async def stream(self, active: ActiveAttempt) -> AsyncIterator[ChatGenerationChunk]:
        """The member's stream, in the attempt's own task."""
        member = self._members[active.target.name]
        await _acquire(member, active)
        model = member.private()
        stream = model._astream(list(self._messages), stop=self._stop, **self._arguments(member, active))
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
        result = generate_from_stream(iter(chunks))
        return result if spoken else EMPTY._replace(value=result)

    async def generate(self, active: ActiveAttempt) -> ChatResult:
        """The whole answer at once, where no first token can be seen."""
        member = self._members[active.target.name]
        await _acquire(member, active)
        arguments = self._arguments(member, active)
        arguments.pop("stream", None)
        return await member.private()._agenerate(list(self._messages), stop=self._stop, **arguments)

    def _arguments(self, member: Member, active: ActiveAttempt) -> dict[str, Any]:
        arguments = member.arguments(self._primary, self._kwargs)
        if member.takes_headers:
            arguments["extra_headers"] = {**(arguments.get("extra_headers") or {}), "X-Request-Id": active.id}
        return arguments

    # --- the caller's side ------------------------------------------------------------------------------------------

    async def run(self, lane: Lane, call: Callable[[ActiveAttempt], Any]) -> ChatResult:
        """Race the call; a winner that breaks after its first token is replaced by a new race (R3): nobody saw it."""
        driver = self._driver(lane, call, None)
        broken: list[Exception] = []
        while True:
            self._race = driver.race
            try:
                result = await driver.run()
            except Exception as error:
                if not isinstance(error, NotDispatched) or not broken:
                    broken.append(error)
                again = self._again(driver, error)
                if again is None:
                    if len(broken) > 1:
                        raise broken[0] from AllAttemptsFailed(broken)
                    raise broken[0] from broken[0].__cause__
                driver = self._driver(lane, call, again)
            else:
                if result is None:
                    raise ValueError("No generation chunks were returned")  # as a plain model says it
                return self.stamp_result(result)

    def _driver(self, lane: Lane, call: Any, after: Race | None) -> Driver[Any]:
        accept = accept_all if self._accept is None else self._accepts
        return lane.driver(call, accept, self.key, effect=self.effect, after=after)

    @staticmethod
    def _again(driver: Driver[Any], error: Exception) -> Race | None:
        race = driver.race
        broke = driver.committed is not None and not race.claimed and race.launched < race.max_attempts
        return race if broke and classify(error) is not Failure.REQUEST else None

    def _accepts(self, result: ChatResult) -> bool:
        assert self._accept is not None
        return bool(self._accept(cast("AIMessage", result.generations[0].message)))

    def started(self, race: Race) -> None:
        self._race = race

    def stamp(self, chunk: ChatGenerationChunk) -> ChatGenerationChunk:
        """Put what happened on the first chunk of the winner."""
        if not self._stamped:
            self._stamped = True
            chunk.message.response_metadata = {**chunk.message.response_metadata, "agent_hedge": self._summary()}
        return chunk

    def stamp_result(self, result: ChatResult) -> ChatResult:
        message = result.generations[0].message
        message.response_metadata = {**message.response_metadata, "agent_hedge": self._summary()}
        return result

    def _summary(self) -> dict[str, Any]:
        race = self._race
        if race is None or race.winner is None:
            return {}
        winner = race.attempts[race.winner]
        return {
            "target": winner.target.name,
            "attempts": race.launched,
            "hedged": race.hedges > 0,
            "trigger_s": race.attempts[1].started_at - race.started_at if race.launched > 1 else None,
            "ttft_s": race.latency_of(race.winner),
        }


class RateLimitGate:
    """A hedge that would have to wait for its member's rate limiter is refused; others wait in their attempt."""

    def __init__(self, members: Sequence[Member]) -> None:
        self._limiters = {m.name: m.model.rate_limiter for m in members if m.model.rate_limiter is not None}

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        limiter = self._limiters.get(attempt.target.name) if attempt.role is Role.HEDGE else None
        return PASS if limiter is None or limiter.acquire(blocking=False) else Refused(Reason.RATE_LIMITED)


async def _acquire(member: Member, active: ActiveAttempt) -> None:
    limiter = member.model.rate_limiter
    if limiter is not None and active.role is not Role.HEDGE:  # a hedge has taken its turn at the gate
        await limiter.aacquire(blocking=True)


def _as_chunk(result: ChatResult) -> ChatGenerationChunk:
    """Return a whole answer as the only chunk of a stream."""
    generation = result.generations[0]
    message = cast("AIMessage", generation.message)
    calls = [
        tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index)
        for index, call in enumerate(message.tool_calls)
    ]
    chunk = AIMessageChunk(
        content=message.content,
        additional_kwargs=message.additional_kwargs,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
        id=message.id,
        tool_call_chunks=calls,
        chunk_position="last",
    )
    return ChatGenerationChunk(message=chunk, generation_info=generation.generation_info)
