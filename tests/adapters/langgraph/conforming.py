"""The one assertion of the conformance suite: hedged equals unhedged, with each attempt winning in turn."""

from __future__ import annotations

from typing import Any

from tests.adapters.langgraph.graph_kit import Scenario, Unit, play

HEDGED: tuple[Unit, ...] = ("model", "node")


def conforms(
    scenario: Scenario,
    *,
    hedges_at_model: bool = True,
    hedges_at_node: bool = True,
    units: tuple[Unit, ...] = HEDGED,
) -> None:
    """Run the scenario unhedged, wrapped but unhedged, and hedged at each unit with each attempt winning."""
    expected, _ = play(scenario, "plain")
    for unit in units:
        for winner in (None, 0, 1):
            seen, kit = play(scenario, unit, winner)
            assert seen == expected, f"unit={unit} winner={winner}: {first_difference(seen, expected)}"
            assert kit.unended == 0, f"unit={unit} winner={winner}: attempts are left"
            should = winner is not None and (hedges_at_model if unit == "model" else hedges_at_node)
            assert (kit.hedges > 0) == should, f"unit={unit} winner={winner}: {kit.hedges} hedges"


def first_difference(seen: Any, expected: Any, path: str = "") -> str:
    """Say where two plain data differ first."""
    if isinstance(seen, dict) and isinstance(expected, dict):
        for key in [*expected, *(key for key in seen if key not in expected)]:
            if key not in seen or key not in expected:
                return f"{path}.{key} is only in {'expected' if key in expected else 'seen'}"
            if seen[key] != expected[key]:
                return first_difference(seen[key], expected[key], f"{path}.{key}")
    if isinstance(seen, list) and isinstance(expected, list):
        for index, (one, other) in enumerate(zip(seen, expected, strict=False)):
            if one != other:
                return first_difference(one, other, f"{path}[{index}]")
        longer = seen[len(expected) :] or expected[len(seen) :]
        return f"{path} has {len(seen)} items, not {len(expected)}: {str(longer)[:500]}"
    return f"{path}: {str(seen)[:500]} != {str(expected)[:500]}"
