"""A pytest plugin: every async function that becomes a node is wrapped (see `langgraph_suite`).

At unit="model"; with ``AGENT_HEDGE_PEER_UNIT=node`` as a whole, never hedged: then all that a node shows has passed a
gate, and must be what it was.
"""

from __future__ import annotations

import inspect
import os
import warnings
from typing import Any

from langgraph.graph import StateGraph

from agent_hedge import Effect, Hedger, Never
from agent_hedge.adapters.langgraph.face import is_async

HEDGER = Hedger()
WRAPPED = [0]


def pytest_configure(config: Any) -> None:
    plain = StateGraph.add_node

    def add_node(self: Any, node: Any, action: Any = None, **settings: Any) -> Any:
        if isinstance(node, str):
            return plain(self, node, _wrapped(action), **settings)
        return plain(self, _wrapped(node), action, **settings)

    StateGraph.add_node = add_node  # type: ignore[method-assign]
    warnings.filterwarnings("ignore", message="the wrapped node")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"agent_hedge wrapped {WRAPPED[0]} nodes")


def _wrapped(action: Any) -> Any:
    if action is None or inspect.isasyncgenfunction(action) or not is_async(action):
        return action
    WRAPPED[0] += 1
    if os.environ.get("AGENT_HEDGE_PEER_UNIT") == "node":
        return HEDGER.node(action, unit="node", effect=Effect.READ_ONLY, trigger="total", policy=Never())
    return HEDGER.node(action)
