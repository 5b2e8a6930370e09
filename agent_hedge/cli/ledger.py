"""``agent-hedge ledger``: which side effects were claimed, which are in doubt, and a person's answer to those."""

from __future__ import annotations

import time
from datetime import datetime
from typing import Annotated, Any

import typer

from agent_hedge.cli.common import JsonOption, SchemaOption, StoreOption, show, with_stores
from agent_hedge.core.stores import Claim, ClaimState, Stores
from agent_hedge.errors import ConfigurationError
from agent_hedge.tools.answers import ANSWERS, Answer, resolve

app = typer.Typer(name="ledger", help="Claims of side effects.", no_args_is_help=True, add_completion=False)

COLUMNS = ["key", "tool", "state", "run", "thread", "age_s", "note"]
SHOWN = 12
"""Characters of a key in a table; `show` and `resolve` take them, where they name one claim."""
LOOKED_THROUGH = 10_000
"""Newest claims in which an abbreviated key is looked for."""

KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The effect key, or its beginning.")]


@app.command("list")
def list_(
    store: StoreOption = "",
    schema: SchemaOption = None,
    state: Annotated[
        list[ClaimState] | None, typer.Option("--state", "-s", help="Only claims in this state (repeatable).")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many, newest first.")] = 50,
    json: JsonOption = False,
) -> None:
    """Show the newest claims. What was called with which arguments is not stored, only fingerprints."""
    states = list(state or [])

    async def work(stores: Stores) -> list[Claim]:
        return list(await stores.claims.recent(limit, states=states))

    found = with_stores(store, schema, work)
    rows = [_row(claim) for claim in found]
    if not json:
        rows = [row | {"key": row["key"][:SHOWN]} for row in rows]
    show(rows, COLUMNS, json=json, empty="no claims")


@app.command("show")
def show_(key: KeyArgument, store: StoreOption = "", schema: SchemaOption = None, json: JsonOption = False) -> None:
    """Show all that is known of one claim."""

    async def work(stores: Stores) -> Claim:
        return await _found(stores, key)

    _details(with_stores(store, schema, work), json=json)


@app.command("resolve")
def resolve_(
    key: KeyArgument,
    answer: Annotated[str, typer.Argument(metavar="ANSWER", help=", ".join(ANSWERS))],
    store: StoreOption = "",
    schema: SchemaOption = None,
    json: JsonOption = False,
) -> None:
    """Say what became of a claim in doubt, after looking at the other side.

    happened: it is done and never run again. did_not_happen: the next call may run. abandon: leave it, whatever it was.
    """
    said = next((known for known in ANSWERS if known == answer), None)
    if said is None:
        raise ConfigurationError(f"an answer is one of {', '.join(ANSWERS)}, not {answer!r:.40}")
    chosen: Answer = said

    async def work(stores: Stores) -> Claim:
        claim = await _found(stores, key)
        return await resolve(stores.claims, claim.effect_key, chosen)

    _details(with_stores(store, schema, work), json=json)


@app.command()
def fence(
    since: Annotated[
        str, typer.Option("--since", metavar="TIME", help="What the backup holds ends here: ISO 8601 or epoch seconds.")
    ],
    store: StoreOption = "",
    schema: SchemaOption = None,
    json: JsonOption = False,
) -> None:
    """After a restored backup: claims since then may be missing, so calls that began before now are in doubt."""
    epoch = _epoch(since)

    async def work(stores: Stores) -> dict[str, Any]:
        standing = await stores.claims.fence(epoch)
        return {"since": _time(standing.since), "until": _time(standing.until)}

    show([with_stores(store, schema, work)], ["since", "until"], json=json)


async def _found(stores: Stores, key: str) -> Claim:
    """Return the claim that a key, or the beginning of one, names."""
    key = key.strip().lower()
    if len(key) == 64:
        found = [claim for claim in [await stores.claims.get(key)] if claim is not None]
    else:
        recent = await stores.claims.recent(LOOKED_THROUGH)
        found = [claim for claim in recent if key and claim.effect_key.startswith(key)]
    if len(found) != 1:
        what = "no claim" if not found else f"{len(found)} claims"
        raise ConfigurationError(f"{what} with the key {key}")
    return found[0]


def _row(claim: Claim) -> dict[str, Any]:
    dead = claim.state is ClaimState.RUNNING and claim.lease_left <= 0
    return {
        "key": claim.effect_key,
        "tool": claim.tool,
        "state": "running (owner silent)" if dead else claim.state.value,
        "effect": claim.effect.value,
        "run": claim.run_key,
        "thread": claim.thread,
        "call_id": claim.call_id,
        "principal": claim.principal,
        "executions": claim.executions,
        "confirmed": claim.confirmed,
        "owner": claim.owner,
        "claimed_at": _time(claim.claimed_at),
        "age_s": round(claim.age, 1),
        "lease_left_s": round(claim.lease_left, 1) if claim.state is ClaimState.RUNNING else None,
        "args_fingerprint": claim.args_fingerprint,
        "note": claim.note,
    }


def _details(claim: Claim, *, json: bool) -> None:
    row = _row(claim)
    if json:
        show([row], list(row), json=True)
        return
    show([{"": name, "claim": value} for name, value in row.items()], ["", "claim"], json=False)


def _epoch(text: str) -> float:
    try:
        epoch = float(text)
    except ValueError:
        try:
            epoch = datetime.fromisoformat(text).astimezone().timestamp()
        except ValueError:
            raise ConfigurationError(f"{text!r} is no time: use ISO 8601 or epoch seconds") from None
    if not 0 <= epoch <= time.time():
        raise ConfigurationError("the time lies in the future, or before 1970")
    return epoch


def _time(epoch: float) -> str:
    return datetime.fromtimestamp(epoch).astimezone().isoformat(timespec="seconds")
