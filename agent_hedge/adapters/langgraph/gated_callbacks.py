"""Callbacks of a raced node: what handlers hear of an attempt waits behind its gate (R5, R8)."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Sequence
from typing import Any

from langchain_core.callbacks import AsyncCallbackManager, BaseCallbackHandler
from langchain_core.callbacks.base import BaseCallbackManager
from langchain_core.callbacks.manager import ahandle_event, handle_event

from agent_hedge.adapters.langgraph.gate import Gate
from agent_hedge.adapters.langgraph.private import (
    COPIED_TRACER,
    IdleProgressHandler,
    StreamingHandler,
    StreamToolCallHandler,
    handler_variables,
)

_CHAT_MODEL = "on_chat_model_start"
"""A handler that has no such hook raises `NotImplementedError`, and LangChain calls its `on_llm_start` instead."""

_GATEABLE = ("langgraph.", "agent_hedge.")
"""Packages whose streaming handlers only listen."""


def ungateable(manager: object) -> BaseCallbackHandler | None:
    """Return a handler that cannot be held back: one that taps (`astream_events` v2, `astream_log`), or a final one."""
    for handler in _handlers(manager):
        cls: Any = type(handler)
        taps = isinstance(handler, StreamingHandler) and not cls.__module__.startswith(_GATEABLE)
        if taps or not _can_be_gated(cls):
            return handler
    return None


@functools.lru_cache(maxsize=256)
def _can_be_gated(cls: Any) -> bool:
    """Whether the class may have a subclass that says no more than its name."""
    try:
        type(f"Gated{cls.__name__}", (cls,), {"__module__": __name__})
    except TypeError:
        return False
    return True


def is_watched(manager: object) -> bool:
    """Whether progress of the node refreshes its idle time-out."""
    return any(isinstance(handler, IdleProgressHandler) for handler in _handlers(manager))


def gated_manager(manager: object, gate: Gate, own: Sequence[BaseCallbackHandler]) -> BaseCallbackManager:
    """Return a copy of a node's callback manager for one attempt, with `own` handlers added, which are not gated.

    LangChain adds the handlers that context variables hold to every call that does not have them. So the running
    context, which must be the attempt's alone, gets the gated ones.

    A handler with ``raise_error`` guards what it hears of, and one that watches for progress keeps the node's idle
    time-out away: both are asked at once.
    """
    known: dict[int, BaseCallbackHandler] = {}

    def gated(handler: BaseCallbackHandler) -> BaseCallbackHandler:
        if id(handler) not in known:
            at_once = handler.raise_error or isinstance(handler, IdleProgressHandler)
            known[id(handler)] = handler if at_once else gated_handler(handler, gate)
        return known[id(handler)]

    if isinstance(manager, BaseCallbackManager):
        own_manager = manager.copy()
    else:
        handlers = list(_handlers(manager))
        own_manager = AsyncCallbackManager(handlers=handlers, inheritable_handlers=handlers)
    own_manager.handlers = [gated(handler) for handler in own_manager.handlers]
    own_manager.inheritable_handlers = [gated(handler) for handler in own_manager.inheritable_handlers]
    for handler in own:
        own_manager.add_handler(handler, inherit=True)
    for variable in handler_variables():
        if (held := variable.get()) is not None:
            variable.set(gated(held))
    return own_manager


def gated_handler(handler: BaseCallbackHandler, gate: Gate) -> BaseCallbackHandler:
    """Return a handler of the same class and the same state whose hooks wait behind the gate."""
    if isinstance(handler, StreamToolCallHandler):  # sets a context variable while a tool runs: its hooks must run
        tools = copy.copy(handler)
        tools.stream = gate.wrap(handler.stream)
        tools._run_to_call = {}
        return tools
    cls = type(handler)
    hooks: dict[str, Any] = {
        name: property(_constant(_hook(handler, name, gate))) for name in dir(cls) if name.startswith("on_")
    }
    if (copied := getattr(handler, COPIED_TRACER, None)) is not None:  # its hooks are those of the copy
        hooks[COPIED_TRACER] = property(_constant(lambda **more: gated_handler(copied(**more), gate)))
    hooks["__getattr__"] = lambda _, name: getattr(handler, name)  # what stands in slots
    gated_class = type(f"Gated{cls.__name__}", (cls,), {**hooks, "__module__": __name__})
    twin: BaseCallbackHandler = object.__new__(gated_class)
    twin.__dict__ = handler.__dict__
    return twin


def _hook(handler: BaseCallbackHandler, name: str, gate: Gate) -> Any:
    real = getattr(handler, name)
    is_async = inspect.iscoroutinefunction(real)
    if name == _CHAT_MODEL:
        real = functools.partial(ahandle_event if is_async else handle_event, [handler], name, "ignore_chat_model")
    return gate.wrap_async(real) if is_async else gate.wrap(real)


def _constant(value: Any) -> Any:
    return lambda _: value


def _handlers(manager: object) -> Sequence[BaseCallbackHandler]:
    if isinstance(manager, BaseCallbackManager):
        return [*manager.handlers, *manager.inheritable_handlers]
    return list(manager) if isinstance(manager, list) else []
