"""What was read from one function's body: facts, in the order of its source."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from agent_hedge.adapters.langgraph.findings import BlindSpot


@dataclass(frozen=True, slots=True)
class Reached:
    """An object the body may use. `via`: what may still change before it does."""

    thing: Any
    name: str
    called: bool
    via: BlindSpot | None = None


@dataclass(slots=True)
class Body:
    """All that one function reaches, and what of it cannot be seen."""

    where: str
    """The function's qualified name."""
    reached: list[Reached] = field(default_factory=list)
    blind: dict[BlindSpot, None] = field(default_factory=dict)
    bound: list[Any] = field(default_factory=list)
    """Tools given to a model in the body: objects and literal dicts."""
    models_made: dict[str, None] = field(default_factory=dict)
    """Class names of chat models made in the body."""
    store_reads: bool = False
    store_writes: bool = False
    gotos: dict[str, None] = field(default_factory=dict)
    goto_any: bool = False
    goto_parent: bool = False

    def cannot_see(self, kind: str, why: str) -> None:
        self.blind[BlindSpot(kind, why, self.where)] = None
