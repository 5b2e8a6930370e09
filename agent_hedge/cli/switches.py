"""``agent-hedge on|shadow|off``: hedging is switched in every process within two seconds, without a deploy (R21)."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from agent_hedge.cli.common import JsonOption, SchemaOption, StoreOption, show, with_stores
from agent_hedge.core.stores import Stores, Switch
from agent_hedge.errors import ConfigurationError

COLUMNS = ["scope", "name", "mode", "reason", "until"]
UNITS = {"s": 1.0, "m": 60.0, "h": 3_600.0, "d": 86_400.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)([smhd])")

TargetOption = Annotated[str, typer.Option("--target", help="Only for this target.")]
NodeOption = Annotated[str, typer.Option("--node", help="Only for this node or key.")]
TenantOption = Annotated[str, typer.Option("--tenant", help="Only for this tenant.")]
FleetOption = Annotated[str, typer.Option("--fleet", help="Only for this fleet; without any of the four: everything.")]
ReasonOption = Annotated[str, typer.Option("--reason", help="Why; shown with every refusal.")]
UntilOption = Annotated[
    str, typer.Option("--until", help="When it ends by itself: 30m, 2h, 1d, or 2026-01-31T12:00 (local time).")
]


def _command(mode: str, purpose: str) -> Callable[..., None]:
    """Return the command that switches to `mode`."""

    def switch(
        target: TargetOption = "",
        node: NodeOption = "",
        tenant: TenantOption = "",
        fleet: FleetOption = "",
        reason: ReasonOption = "",
        until: UntilOption = "",
        store: StoreOption = "",
        schema: SchemaOption = None,
        json: JsonOption = False,
    ) -> None:
        _switch(mode, _scope(target, node, tenant, fleet), reason, until, store, schema, json=json)

    switch.__name__, switch.__doc__ = mode, purpose
    return switch


on = _command(
    "on", "Take a switch back: code and environment decide again. What another switch forbids stays forbidden."
)
shadow = _command("shadow", "Decide and record hedges, and dispatch none.")
off = _command("off", "Hedge nothing. Deadlines, recoveries, the fence and the ledger stay on.")


def _scope(target: str, node: str, tenant: str, fleet: str) -> dict[str, str]:
    named = {"target": target, "node": node, "tenant": tenant, "fleet": fleet}
    return {kind: name for kind, name in named.items() if name}


def _switch(
    mode: str, scope: dict[str, str], reason: str, until: str, store: str, schema: str | None, *, json: bool
) -> None:
    if len(scope) > 1:
        raise ConfigurationError(f"a switch stands for one scope; {' and '.join(scope)} are given")
    kind, name = next(iter(scope.items()), ("fleet", ""))
    switch = Switch(scope_kind=kind, scope=name, mode=mode, reason=reason, until=instant(until, time.time()))
    show([row(one) for one in put(switch, store, schema)], COLUMNS, json=json, empty="nothing is switched")


def put(switch: Switch, store: str, schema: str | None) -> Sequence[Switch]:
    """Set a switch; return all that are in force then."""

    async def work(stores: Stores) -> Sequence[Switch]:
        await stores.switches.set(switch)
        return await stores.switches.switches()

    return with_stores(store, schema, work)


def row(switch: Switch) -> dict[str, Any]:
    """Return a switch as people read it."""
    ends = None if switch.until is None else datetime.fromtimestamp(switch.until).isoformat(timespec="seconds")
    name = switch.scope or "(all)"
    return {"scope": switch.scope_kind, "name": name, "mode": switch.mode, "reason": switch.reason, "until": ends}


def instant(text: str, now: float) -> float | None:
    """Return the epoch that a duration from now, or a local date and time, means; None for nothing.

    Raises `ConfigurationError` for what is neither, and for what is past.
    """
    if not text:
        return None
    if found := _DURATION.fullmatch(text.strip()):
        return now + float(found[1]) * UNITS[found[2]]
    try:
        until = datetime.fromisoformat(text.strip()).timestamp()
    except (ValueError, OverflowError, OSError):
        raise ConfigurationError(f"--until is 30m, 2h, 1d, or a date and time, not {text!r:.40}") from None
    if until <= now:
        raise ConfigurationError(f"--until {text!r:.40} is past")
    return until
