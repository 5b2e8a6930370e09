"""What a walk through the objects behind one node finds: facts without judgement."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agent_hedge.tools.bound import BoundTool


@dataclass(frozen=True, slots=True)
class BlindSpot:
    """Something in a node that cannot be seen before it runs: a word for it, a sentence, and the function it is in."""

    kind: str
    why: str
    where: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}{f' (in {self.where})' if self.where else ''}"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool that may run inside the node, and how it was found."""

    name: str
    namespace: str
    how: str
    tool: Any


@dataclass(frozen=True, slots=True)
class ModelUse:
    """A model the node holds. A model that is not hedged is just called: nothing of ours happens to it."""

    name: str
    hedged: bool


@dataclass(slots=True)
class Findings:
    """Everything one walk found, in the order it was found (dicts serve as ordered sets)."""

    tools: dict[tuple[str, str], ToolUse] = field(default_factory=dict)
    bound: dict[str, None] = field(default_factory=dict)
    server_side: dict[BoundTool, None] = field(default_factory=dict)
    models: dict[ModelUse, None] = field(default_factory=dict)
    blind: dict[BlindSpot, None] = field(default_factory=dict)
    interrupts: dict[str, None] = field(default_factory=dict)
    memory: dict[str, None] = field(default_factory=dict)
    tasks: dict[str, None] = field(default_factory=dict)
    store_reads: bool = False
    store_writes: bool = False
    notes: dict[str, None] = field(default_factory=dict)
    subgraphs: list[Any] = field(default_factory=list)
    gotos: dict[str, None] = field(default_factory=dict)
    """Nodes named by a constant `Command(goto=...)`."""
    goto_any: bool = False
    """A `Command` whose `goto` is known only when it runs."""
    goto_parent: bool = False
    """A `Command` for the parent graph."""

    def add_subgraph(self, other: Findings) -> None:
        """Take over what may happen in a node of a subgraph. Where it leads stays its own, but for the parent."""
        for key, use in other.tools.items():
            self.tools.setdefault(key, use)
        for mine, theirs in (
            (self.bound, other.bound),
            (self.interrupts, other.interrupts),
            (self.memory, other.memory),
            (self.tasks, other.tasks),
            (self.notes, other.notes),
        ):
            mine.update(theirs)
        self.server_side.update(other.server_side)
        self.models.update(other.models)
        self.blind.update(other.blind)
        self.store_reads |= other.store_reads
        self.store_writes |= other.store_writes
        self.goto_any |= other.goto_parent
