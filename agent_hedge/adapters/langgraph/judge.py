"""From what was found to what may be duplicated: the two units, and the two readings of the bar (R9)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from agent_hedge.adapters.langgraph.findings import Findings
from agent_hedge.adapters.langgraph.report import ToolReport
from agent_hedge.core.ports import EffectSource
from agent_hedge.core.step import Effect
from agent_hedge.tools.bound import judged

SpecOf = Callable[[Any], Any]
"""Returns what a tool's own annotation says (an object with `effect`, better with `static`), or None."""


class Judge:
    """Asks for effects and turns findings into reasons. It never allows what it cannot see."""

    def __init__(self, effects: EffectSource, spec_of: SpecOf | None) -> None:
        self._effects = effects
        self._spec_of = spec_of

    def tools(self, findings: Findings) -> tuple[ToolReport, ...]:
        """Return the tools that can run inside, with their effects; the registry's word comes first."""
        found = []
        for use in findings.tools.values():
            spec = self._spec_of(use.tool) if self._spec_of is not None else None
            effect = self._effects.effect(use.name, use.namespace)  # after a registry has heard of this very tool
            if spec is not None and effect is Effect.UNKNOWN:
                effect = Effect(getattr(spec, "static", spec.effect))
            barred = not effect.repeatable or getattr(spec, "repeat_allowed", True) is False
            found.append(ToolReport(use.name, use.namespace, effect, use.how, barred))
        return tuple(found)

    def server_side(self, findings: Findings) -> tuple[ToolReport, ...]:
        """Return the tools that run inside the model call: no fence stands before them, so they may only read."""
        found = []
        for tool in findings.server_side:
            effect = judged(tool, self._effects)
            how = "runs inside the model call"
            found.append(ToolReport(tool.name, tool.namespace, effect, how, effect is not Effect.READ_ONLY))
        return tuple(found)

    def of_model(self, findings: Findings) -> tuple[str, ...]:
        """Return why a model call in there must not be duplicated: only what the provider runs happens twice."""
        return _once(
            f"the server-side tool {tool.full_name} is {tool.effect}"
            for tool in self.server_side(findings)
            if tool.barred
        )

    def of_node(self, findings: Findings) -> tuple[str, ...]:
        """Return why the whole node must not be duplicated."""
        return _once(
            (
                *self.hazards(findings),
                *(f"it may interrupt: {where}" for where in findings.interrupts),
                *(f"persistent memory: {what}" for what in findings.memory),
                *(f"it runs the task {name}" for name in findings.tasks),
                *(["it writes to the store"] if findings.store_writes else []),
            )
        )

    def hazards(self, findings: Findings) -> tuple[str, ...]:
        """Return the tools that must not run twice and everything that could hide one."""
        return _once(
            (
                *(_why(tool) for tool in self.tools(findings) if tool.barred),
                *self.of_model(findings),
                *(f"cannot see {spot}" for spot in findings.blind),
            )
        )


def _why(tool: ToolReport) -> str:
    if tool.effect.repeatable:
        return f"{tool.full_name} may not be repeated"
    return f"{tool.full_name} is {tool.effect}"


def _once(reasons: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(reasons))


def along(way: Sequence[str], reasons: Iterable[str]) -> list[str]:
    """Say through which nodes a reason is reached."""
    return [f"{reason}, reached by {' -> '.join(way)}" if way else reason for reason in reasons]
