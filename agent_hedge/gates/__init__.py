"""May an attempt start, and what is learnt from its end? Each gate is one capability and knows none of the others.

The order in which a race should ask them: deadline, effect, mode, drain, store, health, budget, caps, control,
meter. What takes something stands behind what only looks, so that a refusal seldom has to give anything back;
`ControlGate` refuses what would have been hedged, so it comes when all others have said yes; the meter counts what is
really dispatched.
"""

from agent_hedge.gates.budget import FleetBudget
from agent_hedge.gates.caps import CapGate, dearest
from agent_hedge.gates.deadline import DeadlineGate
from agent_hedge.gates.drain import DrainGate
from agent_hedge.gates.effect import EffectGate
from agent_hedge.gates.fleet import Fleet
from agent_hedge.gates.health import Health
from agent_hedge.gates.meter import Meter
from agent_hedge.gates.mode import ControlGate, Mode, ModeGate, Modes
from agent_hedge.gates.store import LOST_S, StoreGate

__all__ = [
    "LOST_S",
    "CapGate",
    "ControlGate",
    "DeadlineGate",
    "DrainGate",
    "EffectGate",
    "Fleet",
    "FleetBudget",
    "Health",
    "Meter",
    "Mode",
    "ModeGate",
    "Modes",
    "StoreGate",
    "dearest",
]
