"""Where a step stands, read from the configuration that LangGraph keeps around every node."""

from __future__ import annotations

from langchain_core.runnables.config import var_child_runnable_config

from agent_hedge.core.scope import StepContext, step_scope


def step_context() -> StepContext | None:
    """Return the step's context: set by an adapter, else from the ambient configuration, else None."""
    context = step_scope.get()
    if context is not None:
        return context
    config = var_child_runnable_config.get()
    metadata = (config or {}).get("metadata")
    if not metadata or "langgraph_node" not in metadata:
        return None
    return StepContext(
        node=str(metadata["langgraph_node"]),
        step=int(metadata.get("langgraph_step", 0)),
        path=str(metadata.get("langgraph_path", "")),
        thread=str(metadata.get("thread_id", "")),
    )
