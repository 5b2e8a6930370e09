"""Hedged LLM steps for LangGraph agents: the tail of long runs cut, and no side effect run twice."""

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
from agent_hedge.policies import Fixed, Never, Quantile
from agent_hedge.targets import Target

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
    "Quantile",
    "Target",
    "current_attempt",
    "current_run",
]
