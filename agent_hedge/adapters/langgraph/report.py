"""The result of `explain`: what each node may do, whether it may be duplicated, and why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from agent_hedge.adapters.langgraph import mermaid
from agent_hedge.adapters.langgraph.ahead import UNKNOWN, Steps
from agent_hedge.adapters.langgraph.edges import Exits
from agent_hedge.adapters.langgraph.findings import BlindSpot, ModelUse
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Refused
from agent_hedge.core.step import Effect

Unit = Literal["model", "node"]
Bar = Literal["unit", "downstream"]
UNITS: tuple[Unit, ...] = ("model", "node")
SEPARATOR = "|"
"""Between the names of a nested node, as in LangGraph's checkpoint namespaces: no node name may hold it."""


@dataclass(frozen=True, slots=True)
class ToolReport:
    """A tool and what running it twice would do. `barred`: it keeps its unit from being duplicated (R9)."""

    name: str
    namespace: str
    effect: Effect
    how: str
    barred: bool

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    def __str__(self) -> str:
        return f"{self.full_name} ({self.effect}{', barred' if self.barred and self.effect.repeatable else ''})"

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "namespace": self.namespace,
            "effect": str(self.effect),
            "how": self.how,
            "barred": self.barred,
        }


@dataclass(frozen=True, slots=True)
class UnitVerdict:
    """Whether a unit may be duplicated, as far as can be told before it runs; `reasons` is empty iff it may."""

    unit: Unit
    reasons: tuple[str, ...] = ()

    @property
    def hedgeable(self) -> bool:
        return not self.reasons

    def __str__(self) -> str:
        if self.hedgeable:
            return "hedgeable"
        more = f" (and {len(self.reasons) - 1} more)" if len(self.reasons) > 1 else ""
        return f"barred: {self.reasons[0]}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeReport:
    """One node. `name` is its path through subgraphs, joined by ``|``."""

    name: str
    tools: tuple[ToolReport, ...] = ()
    """Tools that can run inside it."""
    server_side: tuple[ToolReport, ...] = ()
    """Tools the provider runs inside the model call."""
    offered: tuple[str, ...] = ()
    """Tools a model may ask for; they run where their calls are carried out."""
    models: tuple[ModelUse, ...] = ()
    cannot_see: tuple[BlindSpot, ...] = ()
    interrupts: tuple[str, ...] = ()
    memory: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    store: Literal["", "reads", "writes"] = ""
    notes: tuple[str, ...] = ()
    steps: Steps = UNKNOWN
    exits: Exits
    verdicts: Mapping[Unit, UnitVerdict]

    @property
    def hedged(self) -> bool:
        """Whether it holds a model of ours."""
        return any(model.hedged for model in self.models)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data with a stable order of keys and entries."""
        return {
            "name": self.name,
            "verdicts": {
                unit: {"hedgeable": self.verdicts[unit].hedgeable, "reasons": list(self.verdicts[unit].reasons)}
                for unit in UNITS
            },
            "tools": [tool.to_dict() for tool in self.tools],
            "server_side": [tool.to_dict() for tool in self.server_side],
            "offered": list(self.offered),
            "models": [{"name": model.name, "hedged": model.hedged} for model in self.models],
            "cannot_see": [{"kind": spot.kind, "why": spot.why, "where": spot.where} for spot in self.cannot_see],
            "interrupts": list(self.interrupts),
            "memory": list(self.memory),
            "tasks": list(self.tasks),
            "store": self.store,
            "notes": list(self.notes),
            "next": list(self.exits.nodes),
            "anywhere": self.exits.anywhere,
            "ends": self.exits.ends,
        }

    def __str__(self) -> str:
        lines = [self.name]
        lines += [f'  unit="{unit}"'.ljust(16) + str(self.verdicts[unit]) for unit in UNITS]
        for label, entries in self._entries():
            head = f"  {label}".ljust(16)
            lines += [f"{head if index == 0 else ' ' * 16}{entry}" for index, entry in enumerate(entries)]
        return "\n".join(lines)

    def _entries(self) -> Iterator[tuple[str, Sequence[str]]]:
        yield "tools", [f"{tool} {tool.how}" for tool in self.tools]
        yield "server-side", [str(tool) for tool in self.server_side]
        yield "offered", [", ".join(self.offered)] if self.offered else []
        yield "models", [f"{model.name}: {'hedged' if model.hedged else 'plain, not hedged'}" for model in self.models]
        yield "cannot see", [str(spot) for spot in self.cannot_see]
        yield "interrupts", self.interrupts
        yield "memory", self.memory
        yield "tasks", self.tasks
        yield "store", [self.store] if self.store else []
        yield "note", self.notes
        following = [*self.exits.nodes, *(["the end"] if self.exits.ends else [])]
        yield "next", [f"anywhere: {self.exits.anywhere}" if self.exits.anywhere else ", ".join(following)]


@dataclass(frozen=True, slots=True)
class Explanation:
    """What was seen of a graph before it ran. Static analysis can only veto: the fence still holds at run time."""

    name: str
    bar: Bar
    nodes: tuple[NodeReport, ...]
    entry: tuple[str, ...] = ()
    """Where a run begins."""
    _by_name: dict[str, list[NodeReport]] = field(default_factory=dict, repr=False, compare=False)
    """Two graphs run by one node may have nodes of the same name: at run time they cannot be told apart."""

    def __post_init__(self) -> None:
        for node in self.nodes:
            self._by_name.setdefault(node.name, []).append(node)

    def __getitem__(self, name: str) -> NodeReport:
        return self._by_name[name][0]

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    @property
    def unknown(self) -> tuple[str, ...]:
        """The tools nobody has said anything about."""
        tools = (tool for node in self.nodes for tool in (*node.tools, *node.server_side))
        return tuple(dict.fromkeys(tool.full_name for tool in tools if tool.effect is Effect.UNKNOWN))

    def verdict(self, node: str, unit: Unit = "model", *, parent: Sequence[str] = ()) -> Refused | None:
        """Return why `unit` of a node must not be duplicated, None where nothing seen speaks against it.

        `parent` holds the names of the nodes around a nested one, outermost first. A node that was never seen is
        refused as a whole, and under ``bar="downstream"`` its model calls are, too.
        """
        reports = self._by_name.get(SEPARATOR.join((*parent, node)), [])
        if not reports:
            if unit == "node" or self.bar == "downstream":
                return Refused(Reason.GRAPH_UNSEEN, f"no node `{node}` was explained")
            return None
        reasons = [reason for report in reports for reason in report.verdicts[unit].reasons]
        return Refused(Reason.BARRED, reasons[0]) if reasons else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON, the same for the same graph."""
        return {
            "graph": self.name,
            "bar": self.bar,
            "entry": list(self.entry),
            "unknown_tools": list(self.unknown),
            "nodes": [node.to_dict() for node in self.nodes],
        }

    def mermaid(self) -> str:
        """Return the graph as a Mermaid flowchart, coloured by verdict."""
        return mermaid.draw(self.name, self.entry, self.nodes)

    def __str__(self) -> str:
        reading = {
            "unit": "a tool that must not run twice bars what it runs in",
            "downstream": "a tool that must not run twice bars every node that leads to it",
        }[self.bar]
        count = f"{len(self.nodes)} node{'' if len(self.nodes) == 1 else 's'}"
        head = f'{self.name}: {count}, bar="{self.bar}" ({reading})'
        return "\n\n".join((head, *map(str, self.nodes)))
