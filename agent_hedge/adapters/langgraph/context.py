"""Where a step stands, read from the configuration that LangGraph keeps around every node (DESIGN 5.13)."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from langgraph.types import Command

from agent_hedge.adapters.langgraph.private import (
    CALL,
    CHECKPOINTER,
    DURABILITY,
    RESUMING,
    RUNTIME,
    SCRATCHPAD,
    TASK_ID,
    input_of,
    loop_of,
    run_timeout,
    task_of,
)
from agent_hedge.core.ports import Refused
from agent_hedge.core.scope import StepContext, step_scope
from agent_hedge.core.step import Ahead

NODE = "langgraph_node"
DEPTH = 32
"""Graphs within graphs that are looked at: more than anybody nests, and a bound."""

racing: ContextVar[Refused | None] = ContextVar("agent_hedge_racing", default=None)
"""Set inside the attempts of a raced node: what stands in there is not hedged a second time."""

_NOTHING: Mapping[str, Any] = {}


AheadOf = Callable[[], Ahead | None]
"""Says what graphs say of the steps ahead of the node that asks."""
VerdictOf = Callable[[str, tuple[str, ...]], Refused | None]
"""Says why the model calls of a node (its name, the names of the nodes around it) must not be hedged."""


def read_context(config: Mapping[str, Any], verdict_of: VerdictOf, ahead_of: AheadOf) -> StepContext | None:
    """Return where the node of this ambient configuration stands, or None outside any node.

    `parent` is the chain of steps around it, outermost first. A step whose node is wrapped is known by name, step and
    path (a parent may loop over the same subgraph); one that is not, by its name alone.
    """
    metadata = config.get("metadata") or _NOTHING
    node = metadata.get(NODE)
    if node is None:
        return None
    configurable = config.get("configurable") or _NOTHING
    alias = str(metadata.get("langgraph_checkpoint_ns", ""))
    around = names_around(alias)
    outer = step_scope.get()
    parent = around if outer is None or outer.alias == alias else _within(outer, alias)
    durability = str(configurable.get(DURABILITY, "async")) if configurable.get(CHECKPOINTER) else ""
    return StepContext(
        node=node,
        step=metadata.get("langgraph_step", 0),
        path=_path(metadata.get("langgraph_path", ())),
        parent=parent,
        thread=str(configurable.get("thread_id") or ""),
        draining=_draining(configurable.get(RUNTIME)),
        resumed=is_resumed(configurable),
        durability=durability,
        verdict=racing.get() or verdict_of(node, around),
        ahead=ahead_of,
        time_left=lambda: time_left(configurable),
        alias=alias,
    )


def names_around(alias: str) -> tuple[str, ...]:
    """Return the names of the nodes around a nested one, from its checkpoint namespace (``outer:id|inner:id``)."""
    if "|" not in alias:
        return ()
    return tuple(part.partition(":")[0] for part in alias.split("|") if not part.isdigit())[:-1]


def _within(outer: StepContext, alias: str) -> tuple[str, ...]:
    chain = (*outer.parent, f"{outer.node}#{outer.step}#{outer.path}")
    names = names_around(alias)
    if outer.alias and alias.startswith(outer.alias):  # levels between the two are known by name
        return (*chain, *names[len(names_around(outer.alias)) + 1 :])
    return (*chain, *names)


def _path(path: object) -> str:
    """Return ``__pregel_pull/plan`` and the like: what tells parallel tasks of one node apart."""
    return "/".join(map(str, path)) if isinstance(path, tuple | list) else str(path)


def _draining(runtime: Any) -> Callable[[], bool]:
    return lambda: bool(getattr(runtime, "drain_requested", False))


def time_left(configurable: Mapping[str, Any]) -> float:
    """Return the seconds that time-outs of the nodes around this code leave it; infinity without any.

    Their run time-outs count from the start of the attempt, which LangGraph tells of the first attempt only. An idle
    time-out begins anew with every sign of life, and a graph's `step_timeout` cannot be seen from a node.
    """
    left = math.inf
    for _ in range(DEPTH):
        call = configurable.get(CALL)
        limit = run_timeout(task_of(call))
        info = getattr(configurable.get(RUNTIME), "execution_info", None)
        began = info.node_first_attempt_time if info is not None and info.node_attempt == 1 else None
        if limit is not None and began is not None:
            left = min(left, began + limit - time.time())
        configurable = (getattr(loop_of(call), "config", None) or _NOTHING).get("configurable") or _NOTHING
        if TASK_ID not in configurable:  # the outermost graph
            break
    return left


def is_resumed(configurable: Mapping[str, Any]) -> bool:
    """Whether this task continues an earlier one: answers of a human must meet the very attempt that asked."""
    scratchpad = configurable.get(SCRATCHPAD)
    if scratchpad is not None and (scratchpad.resume or scratchpad.get_null_resume(False) is not None):
        return True
    return bool(configurable.get(RESUMING)) and _is_resuming(configurable)


def goes_on(configurable: Mapping[str, Any]) -> bool:
    """Whether the outermost graph around this code was resumed: in this superstep, or in one before it."""
    outermost: object | None = None
    for _ in range(DEPTH):
        if (loop := loop_of(configurable.get(CALL))) is None:
            break
        outermost = loop
        configurable = (getattr(loop, "config", None) or _NOTHING).get("configurable") or _NOTHING
    if outermost is None:
        return False
    given = input_of(outermost)
    return given is None or isinstance(given, Command)


def _is_resuming(configurable: Mapping[str, Any]) -> bool:
    """Whether the graphs around this task are resumed.

    LangGraph marks the retry of a node in the same way, for subgraphs in it: what each task began with tells.
    """
    for _ in range(DEPTH):
        call = configurable.get(CALL)
        task = task_of(call)
        began = configurable if task is None else task.config.get("configurable") or _NOTHING
        if not began.get(RESUMING):
            return False
        configurable = (getattr(loop_of(call), "config", None) or _NOTHING).get("configurable") or _NOTHING
        if TASK_ID not in configurable:  # the outermost graph
            break
    return True
