"""What all command groups share: the options of the store, work on it, tables that are also JSON."""

from __future__ import annotations

import asyncio
import json as json_format
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agent_hedge.core.checks import is_number
from agent_hedge.core.stores import Stores
from agent_hedge.errors import ConfigurationError

T = TypeVar("T")

StoreOption = Annotated[
    str, typer.Option("--store", envvar="AGENT_HEDGE_STORE", show_envvar=True, help="URL of the store.")
]
SchemaOption = Annotated[str | None, typer.Option("--schema", help="PostgreSQL schema of the tables.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print plain data.")]


def need_store(store: str) -> str:
    """Refuse an empty store: commands look at a database, never at this process's memory."""
    if not store:
        raise ConfigurationError("which store? Use --store URL, or set AGENT_HEDGE_STORE")
    return store


def with_stores(store: str, schema: str | None, work: Callable[[Stores], Awaitable[T]]) -> T:
    """Run `work` on the stores of a database that exists; only ``db upgrade`` creates one."""
    need_store(store)
    from agent_hedge.stores.sql import sql_stores

    async def body() -> T:
        stores = sql_stores(store, schema=schema, create=False)
        try:
            await stores.open()
            return await work(stores)
        finally:
            await stores.close()

    return asyncio.run(body())


def show(
    rows: Sequence[Mapping[str, Any]],
    columns: Sequence[str],
    *,
    json: bool,
    empty: str = "nothing",
    headings: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Print rows as a table, or all of them as JSON.

    A column is headed by its name or by what `headings` has for it. Where the terminal is narrow text is folded, never
    a number: those of a column stand below one another.
    """
    if json:
        typer.echo(json_format.dumps(list(rows), indent=2, default=str))
        return
    if not rows:
        typer.echo(empty)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        heading = headings.get(column, column.replace("_", " "))
        if all(is_number(row.get(column)) or row.get(column) is None for row in rows):
            table.add_column(heading, justify="right", no_wrap=True)
        else:
            table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(
            *(Text(_shown(row.get(column), column)) for column in columns)
        )  # Text: a stored name is no markup
    Console().print(table)


def _shown(value: object, column: str) -> str:
    """Return a cell: of a column of seconds (``..._s``) tenths, of other fractions (money) six digits."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    text = str(value)
    if isinstance(value, float):
        text = f"{value:.1f}" if column.endswith("_s") else f"{value:.6g}"
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
