"""What an attempt has used: the provider's word for a whole answer, a lower bound for what was cut short."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import httpx
import pytest
from langchain_core.messages import AIMessageChunk
from langchain_core.messages.ai import UsageMetadata
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from agent_hedge.adapters.langchain.phases import HOOKS
from agent_hedge.adapters.langchain.usage import Meter, metered
from agent_hedge.core.scope import ActiveAttempt, attempt_scope
from agent_hedge.core.step import Attempt, Certainty, Role
from agent_hedge.testing.fakes import place


def chunk(text: str = "", usage: tuple[int, int, int] | None = None, **metadata: Any) -> ChatGenerationChunk:
    used = None
    if usage is not None:
        given, cached, said = usage
        details = {"cache_read": cached} if cached else {}
        used = cast(
            "UsageMetadata",
            {
                "input_tokens": given,
                "output_tokens": said,
                "total_tokens": given + said,
                "input_token_details": details,
            },
        )
    message = AIMessageChunk(content=text, usage_metadata=used, response_metadata=metadata, id="chatcmpl-7")
    return ChatGenerationChunk(message=message)


def drained(chunks: list[ChatGenerationChunk], stop_after: int | None = None) -> Meter:
    async def stream() -> AsyncIterator[ChatGenerationChunk]:
        for one in chunks:
            yield one

    async def main() -> Meter:
        meter = Meter()
        async with aclosing(cast("Any", metered(stream(), meter))) as items:
            count = 0
            async for _ in items:
                count += 1
                if count == stop_after:
                    break
        return meter

    return asyncio.run(main())


OPENAI = [chunk("a b"), chunk("c"), chunk(finish_reason="stop", model_name="gpt-x"), chunk(usage=(100, 40, 50))]
ANTHROPIC = [chunk(usage=(100, 0, 1)), chunk("a b"), chunk("c"), chunk(usage=(0, 0, 49), stop_reason="end_turn")]


@pytest.mark.parametrize("chunks", [OPENAI, ANTHROPIC], ids=["openai", "anthropic"])
def test_a_whole_answer_has_the_providers_count(chunks: list[ChatGenerationChunk]) -> None:
    meter = drained(chunks)
    assert (meter.input, meter.output, meter.certainty) == (100, 50, Certainty.EXACT)
    assert meter.chunks == 2
    assert meter.response_id == "chatcmpl-7"
    assert meter.finish in ("stop", "end_turn")


@pytest.mark.parametrize(("chunks", "stop_after"), [(OPENAI, 2), (ANTHROPIC, 3)], ids=["openai", "anthropic"])
def test_what_was_cut_short_is_a_lower_bound(chunks: list[ChatGenerationChunk], stop_after: int) -> None:
    meter = drained(chunks, stop_after)
    assert (meter.output, meter.certainty) == (2, Certainty.AT_LEAST)


def test_what_never_spoke_is_unknown() -> None:
    meter = drained([chunk()], 1)
    assert (meter.output, meter.certainty) == (None, Certainty.UNKNOWN)


def test_a_message_given_whole() -> None:
    usage = Meter()
    answer = ChatGeneration(
        message=chunk("answer", usage=(10, 0, 5)).message, generation_info={"finish_reason": "length"}
    )
    usage.whole(ChatResult(generations=[answer], llm_output={"model_name": "m", "id": "chatcmpl-8"}))
    assert (usage.input, usage.output, usage.certainty) == (10, 5, Certainty.EXACT)
    assert (usage.response_model, usage.response_id, usage.finish) == ("m", "chatcmpl-8", "length")
    assert drained(OPENAI).cached == 40


@pytest.mark.parametrize(
    ("said", "queue"), [({"x-queue-time": "250"}, 0.25), ({"x-queue-time": "soon"}, None), ({}, None)]
)
def test_the_time_in_the_queue_is_the_engines_own_word(said: dict[str, str], queue: float | None) -> None:
    attempt = ActiveAttempt(Attempt(0, Role.PRIMARY, place("a"), 0.0, math.inf), cast("Any", None))
    meter = attempt.usage = Meter()

    async def main() -> None:
        transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=said))
        async with httpx.AsyncClient(transport=transport, event_hooks=HOOKS) as client:
            await client.get("http://engine")
            assert (meter.headers, attempt.phase) == (None, ""), "outside of an attempt nobody is asked"
            attempt_scope.set(attempt)
            await client.get("http://engine")

    asyncio.run(main())
    assert attempt.phase == "headers"
    assert meter.queue == queue
    assert meter.headers is not None
