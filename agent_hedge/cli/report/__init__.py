"""``agent-hedge report``: does hedging pay, and where it was not done, why not?"""

from __future__ import annotations

import json as json_format
import re
import time
from pathlib import Path
from typing import Annotated

import typer

from agent_hedge.cli.common import JsonOption, SchemaOption, StoreOption, with_stores
from agent_hedge.cli.report.figures import Figures, figures
from agent_hedge.cli.report.page import page
from agent_hedge.cli.report.text import as_data, lines
from agent_hedge.core.stores import Stores
from agent_hedge.errors import ConfigurationError

LIMIT = 200_000
"""Steps that are looked at, the newest first."""

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def report(
    store: StoreOption = "",
    schema: SchemaOption = None,
    since: Annotated[str, typer.Option(help="How far back: 30m, 1h, 7d.")] = "1h",
    budget: Annotated[float, typer.Option(help="The fleet's budget, as a ratio of the steps.")] = 0.05,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Write one page that works offline.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Say what hedging did: why not, what it cost, what it won, and what to change."""
    seconds = parse_since(since)
    if not 0 < budget <= 1:
        raise ConfigurationError(f"--budget is a ratio in (0, 1], not {budget!r}")
    found = with_stores(store, schema, lambda stores: read(stores, store, seconds))
    data = as_data(found, seconds, budget)
    if html is not None:
        html.write_text(page(found, data), encoding="utf-8")
        typer.echo(f"written to {html}", err=True)
    if json:
        typer.echo(json_format.dumps(data, indent=2))
    elif html is None:
        typer.echo("\n".join(printable(line) for line in lines(data)))


async def read(stores: Stores, store: str, seconds: float) -> Figures:
    """Return the figures since `seconds` ago; what killed processes left on this machine's spool is taken in first."""
    from agent_hedge.observers.recorder import adopt
    from agent_hedge.observers.spool import Spool, folder_of

    await adopt(stores.steps, Spool(folder_of(store)))
    epoch = time.time() - seconds
    return figures(await stores.steps.since(epoch, LIMIT), await stores.steps.attempts_since(epoch, 3 * LIMIT))


def parse_since(text: str) -> float:
    """Return the seconds of ``90s``, ``30m``, ``1h``, ``7d``."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", text.strip())
    if match is None or float(match[1]) <= 0:
        raise ConfigurationError(f"--since is a span such as 30m, 1h or 7d, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def printable(line: str) -> str:
    """Stored names are data: what would move a terminal's cursor is replaced."""
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
