"""``agent-hedge db``: create, migrate, check and prune the store's database."""

from __future__ import annotations

import math
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from agent_hedge.cli.common import JsonOption, SchemaOption, StoreOption, need_store, show, with_stores
from agent_hedge.core.stores import Stores
from agent_hedge.errors import ConfigurationError

app = typer.Typer(name="db", help="The store's database.", no_args_is_help=True, add_completion=False)

DAY_S = 86400.0


@app.command()
def upgrade(
    store: StoreOption = "",
    schema: SchemaOption = None,
    revision: Annotated[str, typer.Option(help="Where to stop; with --sql also FROM:TO.")] = "head",
    sql: Annotated[bool, typer.Option("--sql", help="Print the statements instead of running them.")] = False,
    grants: Annotated[str, typer.Option(metavar="ROLE", help="Print the least a role needs at run time.")] = "",
    json: JsonOption = False,
) -> None:
    """Create what is missing and migrate. The only command that creates a database file."""
    from agent_hedge.stores.sql import migrate

    if grants:
        typer.echo(migrate.grants(grants, schema=schema))
    elif sql:
        typer.echo(migrate.upgrade_sql(need_store(store), schema=schema, revision=revision))
    else:
        _status(migrate.upgrade(need_store(store), schema=schema, revision=revision), json)


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(metavar="REVISION", help="Where to go back to; `base` drops every table.")],
    store: StoreOption = "",
    schema: SchemaOption = None,
    force: Annotated[bool, typer.Option("--force", help="Also drop claims of side effects.")] = False,
    json: JsonOption = False,
) -> None:
    """Migrate back. Claims are what keeps effects from happening twice: to drop them needs --force."""
    from agent_hedge.stores.sql import migrate

    _status(migrate.downgrade(need_store(store), revision, schema=schema, force=force), json)


@app.command()
def check(store: StoreOption = "", schema: SchemaOption = None, json: JsonOption = False) -> None:
    """Say whether this release can use the database; exit 1 when it cannot."""
    from agent_hedge.stores.sql import migrate

    status = migrate.check(need_store(store), schema=schema)
    _status(status, json)
    if status.problems:
        raise typer.Exit(1)


@app.command()
def prune(
    store: StoreOption = "",
    schema: SchemaOption = None,
    older_than: Annotated[float, typer.Option(help="Days to keep.")] = 30.0,
    json: JsonOption = False,
) -> None:
    """Delete what is older: done claims, steps, runs, latency slices. Never a claim that runs or is in doubt."""
    if not 0 < older_than < math.inf:
        raise ConfigurationError("--older-than is a positive number of days")
    seconds = older_than * DAY_S
    before = time.time() - seconds

    async def work(stores: Stores) -> dict[str, Any]:
        return {
            "claims": await stores.claims.prune(seconds),
            "steps": await stores.steps.prune(before),
            "runs": await stores.runs.prune(seconds),
            "latency_slices": await stores.slices.prune(int(before)),
        }

    pruned = with_stores(store, schema, work)
    show([pruned], list(pruned), json=json)


def _status(status: Any, json: bool) -> None:
    found = asdict(status)
    found["problems"] = found["problems"] if json else "; ".join(found["problems"])
    show([found], ["store", "revision", "head", "problems"], json=json)
