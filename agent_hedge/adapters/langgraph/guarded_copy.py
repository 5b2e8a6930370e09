"""The guarded copy of a LangChain tool: the same face, and a body that asks first.

What is wrapped is the body: the functions of a tool that is made of functions, the `_run` and `_arun` of one that is a
class of its own. A copy remembers the id of the call that it is run for.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, cast

from langchain_core.tools import BaseTool, StructuredTool, Tool

from agent_hedge.tools.calls import Replay
from agent_hedge.tools.effect import bound

NOT_KEPT = "This call was carried out before; its result was not kept."
ABANDONED = "This call was given up by a person. Whether it was carried out is not known, and it must not be repeated."
_NEVER_SEEN = frozenset({"config", "callbacks", "run_manager"})
"""Arguments that LangChain gives to a tool's function beside those of the model."""
_MARK = "__agent_hedge_guard__"

call_id: ContextVar[str] = ContextVar("agent_hedge_tool_call_id", default="")
"""The id of the tool call that a guarded copy is run for; empty where none is known."""

Body = Callable[..., Any]
Runs = Callable[[Mapping[str, Any], Body, tuple[Any, ...], dict[str, Any]], Any]
"""Runs a body once: what the model has asked for, the body, its positional and keyword arguments."""


def is_guarded(tool: BaseTool) -> bool:
    """Whether a tool is a guarded copy."""
    return getattr(tool, _MARK, None) is not None


def guarded_copy(tool: BaseTool, run: Runs, arun: Runs) -> BaseTool:
    """Return a copy of a tool whose body is run by `run`, and where it is a coroutine function by `arun`.

    The copy does not keep the tool alive.
    """
    copy = tool.model_copy()
    face = _Face(copy, run, arun)
    kind = type(tool)
    own_run = isinstance(tool, StructuredTool | Tool) and kind._run in (StructuredTool._run, Tool._run)
    if own_run:
        simple = cast("StructuredTool", copy)
        if simple.func is not None:
            simple.func = face.wrap(simple.func)
        if simple.coroutine is not None:
            simple.coroutine = face.wrap_async(simple.coroutine)
    object.__setattr__(copy, "__class__", _guarded_class(kind, bodies=not own_run))
    object.__setattr__(copy, _MARK, face)
    return copy


@dataclass(frozen=True, slots=True)
class _Face:
    """What the body of a copy is wrapped with."""

    tool: BaseTool
    run_once: Runs
    arun_once: Runs

    def wrap(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            return self.run(fn, args, kwargs)

        return _like(guarded, fn)

    def wrap_async(self, fn: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        @functools.wraps(fn)
        async def guarded(*args: Any, **kwargs: Any) -> Any:
            return await self.arun(fn, args, kwargs)

        return _like(guarded, fn)

    def run(self, fn: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._value(self.run_once(self._arguments(fn, args, kwargs), fn, args, kwargs))

    async def arun(self, fn: Body, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._value(await self.arun_once(self._arguments(fn, args, kwargs), fn, args, kwargs))

    def _arguments(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return what the model has asked for: injected arguments left out."""
        shown = _shown(self.tool)
        given = bound(fn, args, kwargs)
        named = set(inspect.signature(fn).parameters)
        return {
            name: value
            for name, value in given.items()
            if name in shown or (name not in named and name not in _NEVER_SEEN)
        }

    def _value(self, value: Any) -> Any:
        if not isinstance(value, Replay):
            return value
        if value.kept:
            return value.value
        text = ABANDONED if value.abandoned else NOT_KEPT
        return (text, None) if self.tool.response_format == "content_and_artifact" else text


def _shown(tool: BaseTool) -> frozenset[str]:
    """Return the names of the arguments that the model gives."""
    try:
        return frozenset(tool.args)
    except Exception:  # a tool of positional text has no schema
        return frozenset({"tool_input", "input", "query"})


def _like(wrapper: Callable[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """Let LangChain find what it injects by annotation, also for a partial, which has no annotations of its own."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    wrapper.__annotations__ = getattr(fn, "__annotations__", {})
    return wrapper


@functools.cache
def _guarded_class(kind: type[BaseTool], *, bodies: bool) -> type[BaseTool]:
    """Return a subclass that remembers the call id and, where the class has a body of its own, guards that."""

    def run(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        token = call_id.set(kwargs.get("tool_call_id") or "")
        try:
            return kind.run(self, *args, **kwargs)
        finally:
            call_id.reset(token)

    async def arun(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
        token = call_id.set(kwargs.get("tool_call_id") or "")
        try:
            return await kind.arun(self, *args, **kwargs)
        finally:
            call_id.reset(token)

    members: dict[str, Any] = {"run": run, "arun": arun, "__module__": kind.__module__, "__annotations__": {}}
    if bodies:

        @functools.wraps(kind._run)
        def _run(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
            face: _Face = getattr(self, _MARK)
            return face.run(functools.partial(kind._run, self), args, kwargs)

        @functools.wraps(kind._arun)
        async def _arun(self: BaseTool, *args: Any, **kwargs: Any) -> Any:
            face: _Face = getattr(self, _MARK)
            return await face.arun(functools.partial(kind._arun, self), args, kwargs)

        members["_run"] = _run
        if kind._arun is not BaseTool._arun:
            members["_arun"] = _arun
    return type(kind.__name__, (kind,), members)
