"""In-memory twins of every store port: a product of their own (`Hedger()` without a store) and the model of the rest.

They live as long as the process: what they promise holds across threads and tasks, not across a crash.
"""

from __future__ import annotations

from agent_hedge.core.ports import Stores
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
    "MemorySwitches",
    "memory_stores",
]


def memory_stores() -> Stores:
    """Return a fresh set of empty stores."""

    async def close() -> None:
        """Nothing is held open."""

    return Stores(
        effects=MemoryEffects(),
        claims=MemoryClaims(),
        runs=MemoryRuns(),
        steps=MemorySteps(),
        slices=MemorySlices(),
        switches=MemorySwitches(),
        close=close,
    )
