"""Hedged LLM steps for LangGraph agents: cut the tail of long runs, and run no side effect twice.

Names are imported at first use (PEP 562), so that what is not used costs nothing: the pytest plugin, which every
pytest session loads, imports this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_hedge.core.scope import current_attempt, current_run
    from agent_hedge.core.step import Effect
    from agent_hedge.errors import (
        AllAttemptsFailed,
        DeadlineExceeded,
        EffectBarred,
        EffectInDoubt,
        HedgeError,
    )
    from agent_hedge.gates.budget import FleetBudget
    from agent_hedge.hedger import Hedger
    from agent_hedge.policies import Fixed, Never, Planned, Quantile
    from agent_hedge.targets import Target
    from agent_hedge.tools.effect import tool_effect

__version__ = "0.1.0"

__all__ = [
    "AllAttemptsFailed",
    "DeadlineExceeded",
    "Effect",
    "EffectBarred",
    "EffectInDoubt",
    "Fixed",
    "FleetBudget",
    "HedgeError",
    "Hedger",
    "Never",
    "Planned",
    "Quantile",
    "Target",
    "current_attempt",
    "current_run",
    "tool_effect",
]

_HOMES = {
    "AllAttemptsFailed": "errors",
    "DeadlineExceeded": "errors",
    "Effect": "core.step",
    "EffectBarred": "errors",
    "EffectInDoubt": "errors",
    "Fixed": "policies",
    "FleetBudget": "gates.budget",
    "HedgeError": "errors",
    "Hedger": "hedger",
    "Never": "policies",
    "Planned": "policies",
    "Quantile": "policies",
    "Target": "targets",
    "current_attempt": "core.scope",
    "current_run": "core.scope",
    "tool_effect": "tools.effect",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
