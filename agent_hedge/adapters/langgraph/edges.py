"""Where a graph can go after a node, and what can be reached before the run ends.

Two things lead anywhere: a branch without a path map (and without a ``-> Literal[...]``), and a ``Command`` whose
``goto`` no annotation names. What is declared is believed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.graph import END, START, StateGraph

from agent_hedge.adapters.langgraph.findings import Findings
from agent_hedge.adapters.langgraph.private import all_edges


@dataclass(frozen=True, slots=True)
class Exits:
    """The nodes that may come next, in the order of the graph. `anywhere` says why every node is among them."""

    nodes: tuple[str, ...]
    anywhere: str = ""
    ends: bool = False
    """Whether the run of this graph may end after it."""
    parent: bool = False
    """Whether a ``Command`` may lead to any node of the parent graph."""


def exits(
    builder: StateGraph[Any, Any, Any, Any], findings: Mapping[str, Findings], handler: str = ""
) -> dict[str, Exits]:
    """Return where each node of `builder` leads, from its edges, branches and the ``Command``s in `findings`.

    `handler`: the node every other one leads to when it fails, as long as the graph is not compiled.
    """
    edges = sorted(all_edges(builder))
    if handler:
        edges += [(name, handler) for name in findings if name != handler]
    return {name: _exits(builder, name, findings, edges) for name in (START, *findings)}


def _exits(
    builder: StateGraph[Any, Any, Any, Any],
    name: str,
    findings: Mapping[str, Findings],
    edges: Sequence[tuple[str, str]],
) -> Exits:
    targets = {end for start, end in edges if start == name}
    anywhere = ""
    for label, branch in builder.branches.get(name, {}).items():
        if branch.ends is None:
            anywhere = f"the branch `{label}` has no path map"
        else:
            targets.update(branch.ends.values())
    spec = builder.nodes.get(name)
    declared = tuple(spec.ends) if spec is not None and spec.ends else ()
    targets.update(declared)
    if spec is not None and spec.error_handler_node:
        targets.add(spec.error_handler_node)
    found = findings.get(name)
    if found is not None:
        targets.update(found.gotos)
        if (found.goto_any or found.gotos) and not declared:
            anywhere = anywhere or "it returns a Command that no annotation describes"
    if anywhere:
        targets.update((*findings, END))
    nodes = tuple(each for each in findings if each in targets)
    ends = END in targets or not targets
    return Exits(nodes, anywhere, ends, parent=found is not None and found.goto_parent)


def paths(start: str, graph: Mapping[str, Exits]) -> dict[str, tuple[str, ...]]:
    """Return a shortest way from `start` to every node that can come after it, `start` left out unless it returns."""
    found: dict[str, tuple[str, ...]] = {}
    waiting: list[tuple[str, ...]] = [(name,) for name in graph[start].nodes]
    for way in waiting:  # grows while it is read: breadth first
        if way[-1] not in found:
            found[way[-1]] = way
            waiting.extend((*way, name) for name in graph[way[-1]].nodes)
    return found
