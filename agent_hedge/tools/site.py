"""Where a guarded call stands: in which run, thread, step and message history. Filled in by an adapter.

The rules of torn history (R11) are here, as pure functions. After a crash the model's step may run again and name the
same payment with another call id and other words. So an earlier claim has to be *known* to the history that led to
this call, or the call is in doubt.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Frame(NamedTuple):
    """One graph around the call, outermost first. `execution` is unique per run of that graph in this process."""

    execution: str
    node: str
    step: int
    path: str
    task: str
    attempt: int

    @property
    def place(self) -> tuple[str, int, str]:
        """What stays the same when the step runs again in another process (`task` does not)."""
        return self.node, self.step, self.path


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a call stands. `remaining`: seconds to the run's deadline. `born`: epoch of the state it came from."""

    run_key: str = ""
    generation: int = 0
    thread: str = ""
    tenant: str = ""
    principal: str = ""
    call_id: str = ""
    frames: tuple[Frame, ...] = ()
    durability: str = ""
    persistent: bool = False
    """Whether a checkpointer keeps the thread."""
    history: Mapping[str, int] = field(default_factory=dict)
    """How often each call id occurs in the messages of the state."""
    siblings: frozenset[str] = frozenset()
    """Call ids of the message that asked for this call."""
    place_key: str = ""
    """What names a call within its place where no message does (`call_id` then only says where it came from)."""
    remaining: float = math.inf
    born: float = math.inf

    @property
    def places(self) -> tuple[tuple[str, int, str], ...]:
        return tuple(frame.place for frame in self.frames)


def goes_forward(before: tuple[Frame, ...], now: tuple[Frame, ...], *, persistent: bool) -> bool:
    """Whether `now` follows `before` in one life of this process, so that nothing can be torn between the two.

    False where a step runs again: by a retry at any depth, or in a later invocation that has gone back.
    """
    for depth, (old, new) in enumerate(zip(before, now, strict=False)):
        if old.execution != new.execution:
            return depth > 0 or not persistent or old.step < new.step
        if old.step != new.step:
            return old.step < new.step
        if old.task != new.task:
            return True
        if old.attempt != new.attempt:
            return False
    return True


def durable_since(before: tuple[Frame, ...], site: Site) -> bool:
    """Whether a later step under ``durability="sync"`` proves that the step of `before` is in the checkpointer."""
    if not (before and site.frames and site.persistent and site.durability == "sync"):
        return False
    old, new = before[0], site.frames[0]
    return old.execution == new.execution and old.step < new.step
