"""Every private name of LangGraph and LangChain this package depends on, in one place.

Each name has a canary in ``tests/adapters/langgraph/test_private_names.py`` which says what to do when it breaks.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable
from contextvars import ContextVar
from datetime import timedelta
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers._streaming import _StreamingCallbackHandler as StreamingHandler
from langchain_core.tracers.context import _configure_hooks
from langgraph._internal._constants import CONFIG_KEY_CALL as CALL
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINT_MAP as CHECKPOINT_MAP
from langgraph._internal._constants import CONFIG_KEY_CHECKPOINTER as CHECKPOINTER
from langgraph._internal._constants import CONFIG_KEY_DURABILITY as DURABILITY
from langgraph._internal._constants import CONFIG_KEY_READ as READ
from langgraph._internal._constants import CONFIG_KEY_RESUMING as RESUMING
from langgraph._internal._constants import CONFIG_KEY_RUNTIME as RUNTIME
from langgraph._internal._constants import CONFIG_KEY_SCRATCHPAD as SCRATCHPAD
from langgraph._internal._constants import CONFIG_KEY_SEND as SEND
from langgraph._internal._constants import CONFIG_KEY_STREAM as STREAM
from langgraph._internal._constants import CONFIG_KEY_TASK_ID as TASK_ID
from langgraph._internal._runnable import RunnableCallable, RunnableSeq
from langgraph.func import _TaskFunction as TaskFunction
from langgraph.graph import StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel._retry import _IdleProgressCallbackHandler as IdleProgressHandler
from langgraph.pregel._tools import StreamToolCallHandler
from langgraph.pregel._utils import _runnable_has_native_async as runs_async

__all__ = [
    "AGENT_MODEL_NODES",
    "AGENT_MODEL_WRAPPERS",
    "AGENT_MODULE",
    "CALL",  # the configurable key of the function that schedules a `@task`
    "CHECKPOINTER",  # ... of the checkpointer that subgraphs inherit
    "CHECKPOINT_MAP",  # ... of the checkpoints that this graph and those around it came from, by namespace
    "CONFIGURABLE_MODEL",
    "COPIED_TRACER",  # how LangChain gives a LangSmith tracer what it is to say of one call
    "DURABILITY",  # ... of the durability mode
    "IdleProgressHandler",  # there while a node has an idle time-out that anything it does refreshes
    "MIDDLEWARE_MODULE",
    "READ",  # ... of what reads the state of the graph
    "RESUMING",  # ... of whether the superstep resumes
    "RUNTIME",  # ... of the `Runtime`: stream writer, store, control
    "RunnableCallable",  # what `add_node` turns a function into: the user's function is behind `func` and `afunc`
    "RunnableSeq",  # LangGraph's own sequence; not a `RunnableSequence`
    "SCRATCHPAD",  # ... of the task's counters and resume values
    "SEND",  # ... of what takes a task's writes
    "STREAM",  # ... of the stream that subgraphs write to
    "StreamToolCallHandler",  # emits tool events, and sets a context variable for the tool while it runs
    "StreamingHandler",  # handlers of this kind make `ainvoke` stream, and may tap a node's output
    "TASK_ID",  # ... of the id of the running task
    "TaskFunction",  # what `@task` returns: the only sign that a function runs as a task
    "all_edges",
    "channels_of",
    "default_error_handler",
    "handler_variables",
    "input_of",
    "loop_of",
    "middleware_class",
    "runs_async",  # whether LangGraph accepts a `timeout=` for this runnable
    "task_of",
    "tool_call_wrappers",
    "unfinished",
]

AGENT_MODULE = "langchain.agents.factory"
"""Where `create_agent` makes its nodes; its functions are recognised by this module name."""

AGENT_MODEL_NODES = frozenset({"create_agent.<locals>.model_node", "create_agent.<locals>.amodel_node"})
"""The node that calls the model. Its closure holds `model`, `default_tools` and the chain of model-call wrappers."""

AGENT_MODEL_WRAPPERS = ("wrap_model_call_handler", "awrap_model_call_handler")
"""Cells of that node with the middlewares around the model call."""

MIDDLEWARE_MODULE = "langchain.agents.middleware.types"
"""Where `@before_model` and its kin wrap the user's function; such a wrapper does nothing of its own."""

CONFIGURABLE_MODEL = "_ConfigurableModel"
"""What `init_chat_model` returns when the model is chosen at run time."""

COPIED_TRACER = "copy_with_metadata_defaults"
"""The method of LangSmith's tracer that LangChain calls for each run inside, to go on with the copy it returns."""


_WRAPPINGS = 4
"""Layers between what schedules a task and its loop: LangGraph's retry adds one, a raced node another."""


def loop_of(call: Any) -> object | None:
    """Return the loop that runs the current graph: the one that `@task` calls (`CALL`) are scheduled on."""
    bound = _scheduling(call)
    return getattr(bound.keywords["schedule_task"], "__self__", None) if bound is not None else None


def input_of(loop: Any) -> object:
    """Return what the graph of this loop was called with: None or a `Command` where it goes on."""
    return loop.input


def task_of(call: Any) -> Any:
    """Return the task around this code as LangGraph prepared it (`config`, `timeout`), None where it is not known.

    A `@task` call is scheduled for it: it is bound first, by a weak reference.
    """
    bound = _scheduling(call)
    return bound.args[0]() if bound is not None and bound.args else None


def run_timeout(task: Any) -> float | None:
    """Return the seconds that one attempt of this task may take, None where nothing limits it."""
    limit = getattr(getattr(task, "timeout", None), "run_timeout", None)
    return limit.total_seconds() if isinstance(limit, timedelta) else limit


def _scheduling(call: Any) -> functools.partial[Any] | None:
    for _ in range(_WRAPPINGS):
        if "schedule_task" in getattr(call, "keywords", {}):
            return call  # type: ignore[no-any-return]
        call = getattr(call, "__wrapped__", None) or getattr(call, "func", None) or _behind_timeout(call)
    return None


def _behind_timeout(call: Any) -> Any:
    """Return what the guard of a node with a time-out calls; it has no public way to it."""
    names = getattr(getattr(call, "__code__", None), "co_freevars", ())
    return call.__closure__[names.index("call")].cell_contents if "call" in names else None


def unfinished(loop: Any) -> set[str]:
    """Return the nodes that have tasks which the current superstep of this loop still waits for."""
    return {task.name for task in list(loop.tasks.values()) if not task.writes}


def channels_of(read: Any) -> list[str]:
    """Return the channels that `READ` can be asked for: its second bound argument, as `ToolNode` takes it."""
    return list(read.args[1])


def all_edges(builder: StateGraph[Any, Any, Any, Any]) -> Iterable[tuple[str, str]]:
    """Return plain edges and the edges of joins: only this property holds both."""
    return builder._all_edges


def default_error_handler(builder: StateGraph[Any, Any, Any, Any]) -> Any:
    """Return the handler of `set_node_defaults`: it becomes a node at compile time, so a builder has no such node."""
    return builder._node_defaults.error_handler


def tool_call_wrappers(node: ToolNode) -> tuple[Callable[..., Any] | None, Callable[..., Any] | None]:
    """Return (wrap_tool_call, awrap_tool_call): `ToolNode` has no public accessor for them."""
    return node._wrap_tool_call, node._awrap_tool_call


def handler_variables() -> list[ContextVar[BaseCallbackHandler | None]]:
    """Return the context variables whose handlers are added to every call: `register_configure_hook` has no reader."""
    return [hook[0] for hook in _configure_hooks]


def middleware_class() -> type | None:
    """Return `AgentMiddleware` where langchain is in use: the langgraph extra does not install langchain."""
    module = sys.modules.get(MIDDLEWARE_MODULE)
    return getattr(module, "AgentMiddleware", None)
