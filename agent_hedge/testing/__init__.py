"""The public test kit: virtual time for whole agents, and a pytest plugin.

Names are imported at first use, so that the pytest plugin, which every pytest session loads, costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_hedge.testing.clock import Deadlock, VirtualClock, VirtualTimeLoop, run_virtual

__all__ = ["Deadlock", "VirtualClock", "VirtualTimeLoop", "run_virtual"]

_HOMES = {
    "Deadlock": "clock",
    "VirtualClock": "clock",
    "VirtualTimeLoop": "clock",
    "run_virtual": "clock",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
