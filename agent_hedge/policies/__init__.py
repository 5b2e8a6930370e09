"""When is the next attempt due? Frozen values, each in a file of its own; none knows a gate or a target."""

from agent_hedge.policies.fixed import Fixed
from agent_hedge.policies.never import Never
from agent_hedge.policies.planned import Planned
from agent_hedge.policies.quantile import Quantile

__all__ = ["Fixed", "Never", "Planned", "Quantile"]
