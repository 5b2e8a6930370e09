"""`hedger.wrap_graph`: every node of a builder that is declared by metadata, or holds a hedged model.

The others pass an entrance (`entrance`) and run as they are.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

from langchain_core.runnables import Runnable
from langchain_core.runnables.config import run_in_executor
from langgraph.graph import StateGraph

from agent_hedge.adapters.langgraph.entrance import Entrance
from agent_hedge.adapters.langgraph.face import is_raced, is_wrapped
from agent_hedge.adapters.langgraph.graphs import Graphs
from agent_hedge.adapters.langgraph.private import RunnableCallable
from agent_hedge.adapters.langgraph.seed import CARRIER
from agent_hedge.errors import ConfigurationError

Builder = StateGraph[Any, Any, Any, Any]
WrapNode = Callable[..., Any]
"""Wraps one action, given the settings a node declares."""


def wrap_graph(builder: Builder, graphs: Graphs, wrap_node: WrapNode) -> Builder:
    """Wrap the nodes of `builder` in place and return it; what is compiled already stays as it is.

    Raises `ConfigurationError` for anything but a builder, and for a declaration that cannot be meant.
    """
    if not isinstance(builder, StateGraph):
        raise ConfigurationError(
            f"wrap_graph() takes a StateGraph before it is compiled, got a {type(builder).__name__}"
        )
    explanation = graphs.explain(builder)
    entrance = Entrance(graphs)
    made: dict[str, Runnable[Any, Any]] = {}
    for name, spec in builder.nodes.items():
        settings = _declared(name, spec.metadata)
        inner = [report for report in explanation.nodes if report.name == name or report.name.startswith(f"{name}|")]
        runnable = cast("Runnable[Any, Any]", spec.runnable)
        if settings is None and _is_wrapped(runnable):
            made[name] = runnable
        elif settings is None and not any(report.hedged for report in inner):
            made[name] = entrance.before(runnable)
        else:
            try:
                made[name] = wrapped(runnable, functools.partial(wrap_node, **(settings or {})))
            except ConfigurationError as error:
                raise ConfigurationError(f"node {name!r}: {error}") from None
    for name, spec in builder.nodes.items():  # nothing is changed before every declaration is known to be meant
        spec.runnable = made[name]
        if spec.metadata and CARRIER in spec.metadata:
            spec.metadata = {key: value for key, value in spec.metadata.items() if key != CARRIER} or None
    if any(is_raced(spec.runnable) for spec in builder.nodes.values()):
        graphs.explain(builder)  # a raced node is a step of the run, which could not be seen before
    return builder


def wrapped(runnable: Runnable[Any, Any], wrap_node: Callable[[Any], Any]) -> Runnable[Any, Any]:
    """Return what `add_node` would have made of the wrapped action: a user's function stands behind `func`, `afunc`."""
    if type(runnable) is not RunnableCallable:
        held: Runnable[Any, Any] = wrap_node(runnable)
        return held
    own = copy.copy(runnable)
    if runnable.func is not None:
        own.func = wrap_node(runnable.func)
    afunc = runnable.afunc
    if isinstance(afunc, functools.partial) and afunc.func is run_in_executor:
        own.afunc = functools.wraps(own.func)(functools.partial(run_in_executor, None, own.func))  # type: ignore[arg-type]
    elif afunc is not None:
        own.afunc = wrap_node(afunc)
    return own


def _is_wrapped(runnable: Runnable[Any, Any]) -> bool:
    """Whether a node is wrapped already: as a Runnable, or the function in it."""
    return any(
        is_wrapped(each) for each in (runnable, getattr(runnable, "func", None), getattr(runnable, "afunc", None))
    )


def _declared(name: str, metadata: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Return the settings in a node's ``metadata={"agent_hedge": {...}}``, None where there are none."""
    declared = (metadata or {}).get(CARRIER)
    if declared is None:
        return None
    if not isinstance(declared, Mapping) or not all(isinstance(key, str) for key in declared):
        raise ConfigurationError(f'metadata["{CARRIER}"] of node {name!r} must be a mapping, got {declared!r:.80}')
    return dict(declared)
