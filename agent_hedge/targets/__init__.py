"""Where can an attempt go? Targets with their failure domains, and the choice of an independent one."""

from agent_hedge.targets.choose import Independent
from agent_hedge.targets.deadline_headers import DeadlineHeaders
from agent_hedge.targets.route import SPELL_S, Stay
from agent_hedge.targets.target import Copy, Price, Target, as_targets, places

__all__ = ["SPELL_S", "Copy", "DeadlineHeaders", "Independent", "Price", "Stay", "Target", "as_targets", "places"]
