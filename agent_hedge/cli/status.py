"""``agent-hedge status``: what the store says of the fleet now, on one screen."""

from __future__ import annotations

import json as json_format
import time
from collections import Counter
from typing import Any

import typer

from agent_hedge.cli.common import JsonOption, SchemaOption, StoreOption, with_stores
from agent_hedge.cli.report import printable
from agent_hedge.core.stores import ClaimState, Stores

HOUR_S = 3600.0
LIMIT = 200_000
"""Steps and claims that are looked at."""
_STRICTNESS = ("on", "shadow", "off")


def status(store: StoreOption = "", schema: SchemaOption = None, json: JsonOption = False) -> None:
    """Say which mode is in force, what the last hour was like, and what waits for a person."""
    data = with_stores(store, schema, read)
    if json:
        typer.echo(json_format.dumps(data, indent=2))
        return
    for line in lines(data):
        typer.echo(printable(line))


async def read(stores: Stores) -> dict[str, Any]:
    """Return the state as plain data."""
    steps = await stores.steps.since(time.time() - HOUR_S, LIMIT)
    switches = await stores.switches.switches()
    in_doubt = await stores.claims.recent(LIMIT, states=(ClaimState.IN_DOUBT,))
    fleet = [switch.mode for switch in switches if switch.scope_kind == "fleet" and switch.mode in _STRICTNESS]
    hedges = sum(step["hedges"] or 0 for step in steps)
    refusals = Counter(step["reason"] for step in steps if step["decision"] == "refused" and step["reason"])
    return {
        "mode": max(fleet, key=_STRICTNESS.index, default="on"),
        "switches": [
            {"kind": one.scope_kind, "scope": one.scope, "mode": one.mode, "reason": one.reason, "until": one.until}
            for one in switches
        ],
        "last_hour": {
            "steps": len(steps),
            "hedges": hedges,
            "dispatch_rate": hedges / len(steps) if steps else None,
            "outcomes": dict(Counter(step["outcome"] or "open" for step in steps)),
            "refusals": dict(refusals.most_common()),
        },
        "claims_in_doubt": len(in_doubt),
    }


def lines(data: dict[str, Any]) -> list[str]:
    """Return the state as lines for a terminal."""
    hour = data["last_hour"]
    said = [f"mode {data['mode']} (as the store has it; code and environment may be stricter)"]
    for switch in data["switches"]:
        why = f": {switch['reason']}" if switch["reason"] else ""
        said.append(f"  {switch['kind']} {switch['scope'] or 'all'} is {switch['mode']}{why}")
    if hour["steps"]:
        ends = ", ".join(f"{count} {outcome}" for outcome, count in sorted(hour["outcomes"].items()))
        said.append(f"last hour: {hour['steps']} steps ({ends})")
        said.append(f"  {hour['hedges']} hedges, {hour['dispatch_rate']:.1%} of the steps")
        said += [f"  {count} refused: {reason}" for reason, count in hour["refusals"].items()]
    else:
        said.append("last hour: no step was recorded")
    waiting = data["claims_in_doubt"]
    said.append(f"side effects in doubt: {waiting}" + (" (agent-hedge ledger list)" if waiting else ""))
    return said
