"""``agent-hedge runs``: the runs in the store, what they have used and have left, and why their steps were hedged."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from agent_hedge.cli.common import JsonOption, SchemaOption, StoreOption, show, with_stores
from agent_hedge.cli.report import printable
from agent_hedge.cli.steps import Row, explained, line
from agent_hedge.core.stores import RunRow, Stores
from agent_hedge.errors import ConfigurationError

app = typer.Typer(name="runs", help="Runs: deadlines and budgets.", no_args_is_help=True, add_completion=False)

COLUMNS = ["key", "generation", "state", "left_s", "steps", "hedges", "extra_attempts", "recoveries", "touched_s"]
HEADINGS = {"generation": "gen", "extra_attempts": "purse", "recoveries": "recov.", "touched_s": "age s"}
"""Shorter than the names, so that a key has room in 80 columns."""
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The run's key.")]


@app.command("list")
def list_(
    store: StoreOption = "",
    schema: SchemaOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many, newest first.")] = 50,
    json: JsonOption = False,
) -> None:
    """Show the runs touched last. Only runs with a key are stored.

    left s: what a resume would have of the deadline. purse: hedges in all. recov.: recoveries. age s: since touched.
    """

    async def work(stores: Stores) -> Sequence[RunRow]:
        return await stores.runs.recent(limit)

    now = time.time()
    show(
        [_row(run, now) for run in with_stores(store, schema, work)],
        COLUMNS,
        json=json,
        empty="no runs",
        headings=HEADINGS,
    )


@app.command("show")
def show_(key: KeyArgument, store: StoreOption = "", schema: SchemaOption = None, json: JsonOption = False) -> None:
    """Show the newest generation of a run."""

    async def work(stores: Stores) -> RunRow | None:
        return await stores.runs.load(key)

    found = with_stores(store, schema, work)
    if found is None:
        raise ConfigurationError(f"there is no run {key!r:.80}")
    facts = _row(found, time.time())
    rows: list[Mapping[str, Any]] = [{"what": name.replace("_", " "), "is": value} for name, value in facts.items()]
    show([facts] if json else rows, ["what", "is"], json=json)


@app.command()
def explain(key: KeyArgument, store: StoreOption = "", schema: SchemaOption = None, json: JsonOption = False) -> None:
    """Say of each step of the newest generation why it was or was not hedged: one line a step.

    The steps are in the store where the hedger's accounting records them.
    """

    async def work(stores: Stores) -> tuple[RunRow | None, Sequence[Row], Sequence[Row]]:
        return await stores.runs.load(key), await stores.steps.steps_of(key), await stores.steps.attempts_of(key)

    run, steps, attempts = with_stores(store, schema, work)
    newest = max([step.get("generation") or 0 for step in steps], default=0 if run is None else run.generation)
    found = explained([step for step in steps if (step.get("generation") or 0) == newest], attempts)
    if run is None and not found:
        raise ConfigurationError(f"there is no run {key!r:.80}")
    if json:
        show(found, [], json=True)
        return
    typer.echo(printable(f"run {key}, generation {newest}: {_used(run, found)}"))
    for step in found:
        typer.echo(printable(line(step)))


def _used(run: RunRow | None, steps: Sequence[Row]) -> str:
    hedges = sum(step["hedges"] for step in steps)
    purse = "" if run is None or run.extra_attempts is None else f" (its purse holds {run.extra_attempts})"
    return f"{len(steps)} steps recorded, {hedges} hedges{purse}" if steps else "no step of it was recorded"


def _row(run: RunRow, now: float) -> dict[str, Any]:
    """Return what is stored as people read it; `left_s` is what a resume would have."""
    deadline = run.deadline_epoch
    left = run.remaining if deadline is None else max(0.0, deadline - now)
    return {
        "key": run.run_key,
        "generation": run.generation,
        "state": run.state,
        "left_s": left,
        "deadline": None if deadline is None else datetime.fromtimestamp(deadline).isoformat(timespec="milliseconds"),
        "steps": run.steps,
        "hedges": run.hedges_used,
        "granted": run.hedges_granted,
        "extra_attempts": run.extra_attempts,
        "tokens": run.tokens_used,
        "token_cap": run.tokens,
        "cost": run.cost_used,
        "cost_cap": run.cost,
        "recoveries": run.recoveries_used,
        "stays_at": run.sticky_target,
        "touched_s": now - run.updated_at,
    }
