"""Switches in memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from agent_hedge.core.stores import Switch


class MemorySwitches:
    """A `SwitchStore` in memory. `epoch` gives epoch seconds."""

    def __init__(self, *, epoch: Callable[[], float] = time.time) -> None:
        self._epoch = epoch
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, str], Switch] = {}

    async def switches(self) -> Sequence[Switch]:
        now = self._epoch()
        with self._lock:
            return [row for row in self._rows.values() if row.until is None or row.until > now]

    async def set(self, switch: Switch) -> None:
        with self._lock:
            self._rows[switch.scope_kind, switch.scope] = switch
