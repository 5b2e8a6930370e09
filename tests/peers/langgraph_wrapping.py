"""A pytest plugin: every node of LangGraph's own suite is wrapped (see `langgraph_suite`).

``AGENT_HEDGE_PEER_WRAP`` says how:

- ``model`` (the default): every async function, at unit="model";
- ``every``: whatever `add_node` takes, at unit="model": sync functions, Runnables and compiled graphs too;
- ``graph``: every builder passes `wrap_graph` before it is compiled; nothing is hedged in it, so each node gets the
  entrance of a plain node;
- ``node``: every async function, as a whole, never hedged: then all that a node shows has passed a gate.
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
HOW = os.environ.get("AGENT_HEDGE_PEER_WRAP", "model")
WRAPPED = [0]


def pytest_configure(config: Any) -> None:
    add_node, compile_graph = StateGraph.add_node, StateGraph.compile

    def add_wrapped(self: Any, node: Any, action: Any = None, **settings: Any) -> Any:
        if isinstance(node, str):
            return add_node(self, node, _wrapped(action), **settings)
        return add_node(self, _wrapped(node), action, **settings)

    def compile_wrapped(self: Any, *args: Any, **settings: Any) -> Any:
        WRAPPED[0] += len(self.nodes)
        return compile_graph(HEDGER.wrap_graph(self), *args, **settings)

    if HOW == "graph":
        StateGraph.compile = compile_wrapped  # type: ignore[method-assign]
    else:
        StateGraph.add_node = add_wrapped  # type: ignore[method-assign]
    warnings.filterwarnings("ignore", message="the wrapped node")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.write_line(f"agent_hedge wrapped {WRAPPED[0]} nodes")


def _wrapped(action: Any) -> Any:
    if action is None or (HOW != "every" and (inspect.isasyncgenfunction(action) or not is_async(action))):
        return action
    WRAPPED[0] += 1
    if HOW == "node":
        return HEDGER.node(action, unit="node", effect=Effect.READ_ONLY, trigger="total", policy=Never())
    return HEDGER.node(action)
