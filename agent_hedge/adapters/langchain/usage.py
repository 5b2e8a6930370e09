"""What one attempt has used: the provider's word where it came, else what was received.

Usage comes in the last chunks of a stream (or in the first and the last), so an attempt that is cancelled has none:
then every chunk that says something stands for one token at least.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from time import perf_counter
from typing import Any, cast

from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from agent_hedge.core.step import Certainty, Usage

_OURS = ("run-", "lc_run-", "lc_")
"""How ids begin that LangChain makes itself."""


class Meter(Usage):
    """A `Usage` that is told every chunk of a stream."""

    __slots__ = ("_at", "_said", "began")

    def __init__(self) -> None:
        super().__init__()
        self.began = perf_counter()
        self._at = 0.0
        self._said = 0

    def saw(self, chunk: ChatGenerationChunk) -> None:
        """Count a chunk."""
        now = perf_counter()
        message = chunk.message
        if message.content or getattr(message, "tool_call_chunks", None):
            if self.chunks and now - self._at > self.longest_gap:
                self.longest_gap = now - self._at
            self._at = now
            self.chunks += 1
            self.output, self.certainty = self.chunks, Certainty.AT_LEAST
        if message.response_metadata or getattr(message, "usage_metadata", None) or not self.response_id:
            self.take(message)
        if chunk.generation_info:
            self.hear(chunk.generation_info)

    def take(self, message: BaseMessage) -> None:
        """Hear what a message says of its request."""
        if isinstance(message, AIMessage) and message.usage_metadata:
            self._add(message.usage_metadata)
        self.hear(message.response_metadata)
        if message.id and not self.response_id and not message.id.startswith(_OURS):
            self.response_id = message.id

    def hear(self, said: Mapping[str, Any]) -> None:
        """Hear what the provider says of an answer. LangChain puts it together in its public methods only."""
        self.finish = _text(said, "finish_reason", "stop_reason") or self.finish
        self.response_model = _text(said, "model_name", "model") or self.response_model
        self.response_id = _text(said, "id") or self.response_id

    def whole(self, result: ChatResult) -> None:
        """Hear a whole answer."""
        generation = result.generations[0]
        self.take(generation.message)
        self.hear(generation.generation_info or {})
        self.hear(result.llm_output or {})
        self.ended()

    def ended(self) -> None:
        """The stream has ended cleanly: what the provider said of it is the whole."""
        if self._said:
            self.output, self.certainty = self._said, Certainty.EXACT

    def _add(self, said: UsageMetadata) -> None:
        """Providers give the whole in the last chunk, or the prompt in the first and the rest in the last."""
        self._said += said.get("output_tokens", 0)
        self.input = (self.input or 0) + said.get("input_tokens", 0)
        if cached := (said.get("input_token_details") or {}).get("cache_read"):
            self.cached = (self.cached or 0) + cached


async def metered(stream: AsyncIterator[ChatGenerationChunk], meter: Meter) -> AsyncIterator[ChatGenerationChunk]:
    """Pass a stream on, and tell the meter of every chunk and of a clean end."""
    try:
        async for chunk in stream:
            meter.saw(chunk)
            yield chunk
        meter.ended()
    finally:
        await cast("Any", stream).aclose()


def _text(said: Mapping[str, Any], *names: str) -> str:
    for name in names:
        if isinstance(value := said.get(name), str) and value:
            return value
    return ""
