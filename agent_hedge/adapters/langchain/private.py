"""The private copies that attempts drive. A copy differs from the user's object in three things, and that in none:

- the SDK's own retries are off (our recoveries replace them; assigning `max_retries` does not reach built clients, so
  the model is built again),
- it has an HTTP client of its own (clients are cached per process by the packages, and one bound to two loops fails
  with "Event loop is closed"); a client that the user passed is kept,
- deltas that the package drops (reasoning of compatible servers, the answer's id) are looked at as they pass.
"""

from __future__ import annotations

import asyncio
import warnings
from typing import Any, Self

from langchain_core.language_models import BaseChatModel

from agent_hedge.adapters.langchain.meaning import choice_is_meaningful, event_is_meaningful
from agent_hedge.adapters.langchain.phases import HOOKS
from agent_hedge.adapters.langchain.usage import Meter
from agent_hedge.core.scope import current_attempt
from agent_hedge.errors import ConfigurationError

_BUILT_CLIENTS = frozenset({"client", "async_client", "root_client", "root_async_client"})


class PrivateCopies:
    """The copies of one model, one per run loop (a client bound to two loops fails)."""

    __slots__ = ("__weakref__", "_by_loop", "_model", "_spare")

    def __init__(self, model: BaseChatModel) -> None:
        self._model = model
        self._by_loop: dict[asyncio.AbstractEventLoop, BaseChatModel] = {}
        self._spare: BaseChatModel | None = None

    def check(self) -> None:
        """Make the first copy now, so that a model that cannot be built again is an error at construction."""
        self._spare = self._spare or private_copy(self._model)

    def here(self) -> BaseChatModel:
        """Return the copy that belongs to the running loop."""
        loop = asyncio.get_running_loop()
        return self._by_loop.get(loop) or self._meet(loop)

    def _meet(self, loop: asyncio.AbstractEventLoop) -> BaseChatModel:
        for closed in [known for known in list(self._by_loop) if known.is_closed()]:
            self._by_loop.pop(closed, None)
        spare, self._spare = self._spare, None
        own = self._by_loop[loop] = spare or private_copy(self._model)
        return own

    async def close_here(self) -> None:
        """Close the connections of the running loop's copy. It is made anew where it is needed again."""
        own: Any = self._by_loop.pop(asyncio.get_running_loop(), None)
        if is_of(own, "langchain_anthropic"):
            await own._async_client.close()
        elif getattr(own, "root_async_client", None) is not None and not getattr(
            self._model, "http_async_client", None
        ):
            await own.root_async_client.close()


def private_copy(model: BaseChatModel) -> BaseChatModel:
    """Return a copy with the SDK's retries off and a transport of its own.

    Raises `ConfigurationError` where the model cannot be built again from its settings.
    """
    if "max_retries" in type(model).model_fields:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                copy = type(model)(**_settings(model))
        except Exception as error:
            raise ConfigurationError(
                f"member {type(model).__name__} cannot be built again without its SDK's retries: {first_line(error)}"
            ) from error
        if "stream_usage" in type(model).model_fields and "stream_usage" not in model.model_fields_set:
            copy.stream_usage = True  # type: ignore[attr-defined]
        _own_anthropic_transport(copy)
    else:
        copy = model.model_copy()
    _warn_of_http2(copy)
    _watch_deltas(copy)
    _watch_events(copy)
    return copy


def is_of(model: object, *packages: str) -> bool:
    """Return whether the model's class descends from one of these packages."""
    return any(ancestor.__module__.partition(".")[0] in packages for ancestor in type(model).__mro__)


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line; the whole of it is the cause of what is raised."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _settings(model: BaseChatModel) -> dict[str, Any]:
    """Return the arguments that build the model again, with other retries and a client of its own."""
    fields = type(model).model_fields
    kept = model.model_fields_set | {name for name, field in fields.items() if field.default_factory is not None}
    kept -= {name for name in _BUILT_CLIENTS if not _is_users_own(model, name)}
    if getattr(model, "openai_proxy", None):
        kept -= {"http_client", "http_async_client"}  # the package builds them, and refuses to be given both
    settings = {_alias(fields[name], name): getattr(model, name) for name in kept if name in fields}
    settings[_alias(fields["max_retries"], "max_retries")] = 0
    if "http_async_client" in fields and not getattr(model, "http_async_client", None):
        settings["http_async_client"] = _own_client(model)
    return settings


def _alias(field: Any, name: str) -> str:
    return str(field.alias or name)


def _is_users_own(model: BaseChatModel, name: str) -> bool:
    """Return whether a client was passed in: the package sets the root of a client only where it built it."""
    root = {"client": "root_client", "async_client": "root_async_client"}.get(name)
    return root is not None and getattr(model, name, None) is not None and getattr(model, root, None) is None


def _own_client(model: BaseChatModel) -> Any:
    """Return a fresh HTTP/1.1 client with the SDK's own defaults (closing a stream releases the engine: F2)."""
    if getattr(model, "openai_proxy", None):
        return None  # the package builds one of its own per model
    try:
        import openai
    except ImportError:
        return None
    settings: dict[str, Any] = {"event_hooks": HOOKS}
    if getattr(model, "openai_api_base", None):
        settings["base_url"] = model.openai_api_base  # type: ignore[attr-defined]
    if (timeout := getattr(model, "request_timeout", None)) is not None:
        settings["timeout"] = timeout
    return openai.DefaultAsyncHttpxClient(**settings)


def _own_anthropic_transport(model: BaseChatModel) -> None:
    """ChatAnthropic makes its client at first use and keeps it in the instance, on a transport cached per process."""
    if is_of(model, "langchain_anthropic"):
        import anthropic

        client = model._async_client.copy(http_client=anthropic.DefaultAsyncHttpxClient(event_hooks=HOOKS))  # type: ignore[attr-defined]
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
        attempt = current_attempt()
        if attempt is not None and not attempt.spoken:
            raw = chunk if "choices" in chunk else chunk.get("chunk") or {}
            if isinstance(meter := attempt.usage, Meter):
                meter.hear(raw)  # its id, which the package drops
            choices = raw.get("choices") or ()
            if any(map(choice_is_meaningful, choices)):
                attempt.first_token()
        return convert(chunk, *args, **kwargs)

    object.__setattr__(model, "_convert_chunk_to_generation_chunk", watched)


def _watch_events(model: BaseChatModel) -> None:
    """The same for OpenAI's Responses API, whose events are looked at as the SDK hands them out."""
    responses = getattr(getattr(model, "root_async_client", None), "responses", None)
    if responses is None:
        return
    create = responses.create

    async def watched(*args: Any, **kwargs: Any) -> Any:
        stream = await create(*args, **kwargs)
        return WatchedEvents(stream) if hasattr(stream, "__anext__") else stream

    responses.create = watched


class WatchedEvents:
    """An SDK's event stream that says when the first meaningful event passes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *exc: Any) -> None:
        await self._stream.__aexit__(*exc)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        event = await self._stream.__anext__()
        attempt = current_attempt()
        if attempt is not None and not attempt.spoken and event_is_meaningful(event):
            attempt.first_token()
        return event
