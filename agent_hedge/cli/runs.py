"""``agent-hedge runs``: the runs in the store, what they have used and what they have left."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from agent_hedge.cli.common import JsonOption, SchemaOption, StoreOption, plain_errors, show, with_stores
from agent_hedge.core.ports import RunRow, Stores
from agent_hedge.errors import ConfigurationError

app = typer.Typer(name="runs", help="Runs: deadlines and budgets.", no_args_is_help=True)

COLUMNS = ["key", "generation", "state", "left_s", "steps", "hedges", "extra_attempts", "recoveries", "touched_s"]
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="The run's key.")]


@app.command("list")
def list_(
    store: StoreOption = "",
    schema: SchemaOption = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="How many, newest first.")] = 50,
    json: JsonOption = False,
) -> None:
    """Show the runs touched last. Only runs with a key are stored."""
    with plain_errors():

        async def work(stores: Stores) -> Sequence[RunRow]:
            return await stores.runs.recent(limit)

        now = time.time()
        show([_row(run, now) for run in with_stores(store, schema, work)], COLUMNS, json=json, empty="no runs")


@app.command("show")
def show_(key: KeyArgument, store: StoreOption = "", schema: SchemaOption = None, json: JsonOption = False) -> None:
    """Show the newest generation of a run."""
    with plain_errors():

        async def work(stores: Stores) -> RunRow | None:
            return await stores.runs.load(key)

        found = with_stores(store, schema, work)
        if found is None:
            raise ConfigurationError(f"there is no run {key!r:.80}")
        facts = _row(found, time.time())
        rows: list[Mapping[str, Any]] = [{"what": name.replace("_", " "), "is": value} for name, value in facts.items()]
        show([facts] if json else rows, ["what", "is"], json=json)


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
        "recoveries": run.recoveries_used,
        "stays_at": run.sticky_target,
        "touched_s": now - run.updated_at,
    }
