"""Tools bound to a model: most are only offered to it; server-side tools run inside the model call itself.

A function tool that is bound comes back as a tool call and runs elsewhere. A server-side tool (a web search, a code
interpreter, a remote MCP server) is run by the provider while it answers, so that it runs twice when the model call
is duplicated: it belongs to ``unit="model"``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_hedge.core.ports import EffectSource
from agent_hedge.core.step import Effect

PROVIDER = "provider"
"""The namespace of server-side tools in the registry: ``annotate("code_interpreter", ..., namespace="provider")``."""

READS = frozenset(
    {
        *("web_search", "web_search_preview", "web_fetch", "file_search", "retrieval", "google_search"),
        *("google_search_retrieval", "googleSearch", "googleSearchRetrieval", "url_context", "urlContext"),
    }
)
"""Server-side tools that only look things up, by their providers' own word; the operator may say otherwise."""

CLIENT_RUN = frozenset(
    {"apply_patch", "bash", "computer", "computer_use_preview", "custom", "local_shell", "memory", "text_editor"}
)
"""Provider-defined tools whose calls come back to the client, as function calls do."""

INERT = frozenset({"cachePoint"})
"""Entries of a list of tools that are none: where a provider may cache the list up to there."""

_VERSION = re.compile(r"_\d{4}_?\d{2}_?\d{2}$")


@dataclass(frozen=True, slots=True)
class BoundTool:
    """One tool given to a model. `effect` is what its kind implies; UNKNOWN where only the registry can know."""

    name: str
    namespace: str = ""
    server_side: bool = False
    effect: Effect = Effect.UNKNOWN


def read_call(arguments: Mapping[str, Any]) -> list[BoundTool]:
    """Read everything a call of a model may use: its ``tools``, and Anthropic's ``mcp_servers``."""
    servers = arguments.get("mcp_servers")
    if not isinstance(servers, Iterable) or isinstance(servers, str | bytes | Mapping):
        servers = [servers] if servers else []
    remote = [tool for server in servers for tool in _read_mcp(server if isinstance(server, Mapping) else {})]
    return [*read_tools(arguments.get("tools")), *remote]


def effect_of_call(
    arguments: Mapping[str, Any], always: Sequence[BoundTool] = (), effects: EffectSource | None = None
) -> Effect:
    """Return what calling a model twice with these arguments would do: `READ_ONLY`, or `ONCE` where a provider acts.

    That is: code interpreters, remote MCP servers, and whatever is not known; of all these the registry (`effects`) has
    the last word. A provider passes no fence, and two attempts may hold different arguments: even a repeatable act is
    none to be duplicated. `always`: server-side tools that every call has.
    """
    own = server_side(arguments)
    if not own and not always:  # as in nearly every call
        return Effect.READ_ONLY
    acts = any(judged(tool, effects) is not Effect.READ_ONLY for tool in (*always, *own))
    return Effect.ONCE if acts else Effect.READ_ONLY


def judged(tool: BoundTool, effects: EffectSource | None) -> Effect:
    """Return what a server-side tool does: by the registry's word, else by its kind."""
    said = Effect.UNKNOWN if effects is None else effects.effect(tool.name, tool.namespace)
    return tool.effect if said is Effect.UNKNOWN else said


def server_side(arguments: Mapping[str, Any]) -> Sequence[BoundTool]:
    """Return the tools that the provider runs itself in a call with these arguments."""
    tools = arguments.get("tools")
    if isinstance(tools, list | tuple):  # nearly all are functions: told apart without reading them
        tools = [tool for tool in tools if type(tool) is not dict or tool.get("type") != "function"]
    if not tools and not arguments.get("mcp_servers"):
        return ()
    return [tool for tool in read_call({**arguments, "tools": tools}) if tool.server_side]


def read_tools(tools: object) -> list[BoundTool]:
    """Read the tools of a `bind_tools` or ``bind(tools=...)``, in any provider's form."""
    if isinstance(tools, Mapping) or not isinstance(tools, Iterable) or isinstance(tools, str | bytes):
        return _read(tools) if tools else []
    return [bound for tool in tools for bound in _read(tool)]


def _read(tool: object) -> list[BoundTool]:
    if not isinstance(tool, Mapping):
        name = getattr(tool, "name", None) or getattr(tool, "__name__", None)
        return [BoundTool(str(name))] if name else [_server_side(type(tool).__name__)]
    for key in ("function", "toolSpec"):  # chat completions; Bedrock
        if isinstance(inner := tool.get(key), Mapping):
            return [BoundTool(str(inner.get("name", "?")))]
    for key in ("function_declarations", "functionDeclarations"):  # Gemini
        if isinstance(inner := tool.get(key), Iterable):
            return [BoundTool(str(each.get("name", "?"))) for each in inner if isinstance(each, Mapping)]
    if not INERT.isdisjoint(tool):
        return []
    kind = _VERSION.sub("", str(tool.get("type", "")))
    if kind == "mcp":
        return _read_mcp(tool)
    if kind in CLIENT_RUN or kind == "function" or (not kind and "name" in tool):
        return [BoundTool(str(tool.get("name") or kind))]
    if "title" in tool and "properties" in tool:  # a JSON schema
        return [BoundTool(str(tool["title"]))]
    return [_server_side(kind or next(iter(tool), "?"))]


def _server_side(kind: str) -> BoundTool:
    return BoundTool(kind, PROVIDER, server_side=True, effect=Effect.READ_ONLY if kind in READS else Effect.UNKNOWN)


def _read_mcp(tool: Mapping[str, Any]) -> list[BoundTool]:
    """A remote MCP server: only the tools it is allowed to use, under its label; without a list, anything."""
    server = str(tool.get("server_label") or tool.get("name") or "mcp")
    allowed = tool.get("allowed_tools")
    if isinstance(tool.get("tool_configuration"), Mapping):  # Anthropic
        allowed = tool["tool_configuration"].get("allowed_tools")
    if isinstance(allowed, Mapping):
        allowed = allowed.get("tool_names")
    if isinstance(allowed, Iterable) and not isinstance(allowed, str) and (names := [str(name) for name in allowed]):
        return [BoundTool(name, server, server_side=True) for name in names]
    return [BoundTool("*", server, server_side=True)]
