"""What a hedger knows of graphs: those it was shown, the verdicts on their nodes, the runs their settings open."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.graph import StateGraph

from agent_hedge.adapters.langgraph.ahead import Steps, agreed, ahead_of
from agent_hedge.adapters.langgraph.context import NODE, read_context
from agent_hedge.adapters.langgraph.explain import Graph, explain
from agent_hedge.adapters.langgraph.judge import SpecOf
from agent_hedge.adapters.langgraph.report import SEPARATOR, Bar, Explanation, NodeReport
from agent_hedge.adapters.langgraph.seed import Asked, OpenRun, Seeds
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import EffectSource, Refused
from agent_hedge.core.scope import Run, StepContext, run_scope
from agent_hedge.core.step import Ahead, Effect
from agent_hedge.errors import ConfigurationError

UNIT = "unit"
"""The name a single node is explained under."""
LIMIT = 256
"""Graphs remembered at one time, for those who build one per request; the one shown first is forgotten first."""


class Graphs:
    """The graphs a hedger has been shown.

    A verdict is taken when a graph is shown: show it again after its tools have been annotated. Nodes of several
    graphs that cannot be told apart when they run share the strictest verdict.
    """

    def __init__(self, effects: EffectSource, bar: Bar, open_run: OpenRun, spec_of: SpecOf | None = None) -> None:
        self._effects = effects
        self._spec_of = spec_of
        self._bar: Bar = bar
        self._seeds = Seeds(open_run)
        self._shown: dict[int, tuple[Graph, dict[Bar, Explanation]]] = {}
        self._verdicts: dict[tuple[Bar, str, tuple[str, ...]], Refused | None] = {}
        self._steps: dict[tuple[str, tuple[str, ...]], Steps] = {}

    # --- graphs -----------------------------------------------------------------------------------------------------

    def explain(self, graph: Graph, bar: Bar | None = None) -> Explanation:
        """Explain a graph and remember it."""
        explanation = self._explain(graph, bar or self._bar)
        self._shown.pop(id(graph), None)
        self._shown[id(graph)] = (graph, {explanation.bar: explanation})
        if len(self._shown) > LIMIT:
            del self._shown[next(iter(self._shown))]
        self._forget()
        return explanation

    def explain_unit(self, action: Any) -> Explanation:
        """Explain one node on its own."""
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(dict)
        builder.add_node(UNIT, action, input_schema=dict)
        return self._explain(builder, "unit")

    def judge_again(self) -> None:
        """Explain every graph that was shown anew, because what is known of tools has changed."""
        for known_as, (graph, known) in list(self._shown.items()):
            self._shown[known_as] = graph, {bar: self._explain(graph, bar) for bar in known}
        self._forget()

    def _forget(self) -> None:
        self._verdicts.clear()
        self._steps.clear()

    def _explain(self, graph: Graph, bar: Bar) -> Explanation:
        return explain(graph, effects=self._effects, bar=bar, spec_of=self._spec_of)

    def report(self, node: str, around: Sequence[str], bar: Bar) -> list[NodeReport]:
        """Return what is known of a node under this name, from every graph shown."""
        name = SEPARATOR.join((*around, node))
        readings = [self._reading(graph, known, bar) for graph, known in self._shown.values()]
        return [report for explanation in readings for report in explanation.nodes if report.name == name]

    def verdict(self, node: str, around: tuple[str, ...], bar: Bar | None = None) -> Refused | None:
        """Return why model calls of a node must not be hedged; where nothing is known, only `downstream` bars them."""
        key = (bar or self._bar, node, around)
        if key not in self._verdicts:
            self._verdicts[key] = self._judge(*key)
        return self._verdicts[key]

    def _judge(self, bar: Bar, node: str, around: tuple[str, ...]) -> Refused | None:
        reports = self.report(node, around, bar)
        if not reports and bar == "downstream":
            return Refused(Reason.GRAPH_UNSEEN, f"no node `{node}` was explained")
        reasons = [reason for report in reports for reason in report.verdicts["model"].reasons]
        return Refused(Reason.BARRED, reasons[0]) if reasons else None

    def _reading(self, graph: Graph, known: dict[Bar, Explanation], bar: Bar) -> Explanation:
        if bar not in known:
            known[bar] = self._explain(graph, bar)
        return known[bar]

    # --- steps and runs ---------------------------------------------------------------------------------------------

    def context(self, config: Mapping[str, Any], bar: Bar | None = None) -> StepContext | None:
        """Return where the node of this ambient configuration stands, with its verdict."""
        if bar is None or bar == self._bar:
            return read_context(config, self.verdict, self.ahead)
        return read_context(config, lambda node, around: self.verdict(node, around, bar), self.ahead)

    def ahead(self) -> Ahead | None:
        """Return what the graphs shown say of the steps ahead of the node around this code."""
        config = var_child_runnable_config.get()  # not kept: it leads to the graph's loop
        if not self._shown or config is None or NODE not in (config.get("metadata") or {}):
            return None
        return ahead_of(config, self._steps_of)

    def _steps_of(self, node: str, around: tuple[str, ...]) -> Steps:
        key = (node, around)
        if key not in self._steps:
            self._steps[key] = agreed([report.steps for report in self.report(node, around, self._bar)])
        return self._steps[key]

    def run(self) -> Run | None:
        """Return the run around this code: the open scope, else the one that the ambient configuration asks for."""
        run = run_scope.get()
        if run is None and (asked := self.run_asked_for()) is not None:
            run = asked.run
        return run

    def run_asked_for(self) -> Asked | None:
        """Return the run that the ambient configuration asks for; None where it asks for none, and outside any node.

        Raises `ConfigurationError` for settings that cannot be meant.
        """
        config = var_child_runnable_config.get()
        if config is None or (config.get("metadata") or {}).get(NODE) is None:
            return None
        return self._seeds.run_for(config)


def hazards(report: NodeReport, effect: Effect) -> tuple[str, ...]:
    """Return why a node must not be raced as a whole, given its declared effect.

    The declaration stands for what cannot be seen in the node, and for its store writes (they pass the fence). What
    is seen still bars it: tools, interrupts, memory, tasks.
    """
    if not effect.repeatable:
        return (f"its effect is {effect}",)
    declared = {f"cannot see {spot}" for spot in report.cannot_see} | {"it writes to the store"}
    return tuple(reason for reason in report.verdicts["node"].reasons if reason not in declared)


def check_bar(bar: object) -> None:
    """Refuse what is not a reading of the bar."""
    if bar not in (None, "unit", "downstream"):
        raise ConfigurationError(f"bar must be 'unit' or 'downstream', got {bar!r}")
