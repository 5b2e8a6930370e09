"""`explain(graph)`: what each node of a graph may do, before it runs (R9).

Static analysis can only veto. A node that is not barred here still needs its declaration, and the fence at run time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol

from agent_hedge.adapters.langgraph.ahead import Steps
from agent_hedge.adapters.langgraph.edges import Exits, exits, paths
from agent_hedge.adapters.langgraph.face import is_raced
from agent_hedge.adapters.langgraph.findings import BlindSpot, Findings
from agent_hedge.adapters.langgraph.judge import Judge, SpecOf, along
from agent_hedge.adapters.langgraph.origin import home_of
from agent_hedge.adapters.langgraph.private import default_error_handler
from agent_hedge.adapters.langgraph.report import SEPARATOR, Bar, Explanation, NodeReport, UnitVerdict
from agent_hedge.adapters.langgraph.walk import NamespaceOf, Walker, namespace_of
from agent_hedge.core.ports import EffectSource
from agent_hedge.errors import ConfigurationError
from agent_hedge.planning.steps import added, further, longest_paths

Graph = StateGraph[Any, Any, Any, Any] | Pregel[Any, Any, Any, Any]

DEFAULT_HANDLER = "__default_error_handler__"
"""The node that `set_node_defaults(error_handler=...)` becomes when the graph is compiled."""


def explain(
    graph: Graph,
    *,
    effects: EffectSource,
    bar: Bar = "unit",
    spec_of: SpecOf | None = None,
    namespace_of: NamespaceOf = namespace_of,
) -> Explanation:
    """Explain a `StateGraph`, a compiled graph or an ``@entrypoint`` workflow.

    `effects` is asked for every tool by name and namespace. `spec_of` (an object -> what its annotation comes to, or
    None) is asked first and counts where `effects` says UNKNOWN; of a registry it is `Registry.spec_of`: a tool that is
    not the one that was pinned is stale. `namespace_of` tells a tool's namespace.

    Raises `ConfigurationError` when `graph` is not a graph, or `bar` not a reading of the bar.
    """
    if bar not in ("unit", "downstream"):
        raise ConfigurationError(f'bar must be "unit" or "downstream", not {bar!r}')
    if not isinstance(graph, StateGraph | Pregel):
        raise ConfigurationError(f"{type(graph).__name__} is not a graph: pass a StateGraph, or what it compiles to")
    seen = _Explorer(namespace_of).graph(graph)
    reports = tuple(_reports(seen, Judge(effects, spec_of), bar, prefix=(), after=(), then=0))
    name = graph.name if isinstance(graph, Pregel) else "graph"
    return Explanation(name, bar, reports, seen.exits[START].nodes if START in seen.exits else tuple(seen.nodes))


@dataclass(slots=True)
class _Node:
    """What one node holds: its own code, that of its branches, and the graphs it runs."""

    inside: Findings
    routing: Findings
    nested: list[_Graph] = field(default_factory=list)
    is_graph: bool = False
    steps: int | None = 0
    """LLM steps it makes, on its longest path, if it asks no model twice; None: not known."""


@dataclass(slots=True)
class _Graph:
    nodes: dict[str, _Node]
    exits: dict[str, Exits]

    def longest(self) -> dict[str, int | None]:
        """Return the LLM steps from each node to the end of this graph."""
        steps = {name: node.steps for name, node in self.nodes.items()}
        return longest_paths(steps, {name: self.exits[name].nodes for name in self.nodes})

    @property
    def steps(self) -> int | None:
        """LLM steps on its longest path; None: not known, as of nodes that are wired by channels."""
        return further(self.longest(), self.exits[START].nodes) if START in self.exits else None


class _Explorer:
    """Walks graphs within graphs; one that contains itself is met once."""

    def __init__(self, namespace_of: NamespaceOf) -> None:
        self._namespace_of = namespace_of
        self._open: list[int] = []

    def graph(self, graph: Graph) -> _Graph:
        self._open.append(id(graph))
        try:
            builder = graph if isinstance(graph, StateGraph) else getattr(graph, "builder", None)
            if isinstance(builder, StateGraph):
                return self._state_graph(builder)
            assert isinstance(graph, Pregel)
            nodes = {name: self._node(node.bound) for name, node in graph.nodes.items() if name != START}
            anywhere = "" if len(nodes) == 1 else "its nodes are wired by channels"
            following = tuple(nodes) if anywhere else ()
            return _Graph(nodes, {name: Exits(following, anywhere, ends=True) for name in nodes})
        finally:
            self._open.pop()

    def _state_graph(self, builder: StateGraph[Any, Any, Any, Any]) -> _Graph:
        nodes = {
            name: self._node(spec.runnable, builder.branches.get(name, {})) for name, spec in builder.nodes.items()
        }
        handler = default_error_handler(builder)
        waits = handler is not None and DEFAULT_HANDLER not in nodes
        if waits:
            nodes[DEFAULT_HANDLER] = self._node(handler)
        inside = {name: node.inside for name, node in nodes.items()}
        return _Graph(nodes, exits(builder, inside, DEFAULT_HANDLER if waits else ""))

    def _node(self, runnable: Any, branches: Mapping[str, Any] | None = None) -> _Node:
        home = home_of(runnable)
        inside, routing = (Walker(namespace_of=self._namespace_of, home=home) for _ in range(2))
        inside.visit(runnable)
        for branch in (branches or {}).values():
            routing.visit(branch.path)
        node = _Node(inside.findings, routing.findings, is_graph=isinstance(runnable, PregelProtocol))
        node.steps = sum(any(model.hedged for model in part.models) for part in (node.inside, node.routing))
        for findings in (node.inside, node.routing):
            for graph, in_tool in findings.subgraphs:
                self._nest(node, findings, graph, in_tool)
        if is_raced(runnable):  # its models are not hedged a second time
            node.steps = 1
        return node

    def _nest(self, node: _Node, findings: Findings, graph: Pregel[Any, Any, Any, Any], in_tool: bool) -> None:
        if id(graph) in self._open:
            findings.blind[BlindSpot("recursion", f"the graph `{graph.name}` runs itself")] = None
            node.steps = None
            return
        nested = self.graph(graph)
        node.steps = added(node.steps, nested.steps)
        node.nested.append(nested)
        for inner in nested.nodes.values():
            for part in (inner.inside, inner.routing):
                blind = dict(findings.blind)
                findings.add_subgraph(part)
                if in_tool:  # a tool's declared effect stands for what cannot be seen in it
                    findings.blind = blind


def _reports(
    graph: _Graph, judge: Judge, bar: Bar, *, prefix: tuple[str, ...], after: Sequence[str], then: int | None
) -> Iterator[NodeReport]:
    """Yield the nodes of a graph, each followed by those nested in it.

    `after`: hazards once this graph has ended; `then`: LLM steps (None: not known).
    """
    longest = graph.longest()
    hazards = {name: (*judge.hazards(node.inside), *judge.hazards(node.routing)) for name, node in graph.nodes.items()}
    for name, node in graph.nodes.items():
        ways = paths(name, graph.exits)
        later = [reason for other, way in ways.items() for reason in along((name, *way), hazards[other])]
        later += [*judge.hazards(node.routing), *after]
        downstream = (*hazards[name], *later) if bar == "downstream" else ()
        steps = Steps(node.steps, added(longest[name], then))
        yield _report(SEPARATOR.join((*prefix, name)), node, steps, graph.exits[name], judge, downstream)
        around = later if node.is_graph else [*hazards[name], *later]
        beyond = added(further(longest, graph.exits[name].nodes), then)
        for nested in node.nested:
            yield from _reports(nested, judge, bar, prefix=(*prefix, name), after=around, then=beyond)


def _report(
    name: str, node: _Node, steps: Steps, leads_to: Exits, judge: Judge, downstream: Sequence[str]
) -> NodeReport:
    inside, routing = node.inside, node.routing
    of_model = (*judge.of_model(inside), *judge.of_model(routing), *downstream)
    of_node = (*judge.of_node(inside), *downstream)
    models = tuple(dict.fromkeys((*inside.models, *routing.models)))
    tools = dict.fromkeys((*judge.tools(inside), *judge.tools(routing)))
    return NodeReport(
        name=name,
        tools=tuple(tools),
        server_side=tuple(dict.fromkeys((*judge.server_side(inside), *judge.server_side(routing)))),
        offered=tuple(dict.fromkeys((*inside.bound, *routing.bound))),
        models=models,
        cannot_see=tuple(dict.fromkeys((*inside.blind, *routing.blind))),
        interrupts=tuple(inside.interrupts),
        memory=tuple(inside.memory),
        tasks=tuple(inside.tasks),
        store="writes" if inside.store_writes else "reads" if inside.store_reads else "",
        notes=tuple(_notes(inside, of_node)),
        steps=steps,
        exits=leads_to,
        verdicts={
            "model": UnitVerdict("model", tuple(dict.fromkeys(of_model))),
            "node": UnitVerdict("node", tuple(dict.fromkeys(of_node))),
        },
    )


def _notes(findings: Findings, of_node: Sequence[str]) -> Iterator[str]:
    yield from findings.notes
    if not findings.models:
        yield 'no model is seen here: there is nothing to hedge by unit="model"'
        if not of_node:
            yield 'no first token is seen here: racing the node needs trigger="total"'
    elif not any(model.hedged for model in findings.models):
        yield "its models are plain: wrap one with hedger.chat_model(...) to hedge its calls"
