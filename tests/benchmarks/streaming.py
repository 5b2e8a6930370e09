"""Acceptance B7: what a hedged streaming call costs beside the bare one, in one process.

    python -m tests.benchmarks.streaming [--json]

CPU time of the process (this machine's wall clock is noisy), median of interleaved repeats, over a model that answers
from memory, with a learnt threshold, so that every call arms a trigger and none fires. The price is fitted to answers
of two lengths: so much a call, so much a chunk. Exit code 1 when the bound is missed.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import statistics
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult

from agent_hedge import Hedger, Quantile, Target
from agent_hedge.core.step import StepKey
from agent_hedge.latency import LatencyBook

SHORT, LONG = 5, 205
CALLS = {SHORT: 60, LONG: 6}
REPEATS, WARM = 61, 60
PER_CALL_BOUND_US, PER_CHUNK_BOUND_US = 60.0, 6.0

PROMPT = [HumanMessage("What is the tail at scale?")]


class InMemory(BaseChatModel):
    """Streams `length` chunks of text as fast as it can."""

    length: int = SHORT
    model_name: str = "in-memory"

    @property
    def _llm_type(self) -> str:
        return "in-memory"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        for _ in range(self.length):
            yield ChatGenerationChunk(message=AIMessageChunk(content="word "))


def hedged(length: int) -> BaseChatModel:
    """Return the model over two members, with a book that has learnt."""
    hedger = Hedger(policy=Quantile(0.9))
    book = LatencyBook()
    now = asyncio.get_running_loop().time()
    rng = random.Random(7)
    latencies = [rng.lognormvariate(math.log(0.8), 0.35) for _ in range(5000)]
    for name in ("a", "b"):
        for seconds in latencies:
            book.record(StepKey(node="chat", model="in-memory"), name, seconds, now)
    hedger.prime(book)
    return hedger.chat_model(Target("a", InMemory(length=length)), Target("b", InMemory(length=length)))


async def cpu_us(model: BaseChatModel, calls: int) -> float:
    start = time.process_time()
    for _ in range(calls):
        async for _chunk in model.astream(PROMPT):
            pass
    return (time.process_time() - start) / calls * 1e6


async def measure() -> dict[str, float]:
    added = {}
    figures = {}
    for length in (SHORT, LONG):
        models = {"bare": InMemory(length=length), "hedged": hedged(length)}
        times: dict[str, list[float]] = {name: [] for name in models}
        for model in models.values():
            await cpu_us(model, WARM)
        for _ in range(REPEATS):
            for name, model in models.items():
                times[name].append(await cpu_us(model, CALLS[length]))
        for name, values in times.items():
            figures[f"{name}_{length}_chunks_us"] = statistics.median(values)
        added[length] = figures[f"hedged_{length}_chunks_us"] - figures[f"bare_{length}_chunks_us"]
    per_chunk = (added[LONG] - added[SHORT]) / (LONG - SHORT)
    return figures | {"added_per_call_us": added[SHORT] - SHORT * per_chunk, "added_per_chunk_us": per_chunk}


def main() -> int:
    figures = asyncio.run(measure())
    met = figures["added_per_call_us"] <= PER_CALL_BOUND_US and figures["added_per_chunk_us"] <= PER_CHUNK_BOUND_US
    if "--json" in sys.argv:
        print(json.dumps({"us": figures, "met": met}))
        return 0 if met else 1
    for name, value in figures.items():
        print(f"{name:24s} {value:9.1f}")
    print(f"bounds: {PER_CALL_BOUND_US:g} us a call, {PER_CHUNK_BOUND_US:g} us a chunk; {'met' if met else 'MISSED'}")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
