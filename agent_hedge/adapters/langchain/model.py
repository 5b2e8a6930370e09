"""The hedged chat model: a drop-in for its plain primary (DESIGN 5.1, 5.19).

Members are driven through the protected `_astream`: no callback runs inside, so no token, usage or event of a loser
can leak; there is one run and one message id, as with a plain model. What the public method would have done is done
here: usage is asked for, rate limiters are acquired, the cache identity covers every member.

`invoke` and `ainvoke` are driven as streams too, or no first token could be seen; the answer is what the primary gives
with ``streaming=True``. After the first meaningful chunk there is no switch (R3): for a caller that streams, a failure
then is the call's failure; one that does not stream has been shown nothing and gets the step run again.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Coroutine, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from typing import Any, ClassVar, NoReturn, Self, cast

import anyio
from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun, Callbacks
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.base import LangSmithParams
from langchain_core.load import dumpd
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult, LLMResult
from langchain_core.runnables import Runnable, RunnableBinding

from agent_hedge.adapters.langchain.call import METADATA, Call, KeptCall
from agent_hedge.adapters.langchain.chunks import as_chunk
from agent_hedge.adapters.langchain.judge import Judge
from agent_hedge.adapters.langchain.meaning import is_meaningful
from agent_hedge.adapters.langchain.members import Member
from agent_hedge.core.ports import EffectSource, Portal
from agent_hedge.core.step import StepKey
from agent_hedge.engine.lane import Lane
from agent_hedge.engine.streams import hedged_stream
from agent_hedge.errors import ConfigurationError
from agent_hedge.tools.bound import BoundTool

_CARRIED = ("name", "cache", "verbose", "callbacks", "tags", "metadata", "custom_get_token_ids")
"""What the primary carries, the hedged model carries."""
_WHOLE = frozenset({"n", "audio", "modalities", "tools"})
"""Arguments of a call that may keep it from being streamed."""


_open_runs: ContextVar[list[AsyncCallbackManagerForLLMRun] | None] = ContextVar("agent_hedge_open_runs", default=None)
"""The runs of the call around this code that callbacks were told of, and whose answers are not there."""


class Lanes:
    """The three ways a call can be raced: by its first token, by an accepted answer, by a whole answer."""

    def __init__(self, first_token: Lane, accepted: Lane, whole: Lane) -> None:
        self.first_token = first_token
        self.accepted = accepted
        self.whole = whole


class _Inside:
    """What a hedged model holds, as plain attributes: a look at a private one of pydantic's costs 1.5 us."""

    _members: tuple[Member, ...]
    _by_name: Mapping[str, Member]
    _primary: BaseChatModel
    _server_side: Sequence[BoundTool]
    _effects: EffectSource | None
    _streams: bool
    _lanes: Lanes
    _portal: Portal
    _call: type[Call]
    _judge: Judge | None
    _buffers: bool
    _checks_schema: bool
    _keys: dict[tuple[str, int], StepKey]


class HedgedChatModel(BaseChatModel, _Inside):
    """A chat model over several members; made by `Hedger.chat_model`, used like the first of them."""

    __agent_hedge_model__: ClassVar[bool] = True
    streaming: bool = False

    @classmethod
    def over(
        cls,
        members: Sequence[Member],
        lanes: Lanes,
        portal: Portal,
        *,
        judge: Judge | None = None,
        buffers: bool = False,
        checks_schema: bool = False,
        keeps_content: bool = False,
        effects: EffectSource | None = None,
    ) -> HedgedChatModel:
        """Return the model over these members; what the primary carries (callbacks, tags, cache...) it carries too.

        `judge` says which whole answers are acceptable, `buffers` lets it judge those of streaming callers;
        `checks_schema` judges structured output by its parser. `keeps_content`: for spans that show it.
        `effects` is asked what tools do that a provider runs.
        """
        primary = members[0].model
        settings = {name: getattr(primary, name) for name in _CARRIED if getattr(primary, name, None) is not None}
        settings |= {"disable_streaming": primary.disable_streaming, "output_version": primary.output_version}
        settings["profile"] = primary.profile
        if "streaming" in primary.model_fields_set:
            settings["streaming"] = primary.streaming  # type: ignore[attr-defined]
        model = cls(**settings)
        model._lanes = lanes
        model._portal = portal
        model._call = KeptCall if keeps_content else Call
        model._judge = judge
        model._buffers = buffers
        model._checks_schema = checks_schema
        model._effects = effects
        model._take(members)
        return model

    def _take(self, members: Sequence[Member]) -> None:
        self._members = tuple(members)
        self._by_name = {member.name: member for member in members}
        self._primary = members[0].model
        self._server_side = [tool for member in members for tool in member.server_side]
        self._streams = self._can_stream(members[0].bound)
        self._keys = {}
        for name in ("_serialized", "_plain_ls_params", "_plain_params"):
            self.__dict__.pop(name, None)

    # --- calls ----------------------------------------------------------------------------------------------------

    def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        if self._judge is not None and not self._buffers:
            raise ConfigurationError(
                "accept= judges whole answers, and this caller streams: say accept_on='final' to buffer them."
            )
        if self._judge is not None or not self._streams_now(kwargs):
            return self._abuffer(messages, stop, **kwargs)
        call = self._call(self, messages, stop, kwargs)
        return hedged_stream(
            self._lanes.first_token,
            call.stream,
            is_meaningful,
            call.key,
            effect=call.effect,
            prompt_tokens=call.prompt_tokens,
            told=call.stamp,
        )

    async def _abuffer(
        self, messages: list[BaseMessage], stop: list[str] | None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        yield as_chunk(await self._agenerate(messages, stop, **kwargs))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        call = self._call(self, messages, stop, kwargs)
        if not self._streams_now(kwargs):
            return await call.run(self._lanes.whole, call.generate)
        return await call.run(self._lanes.first_token if self._judge is None else self._lanes.accepted, call.collect)

    async def agenerate(
        self,
        messages: list[list[BaseMessage]],
        stop: list[str] | None = None,
        callbacks: Callbacks = None,
        **kwargs: Any,
    ) -> LLMResult:
        """As a plain model, but a cancelled call ends its runs for callbacks: LangChain leaves them open (facts 2i)."""
        open_runs: list[AsyncCallbackManagerForLLMRun] = []
        token = _open_runs.set(open_runs)
        try:
            return await super().agenerate(messages, stop, callbacks, **kwargs)
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                with anyio.CancelScope(shield=True):
                    for run in open_runs:
                        await run.on_llm_error(error, response=LLMResult(generations=[]))
            raise
        finally:
            _open_runs.reset(token)

    def _agenerate_with_cache(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> Coroutine[Any, Any, ChatResult]:
        """Note the run as open at once: a task of it that is cancelled before its first step runs no line of it."""
        if run_manager is not None and (open_runs := _open_runs.get()) is not None:
            open_runs.append(run_manager)
        return self._ended(messages, stop, run_manager, kwargs)

    async def _ended(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None,
        run_manager: AsyncCallbackManagerForLLMRun | None,
        kwargs: dict[str, Any],
    ) -> ChatResult:
        result = await super()._agenerate_with_cache(messages, stop=stop, run_manager=run_manager, **kwargs)
        if run_manager is not None and (open_runs := _open_runs.get()) is not None:
            open_runs.remove(run_manager)  # who made the call says its end
        return result

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

    def _should_stream(self, *, async_api: bool, run_manager: Any = None, **kwargs: Any) -> bool:
        """As a plain model's, with a short cut for the plainest call: both ways to stream are there."""
        if kwargs.get("stream") and not self.disable_streaming and "streaming" not in self.model_fields_set:
            return True
        return super()._should_stream(async_api=async_api, run_manager=run_manager, **kwargs)

    def _streams_now(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether the first tokens of this call can be seen."""
        return self._streams if _WHOLE.isdisjoint(kwargs) else self._can_stream({**self._members[0].bound, **kwargs})

    def _can_stream(self, kwargs: Mapping[str, Any]) -> bool:
        """Whether first tokens can be seen: native streams, one answer a call, nothing but text and tool calls."""
        several = kwargs.get("n", getattr(self._primary, "n", None))
        modalities = kwargs.get("modalities") or getattr(self._primary, "modalities", None) or ()
        one = (several or 1) == 1 and "audio" not in kwargs and "audio" not in modalities
        return one and all(member.streams(kwargs) for member in self._members)

    # --- tools and structured output --------------------------------------------------------------------------------

    def __agent_hedge_calls__(self) -> list[Mapping[str, Any]]:
        """Return what each member is always called with, for `explain`, which knows hedged models by this name."""
        return [{**member.wire, **member.always} for member in self._members]

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        """Bind the tools to each member in its own wire format, from the raw tools."""
        return self.bound_as([_tools_of(member, tools, kwargs) for member in self._members])

    def bound_as(self, kwargs: Sequence[dict[str, Any]], judge: Judge | None = None) -> RunnableBinding[Any, AIMessage]:
        """Return a binding of this model that gives each member its own arguments; it shows the primary's."""
        model = self.model_copy()
        model._take([member.with_wire(own) for member, own in zip(self._members, kwargs, strict=True)])
        model._judge = judge or model._judge
        return model.bind(**kwargs[0])

    def with_structured_output(self, schema: Any, *, include_raw: bool = False, **kwargs: Any) -> Runnable[Any, Any]:
        """Bind the schema to each member in its own way; the winner's answer is parsed by the winner's parser."""
        from agent_hedge.adapters.langchain.structured import structured

        return structured(self, schema, include_raw=include_raw, **kwargs)

    # --- identity: as the primary ---------------------------------------------------------------------------------

    @property
    def _llm_type(self) -> str:
        return self._primary._llm_type

    @property
    def _identifying_params(self) -> Mapping[str, Any]:
        return self._primary._identifying_params

    @cached_property
    def _serialized(self) -> dict[str, Any]:
        return cast("dict[str, Any]", dumpd(self._primary))  # its own cached property would be written into it

    def _of_primary(self, stop: list[str] | None, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return what such a call gives the primary."""
        return {"stop": self._members[0].stop(stop), **self._members[0].given, **kwargs}

    def _get_ls_params(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        return self._primary._get_ls_params(**self._of_primary(stop, kwargs))

    def _get_ls_params_with_defaults(self, stop: list[str] | None = None, **kwargs: Any) -> LangSmithParams:
        if stop or kwargs:
            return self._primary._get_ls_params_with_defaults(**self._of_primary(stop, kwargs))
        return self._plain_ls_params.copy()

    def _get_invocation_params(self, stop: list[str] | None = None, **kwargs: Any) -> dict[str, Any]:
        if stop or kwargs:
            return self._primary._get_invocation_params(**self._of_primary(stop, kwargs))
        return {**self._plain_params, "stop": self._members[0].stop(stop)}

    @cached_property
    def _plain_ls_params(self) -> LangSmithParams:
        """Of a call without arguments; every call asks. (Attempts drive copies, so they cannot change.)"""
        return self._primary._get_ls_params_with_defaults(**self._members[0].bound)

    @cached_property
    def _plain_params(self) -> dict[str, Any]:
        return self._primary._get_invocation_params(**self._members[0].bound)

    def _combine_llm_outputs(self, llm_outputs: list[dict[str, Any] | None]) -> dict[str, Any]:
        return self._primary._combine_llm_outputs(llm_outputs)

    def _get_llm_string(self, stop: list[str] | None = None, **kwargs: Any) -> str:
        """The cache identity covers every member: any of them may have given the cached answer."""
        return "|".join(
            member.model._get_llm_string(stop=member.stop(stop), **member.arguments(self._members[0], kwargs))
            for member in self._members
        )

    def _convert_cached_generations(self, cache_val: list[Any]) -> list[ChatGeneration]:
        """An answer from the cache took no attempt, and says so; whose it was decides how it is parsed."""
        generations = super()._convert_cached_generations(cache_val)
        for generation in generations:
            said = generation.message.response_metadata
            if METADATA in said:
                now = {**said[METADATA], "attempts": 0, "hedged": False, "trigger_s": None, "ttft_s": None}
                generation.message = generation.message.model_copy(
                    update={"response_metadata": {**said, METADATA: now}}
                )
        return generations

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
                if "_primary" in self.__dict__:
                    raise
                raise AttributeError(f"{name}: a HedgedChatModel is made by Hedger.chat_model()") from None
            return getattr(self._primary, name)

    # --- copies -----------------------------------------------------------------------------------------------------

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy on the same hedger; settings that are the members' are updated in every member that has them.

        Raises `ConfigurationError` for a setting that no member has, and for `rate_limiter`, which is each member's.
        """
        update = update or {}
        own = {name: value for name, value in update.items() if name in type(self).model_fields}
        for name in update:
            if name == "rate_limiter" or not (name in own or any(_has(member, name) for member in self._members)):
                raise ConfigurationError(f"model_copy() cannot update {name!r} of a hedged model")
        model = super().model_copy(update=own, deep=deep)
        if update:
            model._take([_updated(member, update) for member in model._members])
        return model

    def __deepcopy__(self, memo: dict[int, Any] | None = None) -> Self:
        """Members are copied as far as they can be; the hedger, and what it has learnt, is shared."""
        model = self.__copy__()
        model._take(copy.deepcopy(self._members, memo if memo is not None else {}))
        return model

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise TypeError(
            "a hedged chat model cannot be pickled: it lives on its hedger's loops. Pickle its members, and call "
            "Hedger.chat_model() where they arrive."
        )


def _tools_of(member: Member, tools: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what a member's own `bind_tools` would have its calls given."""
    bound: Any = member.model.bind_tools(tools, **kwargs)
    if isinstance(bound, RunnableBinding):
        return dict(bound.kwargs)
    if bound is member.model:  # it takes no notice of tools, as many fakes do
        return {}
    raise ConfigurationError(
        f"member {member.name!r} ({type(member.model).__name__}) binds tools in a way that cannot be hedged: "
        f"its bind_tools() does not return a binding, but {type(bound).__name__}"
    )


def _has(member: Member, name: str) -> bool:
    return name in type(member.model).model_fields


def _updated(member: Member, update: Mapping[str, Any]) -> Member:
    theirs = {name: value for name, value in update.items() if _has(member, name)}
    return member.with_model(member.model.model_copy(update=theirs)) if theirs else member
