"""``agent-hedge tools``: what each tool does when it runs twice, as the operator sees and says it."""

from __future__ import annotations

import getpass
import json as json_format
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from agent_hedge.cli.common import JsonOption, SchemaOption, StoreOption, show, with_stores
from agent_hedge.core.step import Effect
from agent_hedge.core.stores import EffectRow, EffectStore, Stores
from agent_hedge.errors import ConfigurationError
from agent_hedge.tools import exchange
from agent_hedge.tools.judge import Entry
from agent_hedge.tools.registry import Registry

T = TypeVar("T")

app = typer.Typer(name="tools", help="The registry of tool effects.", no_args_is_help=True, add_completion=False)

NamespaceOption = Annotated[str, typer.Option("--namespace", "-n", help="Namespace: for MCP the server's name.")]
FileArgument = Annotated[
    Path, typer.Argument(metavar="FILE", help="A JSON file; - reads standard input.", allow_dash=True)
]


@app.command("list")
def list_(
    store: StoreOption = "",
    schema: SchemaOption = None,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only this namespace.")] = None,
    json: JsonOption = False,
) -> None:
    """Show every tool: what counts, who says so, and why."""

    async def work(registry: Registry, _: EffectStore) -> list[Entry]:
        return registry.entries()

    found = _with_registry(store, schema, work)
    rows = [_entry(entry) for entry in found if namespace is None or entry.namespace == namespace]
    show(rows, ["namespace", "name", "effect", "hedgeable", "source", "why"], json=json, empty="no tools declared")


@app.command()
def annotate(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The tool's name.")],
    effect: Annotated[
        str, typer.Argument(metavar="EFFECT", help="read_only, idempotent, keyed, once, unknown.", show_default=False)
    ] = "",
    store: StoreOption = "",
    schema: SchemaOption = None,
    namespace: NamespaceOption = "",
    note: Annotated[str, typer.Option(help="Why; kept in the history.")] = "",
    by: Annotated[str, typer.Option(help="Who says so (default: the user running the command).")] = "",
    key: Annotated[str, typer.Option(help="Argument that names the effect.")] = "",
    scope: Annotated[str, typer.Option(help="Within what it does: run, tenant, global.")] = "run",
    key_param: Annotated[str, typer.Option(help="Parameter that takes an idempotency key.")] = "",
    retention: Annotated[float | None, typer.Option(help="Seconds the other side remembers a key.")] = None,
    rule: Annotated[list[str] | None, typer.Option(help="ARGUMENT=VALUE:EFFECT (repeatable).")] = None,
    commutes: Annotated[bool, typer.Option("--commutes", help="Any two calls may both happen.")] = False,
    no_repeat: Annotated[bool, typer.Option("--no-repeat", help="Never duplicated, never run again.")] = False,
    at_least_once: Annotated[bool, typer.Option("--at-least-once", help="Run again after a crash.")] = False,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take the operator's word back.")] = False,
    json: JsonOption = False,
) -> None:
    """Say what a tool does. The operator's word comes before the code's and the server's."""
    who = by or _user()

    async def work(registry: Registry, _: EffectStore) -> Entry:
        if withdraw:
            await registry.awithdraw(name, namespace=namespace, by=who)
            return registry.explain_entry(name, namespace)
        return await registry.aannotate(
            name,
            effect,
            namespace=namespace,
            note=note,
            by=who,
            key=key or None,
            scope=scope,
            key_param=key_param or None,
            retention=retention,
            rules=_rules(rule or []),
            commutes=commutes,
            repeat_allowed=not no_repeat,
            at_least_once=at_least_once,
        )

    entry = _entry(_with_registry(store, schema, work))
    show([entry], ["namespace", "name", "effect", "hedgeable", "source", "why"], json=json)


@app.command()
def declare(
    file: FileArgument,
    store: StoreOption = "",
    schema: SchemaOption = None,
    namespace: NamespaceOption = "",
    trusted: Annotated[bool, typer.Option("--trusted", help="You vouch for this server's hints.")] = False,
    repin: Annotated[bool, typer.Option("--repin", help="Accept changed schemas and looser hints.")] = False,
    json: JsonOption = False,
) -> None:
    """Take in the answer of an MCP server's tools/list."""
    tools = _listed(file)

    async def work(registry: Registry, _: EffectStore) -> list[Entry]:
        return await registry.adeclare(tools, namespace=namespace, trusted=trusted, repin=repin)

    rows = [_entry(entry) for entry in _with_registry(store, schema, work)]
    show(rows, ["namespace", "name", "effect", "hedgeable", "why"], json=json)


@app.command()
def export(
    store: StoreOption = "",
    schema: SchemaOption = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write to a file.")] = None,
) -> None:
    """Print the operator's entries as JSON, for review in git."""

    async def work(_: Registry, effects: EffectStore) -> dict[str, Any]:
        return exchange.exported((await effects.read())[1])

    text = json_format.dumps(_with_registry(store, schema, work), indent=2)
    if output is None:
        typer.echo(text)
    else:
        output.write_text(text + "\n")


@app.command()
def apply(
    file: FileArgument,
    store: StoreOption = "",
    schema: SchemaOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would change.")] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Withdraw entries that the file does not name.")] = False,
    by: Annotated[str, typer.Option(help="Who says so (default: the user running the command).")] = "",
    json: JsonOption = False,
) -> None:
    """Make the operator's entries what the file says."""
    wanted = exchange.imported(_read(file))
    who = by or _user()

    async def work(_: Registry, effects: EffectStore) -> list[exchange.Change]:
        changes = exchange.differences((await effects.read())[1], wanted, prune=prune)
        if not dry_run:
            await effects.write([change.after for change in changes if change.after], by=who)
            for change in changes:
                if change.after is None:
                    await effects.withdraw(change.namespace, change.name, "operator", by=who)
        return changes

    rows = [
        {
            "change": change.kind,
            "namespace": change.namespace,
            "name": change.name,
            "before": exchange.plain(change.before) if change.before else None,
            "after": exchange.plain(change.after) if change.after else None,
        }
        for change in _with_registry(store, schema, work)
    ]
    show(rows, ["change", "namespace", "name", "before", "after"], json=json, empty="no changes")


@app.command()
def history(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The tool's name.")],
    store: StoreOption = "",
    schema: SchemaOption = None,
    namespace: NamespaceOption = "",
    json: JsonOption = False,
) -> None:
    """Show every version of a tool's entries, oldest first."""

    async def work(registry: Registry, _: EffectStore) -> list[dict[str, Any]]:
        return [_line(row) for row in await registry.history(name, namespace)]

    rows = _with_registry(store, schema, work)
    show(rows, ["at", "revision", "source", "effect", "change", "by", "note"], json=json, empty="no history")


@app.command()
def check(
    store: StoreOption = "",
    schema: SchemaOption = None,
    file: Annotated[Path | None, typer.Option("--against", metavar="FILE", help="A server's tools/list.")] = None,
    namespace: NamespaceOption = "",
    json: JsonOption = False,
) -> None:
    """List the tools nobody decides about: unknown, stale, contradictory, unreadable. Exit 1 if there are any."""
    live = _listed(file) if file is not None else None

    async def work(registry: Registry, effects: EffectStore) -> list[Entry]:
        if live is None:
            return registry.entries()
        vouched = {row.name for row in (await effects.read())[1] if row.namespace == namespace and row.trusted}
        aside = Registry(_Frozen(effects))  # what it hears is not written
        await aside.refresh(time.monotonic())
        for trusted in (True, False):
            some = [tool for tool in live if (tool["name"] in vouched) is trusted]
            aside.declare(some, namespace=namespace, trusted=trusted)
        return [aside.explain_entry(tool["name"], namespace) for tool in live]

    open_ = [_entry(entry) for entry in _with_registry(store, schema, work) if not entry.source]
    show(open_, ["namespace", "name", "effect", "why"], json=json, empty="every tool is decided")
    if open_:
        raise typer.Exit(1)


class _Frozen:
    """An `EffectStore` to look at."""

    def __init__(self, effects: EffectStore) -> None:
        self.read = effects.read
        self.revision = effects.revision
        self.history = effects.history

    async def write(self, rows: object, *, by: str) -> int:
        """Write nothing."""
        return await self.revision()

    async def withdraw(self, namespace: str, name: str, source: str, *, by: str) -> int:
        """Withdraw nothing."""
        return await self.revision()


def _with_registry(store: str, schema: str | None, work: Callable[[Registry, EffectStore], Awaitable[T]]) -> T:
    async def body(stores: Stores) -> T:
        registry = Registry(stores.effects, by=_user())
        await registry.refresh(time.monotonic())
        return await work(registry, stores.effects)

    return with_stores(store, schema, body)


def _user() -> str:
    """Return who runs the command; in a container the number of a user may have no name."""
    try:
        return getpass.getuser()
    except (KeyError, ImportError, OSError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "namespace": entry.namespace,
        "name": entry.name,
        "effect": entry.effect.value,
        "hedgeable": entry.effect.repeatable,
        "source": entry.source,
        "why": entry.why,
    }


def _line(row: EffectRow) -> dict[str, Any]:
    return {
        "at": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.updated_at)),
        "revision": row.revision,
        "source": row.source,
        "effect": row.effect.value,
        "change": "withdrawn" if row.withdrawn else "said",
        "by": row.updated_by,
        "note": row.problem or row.note,
    }


def _listed(file: Path) -> list[dict[str, Any]]:
    data = _read(file)
    tools = data.get("tools") if isinstance(data, dict) else data
    if not isinstance(tools, list) or not all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in tools
    ):
        raise ConfigurationError("expected a list of MCP tools with names, or an object with one under tools")
    return tools


def _read(file: Path) -> Any:
    try:
        text = typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text()
        return json_format.loads(text)
    except OSError as error:
        raise ConfigurationError(f"{file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigurationError(f"{file} is not JSON ({error.__class__.__name__})") from None


def _rules(given: list[str]) -> dict[str, dict[str, Effect]]:
    rules: dict[str, dict[str, Effect]] = {}
    for text in given:
        argument, separator, rest = text.partition("=")
        value, colon, effect = rest.rpartition(":")
        if not (separator and colon and argument):
            raise ConfigurationError("--rule is ARGUMENT=VALUE:EFFECT, as in method=GET:read_only")
        rules.setdefault(argument, {})[value] = effect  # type: ignore[assignment]  # checked by the spec
    return rules
