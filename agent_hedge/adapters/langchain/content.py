"""What was said, for spans that show it: opt-in, kept beside the count of it.

Text, reasoning and tool calls, in the GenAI conventions' form of messages. Images, audio and files stay out: their
bytes would not fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.ai import add_ai_message_chunks
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from agent_hedge.adapters.langchain.usage import Meter
from agent_hedge.core.step import Content

_ROLES: tuple[tuple[type[BaseMessage], str], ...] = (
    (SystemMessage, "system"),
    (AIMessage, "assistant"),
    (ToolMessage, "tool"),
    (FunctionMessage, "tool"),
)


class Keeping(Meter):
    """A meter that keeps what was asked, and what has come when the attempt ends, however it ends."""

    __slots__ = ("_asked", "_came")

    def __init__(self, asked: Sequence[BaseMessage]) -> None:
        super().__init__()
        self._asked = asked
        self._came: list[BaseMessage] = []

    def saw(self, chunk: ChatGenerationChunk) -> None:
        super().saw(chunk)
        self._came.append(chunk.message)

    def whole(self, result: ChatResult) -> None:
        super().whole(result)
        self._came.append(result.generations[0].message)

    def content(self) -> Content:
        asked = [{"role": _role(message), "parts": _parts(message)} for message in self._asked]
        parts = _parts(_together(self._came)) if self._came else []
        answered = [{"role": "assistant", "parts": parts, "finish_reason": self.finish}] if parts else []
        return Content(asked, answered)


def _role(message: BaseMessage) -> str:
    if isinstance(message, ChatMessage):
        return message.role
    return next((role for kind, role in _ROLES if isinstance(message, kind)), "user")


def _together(messages: Sequence[BaseMessage]) -> BaseMessage:
    first, *rest = (message for message in messages)
    if not isinstance(first, AIMessageChunk):
        return first
    return add_ai_message_chunks(first, *(chunk for chunk in rest if isinstance(chunk, AIMessageChunk)))


def _parts(message: BaseMessage) -> list[dict[str, Any]]:
    if isinstance(message, ToolMessage):
        return [{"type": "tool_call_response", "id": message.tool_call_id, "response": message.content}]
    parts: list[dict[str, Any]] = []
    for block in cast("list[dict[str, Any]]", message.content_blocks):
        said = block.get("value", block)  # of blocks that LangChain has no name for
        if text := said.get("text"):
            parts.append({"type": "text", "content": text})
        elif reasoning := said.get("reasoning") or said.get("thinking"):
            parts.append({"type": "reasoning", "content": reasoning})
    if isinstance(message, AIMessage):
        parts += [
            {"type": "tool_call", "id": call["id"], "name": call["name"], "arguments": call["args"]}
            for call in (*message.tool_calls, *message.invalid_tool_calls)
        ]
    return parts
