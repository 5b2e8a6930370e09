"""A pytest plugin: every async function that becomes a node is wrapped at unit="model" (see `langgraph_suite`)."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

from langgraph.graph import StateGraph

from agent_hedge import Hedger
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
    return HEDGER.node(action)
