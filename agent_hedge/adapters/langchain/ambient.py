"""Where a step stands, read from the configuration that LangChain keeps around every Runnable."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config

from agent_hedge.core.scope import Run, StepContext, run_scope, step_scope

Reader = Callable[[Mapping[str, Any]], StepContext | None]


def ambient_context(read: Reader) -> StepContext | None:
    """Return the step's context: of the wrapped node around it, else what `read` finds in LangGraph's configuration.

    A node of a subgraph inside a wrapped node is a step of its own, so the two are told apart by the namespace.
    """
    context = step_scope.get()
    config = var_child_runnable_config.get()
    metadata = config.get("metadata") if config is not None else None
    if not metadata or "langgraph_node" not in metadata:
        return context
    if context is not None and context.alias == metadata.get("langgraph_checkpoint_ns"):
        return context
    return read(config)  # type: ignore[arg-type]


def ambient_run(read: Callable[[], Run | None]) -> Run | None:
    """Return the run around this code: the open scope, else the one that LangGraph's configuration asks for."""
    run = run_scope.get()
    if run is not None:
        return run
    config = var_child_runnable_config.get()
    metadata = config.get("metadata") if config is not None else None
    return read() if metadata and "langgraph_node" in metadata else None
