"""Where declarations come from: code, LangChain tools, MCP tool lists. Reading only; judging is the registry's.

A server's hints are words of the other side. `readOnlyHint` comes first, for the others mean nothing beside it (MCP
`ToolAnnotations`); only `True` and `False` themselves count, and what is not said is unknown. The method of an HTTP
operation is not a declaration: servers change state on GET.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_hedge.core.step import Effect
from agent_hedge.errors import ConfigurationError
from agent_hedge.tools.effect import EffectSpec, effect_spec, name_space

HINTS = ("readOnlyHint", "destructiveHint", "idempotentHint")
_PROSE = frozenset({"title", "description", "examples", "$comment"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What one item says of one tool. `spec`: the code's word; `hinted`: the server's; both may be missing."""

    name: str
    spec: EffectSpec | None = None
    hinted: Effect | None = None
    schema_hash: str = ""
    identity: str = ""
    """Who said it: a second declaration by the same one replaces the first, by another one contradicts it."""


def read(tools: object, *, namespace: str) -> list[Declared]:
    """Read tools, a mapping of names, or rows; raise `ConfigurationError` for what is none of these."""
    if isinstance(tools, Mapping) and not _is_row(tools):
        return [Declared(name=name, spec=_spec_of(value, name), identity="a mapping") for name, value in tools.items()]
    alone = isinstance(getattr(tools, "name", None), str)  # a LangChain tool is a pydantic model, and those iterate
    if alone or isinstance(tools, str | bytes) or not isinstance(tools, Iterable):
        tools = [tools]
    if isinstance(tools, Mapping):
        tools = [tools]
    return list(_each(tools, namespace))


def _each(tools: Iterable[object], namespace: str) -> Iterator[Declared]:
    for tool in tools:
        yield _row(tool) if isinstance(tool, Mapping) else _object(tool, namespace)


def _is_row(value: Mapping[Any, Any]) -> bool:
    return isinstance(value.get("name"), str) and ("annotations" in value or "inputSchema" in value)


def _spec_of(value: object, name: object) -> EffectSpec:
    if isinstance(value, EffectSpec):
        return value
    if isinstance(value, Mapping):
        try:
            return EffectSpec(**value)
        except TypeError:
            raise ConfigurationError("a mapping declares effects, specs, or settings of tool_effect") from None
    return EffectSpec(effect=value)  # type: ignore[arg-type]  # checked by the spec


def _row(row: Mapping[Any, Any]) -> Declared:
    name = row.get("name")
    if not isinstance(name, str):
        raise ConfigurationError("a row of tools needs a name")
    return Declared(
        name=name,
        hinted=hinted(row.get("annotations")),
        schema_hash=schema_hash(row.get("inputSchema")),
        identity="a server",
    )


def _object(tool: object, namespace: str) -> Declared:
    name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
    if not isinstance(name, str):
        raise ConfigurationError(f"a {type(tool).__name__} is no tool: it has no name")
    name_space(tool, namespace)
    annotations = getattr(tool, "annotations", None)
    if annotations is None:
        metadata = getattr(tool, "metadata", None)  # langchain-mcp-adapters puts the hints here, None where unsaid
        annotations = metadata if isinstance(metadata, Mapping) else None
    return Declared(
        name=name,
        spec=effect_spec(tool),
        hinted=hinted(annotations),
        schema_hash=schema_hash_of(tool),
        identity=_identity(tool),
    )


def _identity(tool: object) -> str:
    body = getattr(tool, "func", None) or getattr(tool, "coroutine", None) or tool
    body = inspect.unwrap(body) if callable(body) else body
    return f"{getattr(body, '__module__', '')}.{getattr(body, '__qualname__', type(body).__qualname__)}"


def hinted(annotations: object) -> Effect | None:
    """Return the effect that MCP hints speak of, or None when they say nothing that counts."""
    read_only, destructive, idempotent = (_hint(annotations, name) for name in HINTS)
    if read_only is True:
        return Effect.READ_ONLY
    if idempotent is True:
        return Effect.IDEMPOTENT
    if read_only is False or destructive is True or idempotent is False:
        return Effect.ONCE
    return None


def _hint(annotations: object, name: str) -> bool | None:
    value = annotations.get(name) if isinstance(annotations, Mapping) else getattr(annotations, name, None)
    return value if isinstance(value, bool) else None


def schema_hash_of(tool: object) -> str:
    """Return the hash of a tool's input schema (of a function: its parameters), or an empty string."""
    given = getattr(tool, "inputSchema", None)
    if given is None:
        given = getattr(tool, "tool_call_schema", None)
    if given is not None:
        return schema_hash(given)
    if inspect.isroutine(tool):
        return schema_hash(_parameters(tool))
    return ""


def schema_hash(schema: object) -> str:
    """Return SHA-256 hex of a JSON schema (or of a pydantic class) without its prose; empty for none."""
    if isinstance(schema, type):
        make = getattr(schema, "model_json_schema", None)
        try:
            schema = make() if make else None
        except Exception:  # a model that has no JSON schema has no pin
            schema = None
    if not isinstance(schema, Mapping):
        return ""
    text = json.dumps(_bare(schema), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _bare(schema: object, *, names: bool = False) -> object:
    """Drop titles and descriptions: they change with every wording, what a call means does not."""
    if isinstance(schema, Mapping):
        return {
            str(key): _bare(value, names=key in ("properties", "$defs", "definitions") and not names)
            for key, value in schema.items()
            if names or key not in _PROSE
        }
    if isinstance(schema, list | tuple):
        return [_bare(value) for value in schema]
    return schema


def _parameters(function: Any) -> dict[str, object]:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return {}
    return {
        parameter.name: [str(parameter.kind), _type_name(parameter.annotation), parameter.default is parameter.empty]
        for parameter in parameters
    }


def _type_name(annotation: object) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation)
