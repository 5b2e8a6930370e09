"""What is known of a `create_agent` middleware without running it."""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable

from agent_hedge.adapters.langgraph import private, values
from agent_hedge.adapters.langgraph.findings import BlindSpot
from agent_hedge.adapters.langgraph.origin import Origin, origin

OURS = "__agent_hedge_middleware__"
"""Set on the library's own middleware: what it does is known. It hedges the model it is called with."""

_PAIRS = (("wrap_tool_call", "awrap_tool_call"), ("wrap_model_call", "awrap_model_call"))


def one_sided(middleware: Any) -> Iterator[str]:
    """Yield a note for each hook that exists for one of sync and async only: the other kind of run fails."""
    base = private.middleware_class()
    for sync, other in _PAIRS:
        has = [getattr(type(middleware), name) is not getattr(base, name) for name in (sync, other)]
        if has[0] != has[1]:
            there, missing = (sync, other) if has[0] else (other, sync)
            kind = "async" if has[0] else "sync"
            yield f"the middleware `{middleware.name}` has {there} without {missing}: {kind} runs raise an error"


def hooks(middleware: Any) -> Iterator[types.FunctionType]:
    """Yield the functions of its class, those of `AgentMiddleware` itself left out."""
    base = private.middleware_class()
    for cls in type(middleware).__mro__:
        if cls is base:
            return
        yield from (held for held in vars(cls).values() if isinstance(held, types.FunctionType))


def holds(middleware: Any) -> Iterator[Any]:
    """Yield the models and Runnables it carries. Its tools run in the tool node, and are found there."""
    for held in vars(middleware).values():
        for each in values.items(held) if isinstance(held, values.CONTAINERS) else [held]:
            if isinstance(each, BaseLanguageModel | Runnable):
                yield each


def unread(middleware: Any, function: Any) -> BlindSpot | None:
    """Return the blind spot of a hook that is not the user's code, None where it is (or only wraps it)."""
    module = getattr(function, "__globals__", {}).get("__name__", "")
    if getattr(middleware, OURS, False):
        return None
    if module == private.MIDDLEWARE_MODULE or origin(module) is Origin.USER:
        return None
    return BlindSpot("middleware", f"`{middleware.name}.{getattr(function, '__name__', '?')}` was not read")


def of_model_calls(cells: Mapping[str, Any]) -> list[Any]:
    """Return the middlewares that wrap the model call, outermost first, from the node's closure."""
    found: dict[str, Any] = {}
    waiting = [cells.get(name) for name in private.AGENT_MODEL_WRAPPERS]
    seen: set[int] = set()
    while waiting:
        function = waiting.pop(0)
        if id(function) in seen:
            continue
        seen.add(id(function))
        if isinstance(function, types.MethodType):
            found.setdefault(name_of(function.__self__), function.__self__)
        elif isinstance(function, types.FunctionType):
            waiting.append(getattr(function, "__wrapped__", None))
            waiting += [cell.cell_contents for cell in function.__closure__ or ()]
    return list(found.values())


def name_of(middleware: Any) -> str:
    return str(getattr(middleware, "name", type(middleware).__name__))
