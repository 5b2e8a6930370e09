"""Which chunk is the first meaningful one (R2)?

Non-empty text, reasoning or refusal, or a tool call with a name. Role-only and empty deltas, usage, metadata and
pings are not: engines send them long before the model has said anything (vLLM: headers after 9 ms, text after 1.8 s).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk

_TEXT_KEYS = ("text", "thinking", "reasoning", "reasoning_content", "refusal", "summary", "data", "partial_json")
_CALLS = ("tool_use", "_call", "_call_chunk")
"""How types of content blocks end that are calls of tools, the client's or the server's; a call has begun when it has a
name. (Calls without one, as of OpenAI's web search, are the server's own business: text follows.)"""
_REMOTE = ("mcp_tool_use", "mcp_call")
"""Calls that the provider makes itself, at a remote server: they begin with their first argument, in both dialects."""
_DELTA_KEYS = ("content", "reasoning_content", "reasoning", "reasoning_text", "reasoning_details", "refusal")
"""Texts of a chat-completions delta. `reasoning_details` (OpenRouter) may be encrypted: then reasoning has begun."""


def is_meaningful(chunk: ChatGenerationChunk) -> bool:
    """Return whether this chunk of a stream says something."""
    return message_is_meaningful(chunk.message)


def message_is_meaningful(message: BaseMessage) -> bool:
    content = message.content
    if isinstance(content, str):
        if content:
            return True
    elif any(_block(block) for block in content):
        return True
    if isinstance(message, AIMessageChunk) and any(call.get("name") for call in message.tool_call_chunks):
        return True
    extra = message.additional_kwargs
    return bool(extra) and delta_is_meaningful(extra)


def delta_is_meaningful(delta: Mapping[str, Any]) -> bool:
    """Return whether a raw chat-completions delta says something, also in fields that a client drops."""
    if any(delta.get(key) for key in _DELTA_KEYS):
        return True
    if _named(delta.get("function_call")):
        return True
    calls = delta.get("tool_calls")
    return isinstance(calls, list) and any(_named(call.get("function")) for call in calls if isinstance(call, Mapping))


def choice_is_meaningful(choice: Mapping[str, Any]) -> bool:
    """Return whether one choice of a raw chat-completions chunk says something (`text`: of a legacy completion)."""
    return bool(choice.get("text")) or delta_is_meaningful(choice.get("delta") or choice.get("message") or {})


def event_is_meaningful(event: object) -> bool:
    """Return whether a raw event of the Responses API says something, also where a client drops it."""
    return str(getattr(event, "type", "")).endswith(".delta") and bool(getattr(event, "delta", None))


def _named(call: object) -> bool:
    return isinstance(call, Mapping) and bool(call.get("name"))


def _block(block: object) -> bool:
    """Return whether one content block says something, in any provider's shape."""
    if isinstance(block, str):
        return bool(block)
    if not isinstance(block, Mapping):
        return False
    if str(block.get("type")).endswith(_CALLS):
        return bool(block.get("name")) and block["type"] not in _REMOTE
    return any(_says(block.get(key)) for key in _TEXT_KEYS)


def _says(value: object) -> bool:
    if isinstance(value, list):
        return any(_block(part) for part in value)
    return isinstance(value, str) and bool(value)
