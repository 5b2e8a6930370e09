"""Looks at a function or an object without running anything of the user's."""

from __future__ import annotations

import types
from typing import Any

from agent_hedge.adapters.langgraph import values
from agent_hedge.adapters.langgraph.values import Value


def identity(thing: Any) -> tuple[object, ...]:
    """Return what tells this object from every other that is alive."""
    if isinstance(thing, types.MethodType):  # a new object at every access
        return (id(thing.__self__), id(thing.__func__))
    return (id(thing),)


def attribute(thing: Any, name: str) -> Any:
    """Read an attribute of a function or an instance without asking a ``__getattr__`` of the user's."""
    try:
        return object.__getattribute__(thing, name)
    except AttributeError:
        return None


def cells(function: types.FunctionType) -> dict[str, Any]:
    """Return the values of a function's closure by name; those that are not bound yet are left out."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def defaults(function: types.FunctionType) -> dict[str, Value]:
    """Return what is known of parameters by their defaults: nobody but the user's own code passes others."""
    code = function.__code__
    defaults = function.__defaults__ or ()
    first = code.co_argcount - len(defaults)
    named = dict(zip(code.co_varnames[first : code.co_argcount], defaults, strict=True))
    named |= function.__kwdefaults__ or {}
    return {name: values.of(default) for name, default in named.items() if values.acts(default)}
