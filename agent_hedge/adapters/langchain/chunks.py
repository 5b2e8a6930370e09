"""Whole answers out of chunks, and chunks out of whole answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from langchain_core.language_models.chat_models import generate_from_stream
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult


def as_result(chunks: Sequence[ChatGenerationChunk]) -> ChatResult:
    """Return the whole answer of a stream that has ended."""
    message = chunks[-1].message
    if isinstance(message, AIMessageChunk) and not message.chunk_position:
        last = AIMessageChunk(content="" if isinstance(message.content, str) else [], chunk_position="last")
        chunks = [*chunks, ChatGenerationChunk(message=last)]
    return generate_from_stream(iter(chunks))


def as_chunk(result: ChatResult) -> ChatGenerationChunk:
    """Return a whole answer as the only chunk of a stream."""
    generation = result.generations[0]
    message = cast("AIMessage", generation.message)
    calls = [
        tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index)
        for index, call in enumerate(message.tool_calls)
    ]
    calls += [
        tool_call_chunk(name=call["name"], args=call["args"], id=call["id"], index=len(calls) + index)
        for index, call in enumerate(message.invalid_tool_calls)
    ]
    chunk = AIMessageChunk(
        content=message.content,
        additional_kwargs=message.additional_kwargs,
        response_metadata=message.response_metadata,
        usage_metadata=message.usage_metadata,
        id=message.id,
        tool_call_chunks=calls,
        chunk_position="last",
    )
    return ChatGenerationChunk(message=chunk, generation_info=generation.generation_info)
