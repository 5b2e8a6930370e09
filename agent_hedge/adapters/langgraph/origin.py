"""Whose code something callable is: only the user's own is read; the rest is known (`known`), or cannot be seen."""

from __future__ import annotations

import functools
import sys
import sysconfig
from enum import Enum
from pathlib import Path
from types import (
    BuiltinFunctionType,
    ClassMethodDescriptorType,
    FunctionType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any

from agent_hedge.adapters.langgraph import known


class Origin(Enum):
    """Whose code it is."""

    USER = "user"
    FRAMEWORK = "framework"
    QUIET = "quiet"
    OUTSIDE = "outside"
    PACKAGE = "package"


_STANDARD = tuple(str(Path(sysconfig.get_paths()[key]).resolve()) for key in ("stdlib", "platstdlib"))
_INSTALLED = tuple(str(Path(path).resolve()) for path in sysconfig.get_paths().values() if path.endswith("-packages"))


def origin(module: str | None, name: str = "", home: frozenset[str] = frozenset()) -> Origin:
    """Tell whose code `name` of `module` is; `home` names the packages the graph itself lives in."""
    module = module or "builtins"
    full, top = f"{module}.{name}", module.partition(".")[0]
    if full in known.OUTSIDE_NAMES or f"{top}.{name}" in known.OUTSIDE_NAMES:
        return Origin.OUTSIDE
    if top in known.FRAMEWORK:
        return Origin.OUTSIDE if module.startswith("langgraph.pregel.remote") else Origin.FRAMEWORK
    if top == "__main__" or top in home:
        return Origin.USER
    if full in known.QUIET_NAMES or module.startswith(known.QUIET_MODULES) or top in known.QUIET_PACKAGES:
        return Origin.QUIET
    if top in known.OUTSIDE_STDLIB or top in known.NETWORK_PACKAGES:
        return Origin.OUTSIDE
    if top in sys.stdlib_module_names and _is_standard(top):
        return Origin.QUIET
    return Origin.PACKAGE if _is_installed(module) else Origin.USER


@functools.lru_cache(maxsize=1024)
def _is_standard(module: str) -> bool:
    """Whether a module with the name of one of the standard library is that: a file of the user's may hide it."""
    file = getattr(sys.modules.get(module), "__file__", None)
    return not isinstance(file, str) or str(Path(file).resolve()).startswith(_STANDARD)


@functools.lru_cache(maxsize=4096)
def _is_installed(module: str) -> bool:
    file = getattr(sys.modules.get(module), "__file__", None)
    return isinstance(file, str) and str(Path(file).resolve()).startswith(_INSTALLED)


def where_from(thing: Any) -> tuple[str, str]:
    """Return (module, name) of something callable, without asking a ``__getattr__`` of the user's.

    A function's own globals tell, since decorators copy ``__module__``.
    """
    if isinstance(thing, MethodType):
        thing = thing.__func__
    if isinstance(thing, FunctionType):
        return str(thing.__globals__.get("__name__") or "__main__"), thing.__name__
    if isinstance(thing, BuiltinFunctionType):
        owner = thing.__self__
        if isinstance(owner, ModuleType) or owner is None:
            return thing.__module__ or "builtins", thing.__name__
        return (owner if isinstance(owner, type) else type(owner)).__module__, thing.__name__
    if isinstance(thing, MethodDescriptorType | WrapperDescriptorType | ClassMethodDescriptorType):
        return thing.__objclass__.__module__, thing.__name__
    cls = thing if isinstance(thing, type) else type(thing)
    return cls.__module__, cls.__name__


def home_of(thing: Any) -> frozenset[str]:
    """Return the package a node's own function lives in: that package is the user's, wherever it is installed."""
    for function in (getattr(thing, "func", None), getattr(thing, "afunc", None), thing):
        if isinstance(function, FunctionType | MethodType | functools.partial):
            top = where_from(getattr(function, "func", function))[0].partition(".")[0]
            if top and origin(top) in (Origin.PACKAGE, Origin.USER):
                return frozenset({top})
    return frozenset()
