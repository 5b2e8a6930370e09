"""What all command groups share: the store option, plain errors, tables that are also JSON.

Exit codes: 2 for an error of the user's making, 1 for one of the world's (a store that does not answer) and for a
check that found something; one line each, on stderr.
"""

from __future__ import annotations

import asyncio
import json as json_format
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_hedge.core.stores import Stores
from agent_hedge.errors import ConfigurationError, HedgeError

T = TypeVar("T")

StoreOption = Annotated[
    str, typer.Option("--store", envvar="AGENT_HEDGE_STORE", show_envvar=True, help="URL of the store.")
]
SchemaOption = Annotated[str | None, typer.Option("--schema", help="PostgreSQL schema of the tables.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print plain data.")]


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn an expected error into one clear line and an exit code."""
    try:
        yield
    except ConfigurationError as error:
        fail(str(error), 2)
    except HedgeError as error:
        fail(str(error), 1)


def fail(message: str, code: int) -> None:
    """Print one line to stderr and end the command."""
    typer.echo(f"agent-hedge: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


def need_store(store: str) -> str:
    """Refuse an empty store: commands look at a database, never at this process's memory."""
    if not store:
        raise ConfigurationError("which store? Use --store URL, or set AGENT_HEDGE_STORE")
    return store


def with_stores(store: str, schema: str | None, work: Callable[[Stores], Awaitable[T]]) -> T:
    """Run `work` on the stores of a database that exists; only ``db upgrade`` creates one."""
    from agent_hedge.stores.sql import sql_stores

    async def body() -> T:
        stores = sql_stores(need_store(store), schema=schema, create=False)
        try:
            await stores.open()
            return await work(stores)
        finally:
            await stores.close()

    return asyncio.run(body())


def show(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, json: bool, empty: str = "nothing") -> None:
    """Print rows as a table, or all of them as JSON."""
    if json:
        typer.echo(json_format.dumps(list(rows), indent=2, default=str))
        return
    if not rows:
        typer.echo(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(*(Text(_shown(row.get(column))) for column in columns))  # Text: a stored name is no markup
    Console().print(table)


def _shown(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
