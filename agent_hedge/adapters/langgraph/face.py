"""The face of a wrapped node: LangGraph must find everything it inspects where the plain function had it.

It looks at the name, at parameters by name (config, runtime, writer, store, previous, error), at type hints for the
input schema and for `Command` destinations, at sync or async, and through one level of ``__wrapped__`` for subgraphs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any

MARK = "__agent_hedge_node__"
"""Set on what is wrapped already."""


def is_wrapped(action: Any) -> bool:
    """Whether this node is wrapped already; a decorator on top of a wrapped one carries the mark along."""
    return getattr(action, MARK, False) is True


RACED = "__agent_hedge_raced__"
"""Set on what is raced as a whole."""


def is_raced(runnable: Any) -> bool:
    """Whether this Runnable of a node, or the function in it, is raced."""
    held = (runnable, getattr(runnable, "func", None), getattr(runnable, "afunc", None))
    return any(getattr(each, RACED, False) is True for each in held)


def is_async(action: Any) -> bool:
    """Whether calling it gives a coroutine."""
    return inspect.iscoroutinefunction(action) or inspect.iscoroutinefunction(getattr(action, "__call__", None))  # noqa: B004


def is_async_generator(action: Any) -> bool:
    """Whether calling it gives an async generator."""
    return inspect.isasyncgenfunction(action) or inspect.isasyncgenfunction(getattr(action, "__call__", None))  # noqa: B004


def wear(face: Callable[..., Any], action: Callable[..., Any]) -> Callable[..., Any]:
    """Return `face` looking like `action`.

    ``__wrapped__`` is the innermost function: LangGraph follows one level of it to look for subgraphs, so that a
    decorator of the user's in between would hide them.
    """
    functools.update_wrapper(face, action)
    if not isinstance(action, FunctionType | MethodType):
        face.__name__ = getattr(action, "__name__", type(action).__name__)
        face.__qualname__ = getattr(action, "__qualname__", type(action).__qualname__)
    call = action if isinstance(action, FunctionType | MethodType | functools.partial) else action.__call__  # type: ignore[operator]
    face.__annotations__ = dict(getattr(call, "__annotations__", {}))
    innermost = inspect.unwrap(call)
    face.__wrapped__ = innermost  # type: ignore[attr-defined]
    if innermost is not call:
        face.__signature__ = inspect.signature(call)  # type: ignore[attr-defined]
    setattr(face, MARK, True)
    return face
