"""``agent-hedge targets``: take a target out before it goes down, and bring it back (R21)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Annotated

import typer

from agent_hedge.cli.common import JsonOption, SchemaOption, StoreOption, show, with_stores
from agent_hedge.cli.switches import ReasonOption, UntilOption, instant, put, row
from agent_hedge.core.checks import NAME_LIMIT, check_text
from agent_hedge.core.stores import Stores, Switch

app = typer.Typer(
    name="targets", help="Targets that an operator has switched or drained.", no_args_is_help=True, add_completion=False
)

COLUMNS = ["name", "mode", "reason", "until"]
NameArgument = Annotated[str, typer.Argument(metavar="TARGET", help="The name of the target.")]


@app.command("list")
def list_(store: StoreOption = "", schema: SchemaOption = None, json: JsonOption = False) -> None:
    """Show the targets that are drained or switched; what each process knows of their health is in its status."""

    async def work(stores: Stores) -> Sequence[Switch]:
        return await stores.switches.switches()

    _show(with_stores(store, schema, work), json=json)


@app.command()
def drain(
    target: NameArgument,
    reason: ReasonOption = "",
    until: UntilOption = "",
    store: StoreOption = "",
    schema: SchemaOption = None,
    json: JsonOption = False,
) -> None:
    """Send nothing there that can go elsewhere; what runs there is left in peace."""
    _put(target, "drain", reason, until, store, schema, json=json)


@app.command()
def restore(
    target: NameArgument,
    reason: ReasonOption = "",
    store: StoreOption = "",
    schema: SchemaOption = None,
    json: JsonOption = False,
) -> None:
    """Bring a drained target back."""
    _put(target, "on", reason, "", store, schema, json=json)


def _put(target: str, mode: str, reason: str, until: str, store: str, schema: str | None, *, json: bool) -> None:
    check_text(target, "a target", NAME_LIMIT, empty=False)
    switch = Switch(scope_kind="target", scope=target, mode=mode, reason=reason, until=instant(until, time.time()))
    _show(put(switch, store, schema), json=json)


def _show(switches: Sequence[Switch], *, json: bool) -> None:
    rows = [row(one) for one in switches if one.scope_kind == "target" and one.mode != "on"]
    show(rows, COLUMNS, json=json, empty="no target is drained or switched")
