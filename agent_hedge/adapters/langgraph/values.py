"""What an expression in a node's body may stand for, without running anything.

Attributes are looked up statically: no property, ``__getattr__`` or descriptor of the user's ever runs here.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.pregel.protocol import PregelProtocol
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from agent_hedge.adapters.langgraph.findings import BlindSpot


class Kind(Enum):
    """How much is known of a value."""

    OBJECT = "object"
    """One of `objects`."""
    UNKNOWN = "unknown"
    """Made at run time: its methods are judged by their names."""
    PURE = "pure"
    """An object of a class known to be harmless: its methods are, too (not what they give back)."""
    LOCAL = "local"
    """A function or class defined in the body, which is read where it stands."""
    INSTANCE = "instance"
    """A fresh instance of the class in `objects`."""
    MODEL = "model"
    """A chat model made in the body."""
    STORE = "store"
    WRITER = "writer"
    RUNTIME = "runtime"
    INJECTED = "injected"
    """Something out of the run's config or context: whatever the caller put there."""


@dataclass(frozen=True, slots=True)
class Value:
    """What an expression may be. `via` says what can still change between now and the run."""

    kind: Kind
    objects: tuple[Any, ...] = ()
    via: BlindSpot | None = None

    def __or__(self, other: Value) -> Value:
        kind = self.kind if self.kind is other.kind else Kind.UNKNOWN
        if {self.kind, other.kind} == {Kind.OBJECT, Kind.PURE}:
            kind = Kind.OBJECT
        return Value(kind, self.objects + other.objects, self.via or other.via)


UNKNOWN = Value(Kind.UNKNOWN)
PURE = Value(Kind.PURE)
LOCAL = Value(Kind.LOCAL)

PLAIN_TYPES = (str, bytes, int, float, complex, bool, type(None))
CONTAINERS = (dict, list, tuple, set, frozenset)
RUNS_BY_ITSELF = (Runnable, BaseTool, PregelProtocol)
MANY = 64
"""Objects followed out of one container that holds no tool, Runnable or function."""


def of(thing: Any, via: BlindSpot | None = None) -> Value:
    """Return the value of an object that is there already."""
    if isinstance(thing, BaseStore):
        return Value(Kind.STORE)
    if isinstance(thing, Runtime):
        return Value(Kind.RUNTIME)
    return Value(Kind.OBJECT, (thing,), via)


def union(values: Iterable[Value]) -> Value:
    """Return what any of them may be; nothing at all is unknown."""
    found: Value | None = None
    for value in values:
        found = value if found is None else found | value
    return found or UNKNOWN


def acts(thing: Any, depth: int = 3) -> bool:
    """Whether an object can run something: a tool, a Runnable, a function, or a container that holds one."""
    if isinstance(thing, (*PLAIN_TYPES, type)):
        return False
    if isinstance(thing, CONTAINERS):
        return depth > 0 and any(acts(item, depth - 1) for item in items(thing))
    return isinstance(thing, RUNS_BY_ITSELF) or callable(thing)


def items(container: Any) -> list[Any]:
    """Return what a container holds (a mapping: its values)."""
    return list(container.values() if isinstance(container, Mapping) else container)


def elements(value: Value, key: object = ...) -> Value:
    """Return what taking something out of `value` gives; `key` narrows it where it is a constant."""
    if value.kind is not Kind.OBJECT:
        return value if value.kind is Kind.INJECTED else UNKNOWN
    return union(_held(thing, key, value.via) for thing in value.objects)


def _held(thing: Any, key: object, via: BlindSpot | None) -> Value:
    if isinstance(thing, PLAIN_TYPES):
        return PURE
    if not isinstance(thing, CONTAINERS):
        return UNKNOWN
    held = items(thing)
    if key is not ... and isinstance(thing, dict | list | tuple):
        try:
            held = [thing[key]]  # type: ignore[call-overload]
        except (LookupError, TypeError):
            return UNKNOWN
    if acting := [item for item in held if acts(item)]:
        return Value(Kind.OBJECT, tuple(acting), from_container(thing))
    others = [item for item in held if not isinstance(item, PLAIN_TYPES)]
    return Value(Kind.OBJECT, tuple(others[:MANY]), via) if others else PURE


def from_container(container: Any) -> BlindSpot:
    """Say that what a container holds when it is used need not be what it holds now."""
    return BlindSpot("container", f"what is taken out of a `{type(container).__name__}` is known only at run time")


def attribute(value: Value, name: str) -> Value:
    """Return what ``value.name`` may be."""
    if value.kind is Kind.RUNTIME:
        kind = {"store": Kind.STORE, "stream_writer": Kind.WRITER, "context": Kind.INJECTED}.get(name, Kind.PURE)
        return Value(kind)
    if value.kind is Kind.INJECTED:
        return value
    if value.kind is Kind.INSTANCE:
        return union(_of_instance(cls, name) for cls in value.objects)
    if value.kind not in (Kind.OBJECT, Kind.UNKNOWN):
        return UNKNOWN
    found = union(_of_object(thing, name, value.via) for thing in value.objects)
    return found if value.kind is Kind.OBJECT else found | UNKNOWN


def _of_instance(cls: type, name: str) -> Value:
    """A method of a class whose instance is made in the body: all of its methods are read with the class."""
    return LOCAL if isinstance(inspect.getattr_static(cls, name, None), types.FunctionType) else UNKNOWN


def _of_object(thing: Any, name: str, via: BlindSpot | None) -> Value:
    if isinstance(thing, types.ModuleType):
        return of(vars(thing)[name], via) if name in vars(thing) else UNKNOWN
    try:
        found = inspect.getattr_static(thing, name)
    except AttributeError:
        return UNKNOWN
    if isinstance(thing, RUNS_BY_ITSELF):  # whatever is picked from it, it is this that runs
        return PURE if isinstance(found, PLAIN_TYPES) else of(thing, via)
    if isinstance(found, staticmethod):
        return of(found.__func__, via)
    if isinstance(found, classmethod):
        return of(types.MethodType(found.__func__, thing if isinstance(thing, type) else type(thing)), via)
    if isinstance(thing, type):
        return of(found, via)
    if isinstance(found, types.FunctionType):
        in_class = name not in getattr(thing, "__dict__", {})
        return of(types.MethodType(found, thing), via) if in_class else of(found, from_attribute(thing, name))
    if isinstance(found, types.MemberDescriptorType):
        try:
            return of(found.__get__(thing, type(thing)), from_attribute(thing, name))
        except AttributeError:
            return UNKNOWN
    if isinstance(found, property | cached_property):
        return UNKNOWN
    if isinstance(found, types.MethodDescriptorType | types.WrapperDescriptorType | types.BuiltinFunctionType):
        return of(found, via)
    if isinstance(found, PLAIN_TYPES):
        return PURE
    return of(found, from_attribute(thing, name))


def from_attribute(thing: Any, name: str) -> BlindSpot:
    """Say that an attribute may be another one by the time it is used."""
    return BlindSpot("attribute", f"`{name}` of a `{type(thing).__name__}` may be set anew before it is used")


def getters(value: Value, name: str) -> list[Any]:
    """Return the functions that reading ``value.name`` would run: properties."""
    found = []
    for thing in value.objects if value.kind is Kind.OBJECT else ():
        static = inspect.getattr_static(thing, name, None)
        if isinstance(static, property) and static.fget is not None:
            found.append(types.MethodType(static.fget, thing))
        elif isinstance(static, cached_property):
            found.append(types.MethodType(static.func, thing))
    return [] if any(isinstance(thing, RUNS_BY_ITSELF) for thing in value.objects) else found
