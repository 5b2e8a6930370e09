"""The chat models behind a hedged one: what the user gave, and the private copies that attempts drive.

A private copy differs from the user's object in three things, and the user's object in none:

- the SDK's own retries are off (our recoveries replace them; assigning `max_retries` does not reach built clients, so
  the model is built again),
- it has an HTTP client of its own per run loop (clients are cached per process by the packages, and one bound to two
  loops fails with "Event loop is closed"); a client that the user passed is kept,
- deltas that the package drops (reasoning of compatible servers) are looked at as they pass.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableBinding

from agent_hedge.adapters.langchain.meaning import delta_is_meaningful
from agent_hedge.core.scope import current_attempt
from agent_hedge.errors import ConfigurationError
from agent_hedge.targets import Target

_SDK_PACKAGES = ("langchain_openai", "langchain_anthropic")
"""Packages whose calls take `extra_headers`."""
_TRACING = ("ls_structured_output_format", "structured_output_format")
"""Arguments that the public methods take out before a model sees them."""
_BUILT_CLIENTS = frozenset({"client", "async_client", "root_client", "root_async_client"})


class Member:
    """One target's chat model, with what the user has bound to it.

    `bound` goes into every call. `wire` is this member's form of what the hedged model's own binding passes (tools,
    response formats): where the caller passes the primary's form on, the member gets its own.
    """

    def __init__(
        self,
        target: Target[Any],
        model: BaseChatModel,
        bound: Mapping[str, Any],
        *,
        declared: bool = False,
        wire: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self.target = target
        self.declared = declared
        """Whether the user named the target."""
        self.model = model
        self.bound = bound
        self.wire = wire
        self.streams = type(model)._astream is not BaseChatModel._astream
        """Whether it streams natively: else its first token cannot be seen."""
        self.takes_headers = _is_of(model, *_SDK_PACKAGES)
        self._private: dict[asyncio.AbstractEventLoop, BaseChatModel] = {}

    @property
    def name(self) -> str:
        return self.target.name

    def private(self) -> BaseChatModel:
        """Return the copy that belongs to the running loop."""
        loop = asyncio.get_running_loop()
        copy = self._private.get(loop)
        if copy is None:
            for closed in [known for known in list(self._private) if known.is_closed()]:
                self._private.pop(closed, None)
            copy = self._private[loop] = private_copy(self.model)
        return copy

    def with_wire(self, wire: Mapping[str, Any]) -> Member:
        """Return the same member with other wire arguments; private copies are shared."""
        other = Member(self.target, self.model, self.bound, declared=self.declared, wire=wire)
        other._private = self._private
        return other

    def arguments(self, primary: Member, passed: Mapping[str, Any]) -> dict[str, Any]:
        """Return what one call gives this member, of what the caller passed for the primary."""
        arguments = {**self.bound, **passed}
        if self is not primary:
            for name, value in primary.wire.items():
                if passed.get(name) is value:
                    arguments.pop(name, None)
            for name, value in self.wire.items():
                if name not in arguments and name not in _TRACING:
                    arguments[name] = value
        return arguments


def as_member(given: object, init: Callable[[str], BaseChatModel]) -> Member:
    """Return the member for a model's name, a chat model, a bound chat model, or a `Target` holding one."""
    target: Target[Any] | None = None
    model: Any = given
    if isinstance(given, Target):
        target, model = given, given.member
    if isinstance(model, str):
        model = init(model)
    bound: dict[str, Any] = {}
    while isinstance(model, RunnableBinding):
        if model.config or model.config_factories:
            raise ConfigurationError(
                f"member {_shown(given)} carries a config (callbacks, tags, metadata): put it on the hedged model"
            )
        bound = {**model.kwargs, **bound}
        model = model.bound
    if not isinstance(model, BaseChatModel):
        raise ConfigurationError(f"a member must be a chat model or its name, got {_shown(given)}")
    return Member(target or Target(default_name(model)), model, bound, declared=target is not None)


def default_name(model: BaseChatModel) -> str:
    """Return a name for a target from the model's provider, name and address."""
    params = model._get_ls_params()
    provider = str(params.get("ls_provider") or type(model).__name__)
    name = str(params.get("ls_model_name") or "")
    base = getattr(model, "openai_api_base", None) or getattr(model, "azure_endpoint", None)
    host = ""
    if isinstance(base, str) and "://" in base:
        host = base.split("://", 1)[1].split("/", 1)[0].rpartition("@")[2]
    return ":".join(part for part in (provider, name, host) if part)[:200]


def private_copy(model: BaseChatModel) -> BaseChatModel:
    """Return a copy with the SDK's retries off and a transport of its own (see the module)."""
    fields = type(model).model_fields
    if "max_retries" in fields:
        given = {name: getattr(model, name) for name in model.model_fields_set if name not in _BUILT_CLIENTS}
        settings = {_alias(fields[name], name): value for name, value in given.items() if name in fields}
        settings[_alias(fields["max_retries"], "max_retries")] = 0
        if "http_async_client" in fields and not getattr(model, "http_async_client", None):
            settings["http_async_client"] = _own_client(model)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                copy = type(model)(**settings)
        except Exception as error:
            raise ConfigurationError(
                f"member {type(model).__name__} cannot be built again without its SDK's retries: {error}"
            ) from error
        if "stream_usage" in fields and "stream_usage" not in model.model_fields_set:
            copy.stream_usage = True  # type: ignore[attr-defined]
        _own_anthropic_transport(copy)
    else:
        copy = model.model_copy()
    _warn_of_http2(copy)
    _watch_deltas(copy)
    return copy


def _alias(field: Any, name: str) -> str:
    return str(field.alias or name)


def _own_client(model: BaseChatModel) -> Any:
    """Return a fresh HTTP/1.1 client with the SDK's own defaults (closing a stream releases the engine: F2)."""
    if getattr(model, "openai_proxy", None):
        return None  # the package builds one of its own per model
    try:
        import openai
    except ImportError:
        return None
    settings: dict[str, Any] = {}
    if getattr(model, "openai_api_base", None):
        settings["base_url"] = model.openai_api_base  # type: ignore[attr-defined]
    if (timeout := getattr(model, "request_timeout", None)) is not None:
        settings["timeout"] = timeout
    return openai.DefaultAsyncHttpxClient(**settings)


def _own_anthropic_transport(model: BaseChatModel) -> None:
    """ChatAnthropic makes its client at first use and keeps it in the instance, on a transport cached per process."""
    if _is_of(model, "langchain_anthropic"):
        import anthropic

        client = model._async_client.copy(http_client=anthropic.DefaultAsyncHttpxClient())  # type: ignore[attr-defined]
        model.__dict__["_async_client"] = client


def _warn_of_http2(model: BaseChatModel) -> None:
    client = getattr(model, "http_async_client", None)
    pool = getattr(getattr(client, "_transport", None), "_pool", None)
    if getattr(pool, "_http2", False):
        warnings.warn(
            f"{type(model).__name__} uses HTTP/2, whose clients never reset a cancelled stream: the engine runs on. "
            "Use an HTTP/1.1 client for hedged members.",
            stacklevel=2,
        )


def _watch_deltas(model: BaseChatModel) -> None:
    """Let dropped deltas (``reasoning_content`` and its kin) count as first tokens."""
    convert = getattr(model, "_convert_chunk_to_generation_chunk", None)
    if convert is None:
        return

    def watched(chunk: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        choices = chunk.get("choices") or (chunk.get("chunk") or {}).get("choices") or ()
        speaks = any(delta_is_meaningful(choice.get("delta") or {}) for choice in choices)
        if speaks and (attempt := current_attempt()) is not None:
            attempt.first_token()
        return convert(chunk, *args, **kwargs)

    object.__setattr__(model, "_convert_chunk_to_generation_chunk", watched)


def _is_of(model: object, *packages: str) -> bool:
    return any(ancestor.__module__.partition(".")[0] in packages for ancestor in type(model).__mro__)


def _shown(given: object) -> str:
    if isinstance(given, Target):
        return f"Target {given.name!r} holding {type(given.member).__name__}"
    return repr(given) if isinstance(given, str) else type(given).__name__
