"""Tools that the provider runs inside the model call: what would calling the model twice do?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from agent_hedge.core.step import Effect

READ_ONLY_SERVER_TOOLS = ("web_search", "file_search", "google_search", "web_fetch", "url_context", "retrieval")
"""Prefixes of tool types that only read (providers append dates: ``web_search_20250305``)."""
_CLIENT_TOOLS = ("", "function", "custom")


def effect_of_call(arguments: Mapping[str, Any]) -> Effect:
    """Return `READ_ONLY` unless a call with these arguments has a server-side tool that may write.

    That is: code interpreters, remote MCP servers (also as Anthropic's `mcp_servers`), and whatever is not known.
    """
    if arguments.get("mcp_servers"):
        return Effect.ONCE
    tools = arguments.get("tools")
    if not tools or not isinstance(tools, Iterable) or isinstance(tools, str | Mapping):
        return Effect.READ_ONLY
    return Effect.READ_ONLY if all(map(_reads, tools)) else Effect.ONCE


def _reads(tool: object) -> bool:
    if not isinstance(tool, Mapping):
        return True  # a client-side tool: it runs when the graph calls it
    kind = tool.get("type", "")
    if kind in _CLIENT_TOOLS:
        return not any(key in tool for key in ("code_execution", "codeExecution"))
    return str(kind).startswith(READ_ONLY_SERVER_TOOLS)
