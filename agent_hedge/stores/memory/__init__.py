"""In-memory twins of every store port: a product of their own (`Hedger()` without a store) and the model of the rest.

They live as long as the process: what they promise holds across threads and tasks, not across a crash.
"""

from __future__ import annotations

from agent_hedge.stores.memory.claims import MemoryClaims
from agent_hedge.stores.memory.effects import MemoryEffects
from agent_hedge.stores.memory.runs import MemoryRuns
from agent_hedge.stores.memory.slices import MemorySlices
from agent_hedge.stores.memory.steps import MemorySteps
from agent_hedge.stores.memory.switches import MemorySwitches

__all__ = [
    "MemoryClaims",
    "MemoryEffects",
    "MemoryRuns",
    "MemorySlices",
    "MemorySteps",
    "MemoryStores",
    "MemorySwitches",
    "memory_stores",
]


class MemoryStores:
    """`Stores` in memory."""

    def __init__(self) -> None:
        self.effects = MemoryEffects()
        self.claims = MemoryClaims()
        self.runs = MemoryRuns()
        self.steps = MemorySteps()
        self.slices = MemorySlices()
        self.switches = MemorySwitches()

    async def open(self) -> None:
        """Nothing to open."""

    async def close(self) -> None:
        """Nothing is held open."""


def memory_stores() -> MemoryStores:
    """Return a fresh set of empty stores."""
    return MemoryStores()
