"""Guarded tools: copies of LangChain tools whose own body asks the fence and the ledger first.

The body is what is wrapped, not the call around it: it lies below ToolNode's error conversion and below every
middleware, so that nothing above can turn a payment in doubt into "please try again". Name, schema, description and
injected arguments stay those of the tool.
"""

from __future__ import annotations

import functools
import inspect
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal, ParamSpec, TypeVar, cast

from langchain_core.messages import ToolMessage
from langchain_core.tools import BaseTool
from langchain_core.tools import tool as as_tool
from langgraph.prebuilt import ToolNode
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.types import Command, interrupt

from agent_hedge.adapters.langgraph import site as sites
from agent_hedge.adapters.langgraph.control import as_control_flow
from agent_hedge.adapters.langgraph.face import is_async, is_async_generator
from agent_hedge.adapters.langgraph.guarded_copy import call_id, guarded_copy, is_guarded
from agent_hedge.core.checks import NAME_LIMIT, check_text
from agent_hedge.core.step import Effect
from agent_hedge.errors import ConfigurationError, EffectInDoubt
from agent_hedge.tools.answers import ANSWERS, Answer
from agent_hedge.tools.calls import Call, Replay
from agent_hedge.tools.effect import EffectSpec, bound, check_parameters, effect_spec
from agent_hedge.tools.fence import in_a_tool, pass_fence
from agent_hedge.tools.guarded import Guarded
from agent_hedge.tools.known import Entries, Known, known
from agent_hedge.tools.site import Site

P = ParamSpec("P")
R = TypeVar("R")
OnInDoubt = Literal["raise", "interrupt"]

_COUNTED = 4_096
"""Node executions whose unnamed calls are numbered at the same time."""

_inside: ContextVar[frozenset[str]] = ContextVar("agent_hedge_inside", default=frozenset())


class Guard:
    """Makes guarded tools and functions. `entries` is the registry, or None: what tools say themselves counts.

    `declare` hears of every tool before its first guarded copy is used.
    """

    def __init__(
        self,
        guarded: Guarded,
        *,
        entries: Entries | None = None,
        declare: Callable[[BaseTool], object] = lambda _: None,
        on_in_doubt: OnInDoubt = "raise",
    ) -> None:
        if on_in_doubt not in ("raise", "interrupt"):
            raise ConfigurationError("on_in_doubt is 'raise' or 'interrupt'")
        self._guarded = guarded
        self._entries = entries
        self._declare = declare
        self._on_in_doubt = on_in_doubt
        self._copies: dict[int, tuple[weakref.ref[BaseTool], BaseTool]] = {}  # tools have no hash
        self._titles: dict[str, object] = {}
        self._ordinals: OrderedDict[object, int] = OrderedDict()
        self._lock = threading.Lock()
        self._warned = False

    # --- tools ----------------------------------------------------------------------------------------------------

    def tools(self, tools: Iterable[BaseTool | Callable[..., Any]]) -> list[BaseTool]:
        """Return guarded copies; a plain function becomes a tool, as in `ToolNode`."""
        return [self.tool(one if isinstance(one, BaseTool) else as_tool(one)) for one in _checked(tools)]

    def tool(self, tool: BaseTool) -> BaseTool:
        """Return the guarded copy of a tool (a guarded tool itself)."""
        if is_guarded(tool):
            return tool
        known_as = id(tool)
        reference, copy = self._copies.get(known_as, (None, None))
        if copy is None or reference is None or reference() is not tool:
            copy = self._copy(tool)
            forget = functools.partial(self._copies.pop, known_as, None)
            self._copies[known_as] = weakref.ref(tool, lambda _: forget()), copy
        return copy

    def _copy(self, tool: BaseTool) -> BaseTool:
        self._declare(tool)
        original, name = weakref.ref(tool), tool.name

        def what() -> Known:
            return known(original() or copy, name, self._entries)

        def place() -> Site:
            asked_by = call_id.get()
            if asked_by or not sites.in_a_node():
                return sites.here(asked_by)
            return self._numbered(name)  # called by the node's own code, not by a model

        def run(*call: Any) -> Any:
            return self._run(what(), place, *call)

        def arun(*call: Any) -> Awaitable[Any]:
            return self._arun(what(), place, *call)

        copy = guarded_copy(tool, run, arun)
        return copy

    def call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """For ToolNode's and a middleware's `wrap_tool_call`: put the guarded tool into the request.

        An unknown tool goes on untouched, to the error that ToolNode has for it. What comes back is not judged.
        """
        return handler(self._guarded_request(request))

    async def acall(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """For `awrap_tool_call`; see `call`."""
        return await handler(self._guarded_request(request))

    def _guarded_request(self, request: ToolCallRequest) -> ToolCallRequest:
        return request.override(tool=self.tool(request.tool)) if isinstance(request.tool, BaseTool) else request

    def tool_node(self, tools: Sequence[BaseTool | Callable[..., Any]], **settings: Any) -> ToolNode:
        """Return `ToolNode` over guarded tools; `settings` are its own."""
        return ToolNode(self.tools(tools), **settings)

    # --- functions ------------------------------------------------------------------------------------------------

    def once(
        self,
        fn: Callable[P, R],
        *,
        key: str | Callable[..., object] | None = None,
        scope: str | None = None,
        name: str | None = None,
    ) -> Callable[P, R]:
        """Return `fn`, run at most once per key: that of its arguments, else that of the node around the call."""
        if not callable(fn):
            raise ConfigurationError(f"once() runs a function, not a {type(fn).__name__}")
        if is_async_generator(fn) or inspect.isgeneratorfunction(fn):
            raise ConfigurationError("once() runs a function to its end, and a generator is run by who iterates it")
        own = effect_spec(fn) or EffectSpec(effect=Effect.ONCE)
        spec = own if key is None else replace(own, key=key, scope=scope or own.scope)
        if key is None and scope is not None:
            raise ConfigurationError("scope= says within what key= names the effect: give both")
        if inspect.isfunction(fn) or inspect.ismethod(fn):
            check_parameters(fn, spec)
        if name is not None:
            check_text(name, "name", NAME_LIMIT, empty=False)
        title = name or self._title(fn)
        what = Known(title, spec, True)

        def place() -> Site:
            if spec.key is not None:
                return sites.here()
            if not sites.in_a_node():
                raise ConfigurationError(f"once({title}) needs key=, or a node or task of LangGraph around the call")
            return self._numbered(what.name)

        face: Any
        if is_async(fn):

            @functools.wraps(fn)
            async def face(*args: Any, **kwargs: Any) -> Any:
                return _plain(await self._arun(what, place, bound(fn, args, kwargs), begun, args, kwargs))

            begun = cast("Callable[..., Awaitable[Any]]", fn)

        else:

            @functools.wraps(fn)
            def face(*args: Any, **kwargs: Any) -> Any:
                return _plain(self._run(what, place, bound(fn, args, kwargs), ended, args, kwargs))

            def ended(*args: Any, **kwargs: Any) -> Any:
                value: object = fn(*args, **kwargs)
                if inspect.iscoroutine(value):
                    value.close()
                    raise ConfigurationError(f"{title} returns a coroutine: once() needs it to be an async function")
                return value

        return cast("Callable[P, R]", face)

    def _title(self, fn: Callable[..., Any]) -> str:
        """Return the name that effect keys are made with: that of the function, without its module (`__main__` in one
        process may be a module in another)."""
        title = str(getattr(fn, "__qualname__", type(fn).__qualname__)).replace(".<locals>", "")
        code = getattr(inspect.unwrap(fn), "__code__", None)
        if self._titles.setdefault(title, code) != code:
            warnings.warn(
                f"two functions named {title} run once: a call of one counts as a call of the other with the same key. "
                "Give each a name=.",
                stacklevel=4,
            )
        return title

    def _numbered(self, name: str) -> Site:
        """Return the site of the next unnamed call of a function in this execution of the node."""
        found = sites.here()
        where = name, found.frames
        with self._lock:
            number = self._ordinals.get(where, 0)
            self._ordinals[where] = number + 1
            self._ordinals.move_to_end(where)
            while len(self._ordinals) > _COUNTED:
                self._ordinals.popitem(last=False)
        return replace(found, call_id=f"{sites.MARK}{sites.root_checkpoint()}/{number}", place_key=str(number))

    # --- one call -------------------------------------------------------------------------------------------------

    def _run(
        self,
        what: Known,
        place: Callable[[], Site],
        arguments: Mapping[str, Any],
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        with as_control_flow(), in_a_tool():
            call = self._admitted(what, place, arguments)
            if call is None:
                return fn(*args, **kwargs)

            def body(key: str) -> Any:
                with _entered(call):
                    return fn(*args, **_keyed(call, kwargs, key))

            return self._guarded.run(call, body, arguments=arguments, ask=self._ask(call), prove=sites.kept)

    async def _arun(
        self,
        what: Known,
        place: Callable[[], Site],
        arguments: Mapping[str, Any],
        fn: Callable[..., Awaitable[Any]],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        with as_control_flow(), in_a_tool():
            call = self._admitted(what, place, arguments)
            if call is None:
                return await fn(*args, **kwargs)

            async def body(key: str) -> Any:
                with _entered(call):
                    return await fn(*args, **_keyed(call, kwargs, key))

            return await self._guarded.arun(call, body, arguments=arguments, ask=self._ask(call), prove=sites.akept)

    def _admitted(self, what: Known, place: Callable[[], Site], arguments: Mapping[str, Any]) -> Call | None:
        """Pass the fence; return the call to be claimed, or None where it needs no claim."""
        pass_fence(what.in_a_race(arguments), commutes=what.spec.commutes, tool=what.name)
        effect = what.effect(arguments)
        if effect is Effect.READ_ONLY:
            return None
        spec = what.spec
        named = {key: value for key, value in arguments.items() if key != spec.key_param}
        call = self._guarded.ledger.call(what.name, spec, named, place(), effect=effect)
        if call.key in _inside.get():  # guarded twice, by a copy and by a hook
            return None
        self._warn(call)
        return call

    def _warn(self, call: Call) -> None:
        site = call.site
        if self._warned or call.declared or not call.single or not site.persistent or site.durability == "sync":
            return
        self._warned = True
        warnings.warn(
            f"{call.tool} runs once under durability={site.durability!r}: after a crash its step may be lost, and the "
            "next call like it is then in doubt. Use durability='sync', or give the tool key=.",
            stacklevel=2,
        )

    def _ask(self, call: Call) -> Callable[[EffectInDoubt], Answer | None]:
        def ask(doubt: EffectInDoubt) -> Answer | None:
            if self._on_in_doubt == "raise" or not sites.in_a_node() or getattr(doubt, "claim", None) is None:
                return None
            # Parallel calls of one task share their answers by order, which differs from run to run.
            alone = len(call.site.siblings) < 2 or "__pregel_push" in call.site.frames[-1].path
            question = {
                "agent_hedge": "effect_in_doubt",
                "tool": call.tool,
                "key": call.key,
                "age_s": round(float(getattr(doubt, "age", 0.0)), 3),
                "reason": str(getattr(doubt, "reason", "")),
                "answers": list(ANSWERS) if alone else {call.key: list(ANSWERS)},
            }
            while True:
                if (answer := _answer(interrupt(question), call.key, alone=alone)) is not None:
                    return answer

        return ask


def _checked(tools: object) -> list[Any]:
    """Return tools and functions as a list, or raise `ConfigurationError`."""
    if isinstance(tools, BaseTool | Mapping | str) or not isinstance(tools, Iterable):
        raise ConfigurationError(f"guarded tools are a list of tools and functions, not a {type(tools).__name__}")
    found = list(tools)
    for one in found:
        if not isinstance(one, BaseTool) and (isinstance(one, type) or not callable(one)):
            raise ConfigurationError(f"a {type(one).__name__} cannot be guarded: give tools and functions")
    return found


def _answer(said: object, key: str, *, alone: bool) -> Answer | None:
    if isinstance(said, Mapping):
        said, alone = said.get(key, said.get("answer") if said.get("key") == key else None), True
    return next((answer for answer in ANSWERS if alone and said == answer), None)


@contextmanager
def _entered(call: Call) -> Any:
    token = _inside.set(_inside.get() | {call.key})
    try:
        yield
    finally:
        _inside.reset(token)


def _keyed(call: Call, kwargs: dict[str, Any], key: str) -> dict[str, Any]:
    return kwargs if call.spec.key_param is None else {**kwargs, call.spec.key_param: key}


def _plain(value: Any) -> Any:
    if isinstance(value, Replay):
        return value.value
    return value
