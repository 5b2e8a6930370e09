"""``agent-hedge explain MODULE:GRAPH``: what may be duplicated in a graph, and why not, without running it."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json as json_format
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_hedge.cli.common import SchemaOption, StoreOption, with_stores
from agent_hedge.core.stores import Stores
from agent_hedge.errors import ConfigurationError
from agent_hedge.tools.registry import Registry


def explain(
    target: Annotated[
        str, typer.Argument(metavar="MODULE:GRAPH", help="package.module:attribute or path/to/file.py:attribute.")
    ],
    json: Annotated[bool, typer.Option("--json", help="Print plain data.")] = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="Print a Mermaid flowchart.")] = False,
    fail_on_unknown: Annotated[
        bool, typer.Option("--fail-on-unknown", help="Exit 1 if a tool's effect is unknown.")
    ] = False,
    bar: Annotated[str, typer.Option(help="unit or downstream: how far a barred tool reaches.")] = "unit",
    store: StoreOption = "",
    schema: SchemaOption = None,
) -> None:
    """Show per node which tools can run in it, what cannot be seen, and whether it may be duplicated.

    With a store its registry is asked, as a hedger would; without one, what is annotated on the tools.
    """
    from agent_hedge.adapters.langgraph.explain import explain as explain_graph

    if json and mermaid:
        raise ConfigurationError("choose one of --json and --mermaid")
    graph = load(target)
    registry = _registry(store, schema)
    found = explain_graph(graph, effects=registry, bar=bar, spec_of=registry.spec_of)  # type: ignore[arg-type]
    if json:
        typer.echo(json_format.dumps(found.to_dict(), indent=2))
    else:
        typer.echo(found.mermaid() if mermaid else str(found))
    if fail_on_unknown and found.unknown:
        typer.echo(f"agent-hedge: the effect of {', '.join(found.unknown)} is unknown", err=True)
        raise typer.Exit(1)


def _registry(store: str, schema: str | None) -> Registry:
    """Return the registry of a store, read once and never written to; without a store an empty one."""
    if not store:
        return Registry()

    async def read(stores: Stores) -> Registry:
        registry = Registry(stores.effects)
        await registry.refresh(time.monotonic())
        return registry

    return with_stores(store, schema, read)


def load(target: str) -> Any:
    """Return the graph that ``MODULE:GRAPH`` names; a function without parameters is called for it.

    The module is imported, with the current directory on the path. Raises `ConfigurationError` in one clear line.
    """
    place, separator, path = target.rpartition(":")
    if not separator or not place or not path:
        raise ConfigurationError(f"{target!r} is not MODULE:GRAPH, as in my_package.agents:graph or agents.py:graph")
    found: Any = _module(place)
    for name in path.split("."):
        if not hasattr(found, name):
            raise ConfigurationError(f"{place} has no attribute {path!r}")
        found = getattr(found, name)
    if _is_graph(found) or isinstance(found, type) or not callable(found):
        return found
    if inspect.iscoroutinefunction(found):
        raise ConfigurationError(f"{target} is an async function: name a graph, or a plain function that returns one")
    try:
        return found()
    except Exception as error:
        raise ConfigurationError(f"{target} cannot be called for a graph: {type(error).__name__}: {error}") from error


def _is_graph(thing: Any) -> bool:
    """Whether it is something to explain, rather than a function that makes one."""
    return hasattr(thing, "nodes")


def _module(place: str) -> Any:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    if place.endswith(".py") and not Path(place).is_file():
        raise ConfigurationError(f"there is no file {place!r}")
    try:
        return _file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name is not None and (place == error.name or place.startswith(f"{error.name}.")):
            raise ConfigurationError(f"there is no module {place!r}") from error
        raise ConfigurationError(f"{place} cannot be imported: {error}") from error
    except Exception as error:
        raise ConfigurationError(f"{place} cannot be imported: {type(error).__name__}: {error}") from error


def _file(path: Path) -> Any:
    name = f"explained_{path.stem}"  # a file may be called like a module that is in use
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # annotations are resolved through it
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    spec.loader.exec_module(module)
    return module
