"""The chat models behind a hedged one: what the user gave, and the arguments that each of them is called with."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.runnables import RunnableBinding

from agent_hedge.adapters.langchain.deadline import limited
from agent_hedge.adapters.langchain.private import PrivateCopies, is_of
from agent_hedge.core.ports import Headers
from agent_hedge.core.step import Attempt
from agent_hedge.errors import ConfigurationError
from agent_hedge.targets import Target
from agent_hedge.tools.bound import server_side

_SDK_PACKAGES = ("langchain_openai", "langchain_anthropic")
"""Packages whose calls take `extra_headers`."""
_TRACING = ("ls_structured_output_format", "structured_output_format")
"""Arguments that the public methods take out before a model sees them."""
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Member:
    """One target's chat model, with what the user has bound to it.

    `bound` goes into every call. `wire` is this member's form of what the hedged model's own binding passes (tools,
    response formats): where the caller passes the primary's form on, the member gets its own. Attempts never drive the
    user's object but a private copy of it (`private.py`), one per run loop.
    """

    def __init__(
        self,
        target: Target[Any],
        model: BaseChatModel,
        bound: Mapping[str, Any] = _NOTHING,
        *,
        declared: bool = False,
        wire: Mapping[str, Any] = _NOTHING,
    ) -> None:
        self.target = target
        self.declared = declared
        """Whether the user named the target."""
        self.model = model
        self.bound = bound
        self.given = {name: value for name, value in bound.items() if name != "stop"}
        """What is bound but for `stop`, which is no keyword of a call like the others."""
        self.wire = wire
        self.always: Mapping[str, Any] = {**bound, "mcp_servers": getattr(model, "mcp_servers", None)}
        """What every call of it is given."""
        self.server_side = server_side(self.always)
        """The server-side tools that every call of it has (R9)."""
        self._native = type(model)._astream is not BaseChatModel._astream and model.disable_streaming is not True
        self._streams_tools = model.disable_streaming != "tool_calling"
        self.takes_headers = is_of(model, *_SDK_PACKAGES)
        self.copies = PrivateCopies(model)

    @property
    def name(self) -> str:
        return self.target.name

    def streams(self, passed: Mapping[str, Any] = _NOTHING) -> bool:
        """Return whether it streams such a call natively: else its first token cannot be seen."""
        return self._native and (self._streams_tools or not (passed.get("tools") or self.bound.get("tools")))

    def with_wire(self, wire: Mapping[str, Any]) -> Member:
        """Return the same member with other wire arguments; private copies are shared."""
        other = Member(self.target, self.model, self.bound, declared=self.declared, wire=wire)
        other.copies = self.copies
        return other

    def with_model(self, model: BaseChatModel) -> Member:
        """Return the member with another model in its place."""
        return Member(self.target, model, self.bound, declared=self.declared, wire=self.wire)

    def __deepcopy__(self, memo: dict[int, Any]) -> Member:
        model, bound, wire = copy.deepcopy((self.model, dict(self.bound), dict(self.wire)), memo)
        return Member(self.target, model, bound, declared=self.declared, wire=wire)

    def stop(self, passed: list[str] | None) -> list[str] | None:
        """Return where an answer stops: where the caller says so, else where the binding does."""
        return self.bound.get("stop") if passed is None else passed

    def arguments(self, primary: Member, passed: Mapping[str, Any]) -> dict[str, Any]:
        """Return what one call gives this member, of what the caller passed for the primary."""
        arguments = {**self.given, **passed} if self.given else dict(passed)
        if self is not primary and (self.wire or primary.wire):
            for name, value in primary.wire.items():
                if passed.get(name) is value:
                    arguments.pop(name, None)
            for name, value in self.wire.items():
                if name not in arguments and name not in _TRACING:
                    arguments[name] = value
        return arguments

    def dispatched(
        self,
        primary: Member,
        passed: Mapping[str, Any],
        attempt: Attempt,
        headers: Headers | None = None,
        left: float = math.inf,
    ) -> dict[str, Any]:
        """Return the `arguments` of one attempt, with a request id of its own where the package takes headers (R8).

        `headers`: more of the attempt's own (``traceparent``). `left`: seconds to its deadline, which its time-outs
        do not pass.
        """
        arguments = self.arguments(primary, passed)
        if self.takes_headers:
            own = {**(headers(attempt) if headers is not None else {}), "X-Request-Id": attempt.id}
            arguments["extra_headers"] = {**(arguments.get("extra_headers") or {}), **own}
            if (timeout := limited(self.copies.here(), arguments.get("timeout"), left)) is not None:
                arguments["timeout"] = timeout
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
    if getattr(type(model), "__agent_hedge_model__", False):
        raise ConfigurationError(f"member {_shown(given)} is hedged already: give the models it is made of")
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


def _shown(given: object) -> str:
    if isinstance(given, Target):
        return f"Target {given.name!r} holding {type(given.member).__name__}"
    return repr(given) if isinstance(given, str) else type(given).__name__
