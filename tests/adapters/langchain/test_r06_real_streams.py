"""B5 over real HTTP: 200 random hedged streams, and 60 losers of 60 cancelled while they decode (Python 3.11)."""

from __future__ import annotations

import asyncio
import gc
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.messages import AIMessage

from agent_hedge import Fixed
from agent_hedge.testing.engine import Ending, FakeEngine, Hardware, Record, Reply
from tests.adapters.langchain.kit import ample, hedged, said
from tests.conftest import HUNG_S

pytestmark = pytest.mark.asyncio

CALLS, AT_A_TIME = 200, 8
WORDS = 10
LOSERS = 60


@pytest.fixture(scope="module")
def slow() -> Iterator[tuple[FakeEngine, FakeEngine]]:
    """Two engines with random first-token times of about 20 ms, which name themselves in every word, and who say a
    farewell for two seconds."""
    hardware = Hardware(decode_rate=200.0, slots=64)

    def replies(name: str) -> Any:
        return lambda request: " ".join([name] * (WORDS if request.messages[0]["content"] == "Hello" else 400))

    with (
        FakeEngine.in_thread("lognormal:0.02,1.0", hardware=hardware, replies=replies("one"), seed=1) as one,
        FakeEngine.in_thread("lognormal:0.02,1.0", hardware=hardware, replies=replies("two"), seed=2) as two,
    ):
        yield one, two


async def test_r05_r06_random_streams_and_departures(slow: tuple[FakeEngine, FakeEngine]) -> None:
    rng = random.Random(11)
    hedger = ample(policy=Fixed(0.0))  # a timer would be late, and move, on a loaded machine
    model = hedged(slow, hedger)
    seen: Counter[str] = Counter()

    async def one(number: int) -> None:
        """Stay to the end, or leave: after some time, or (so that some do on any machine) in mid-answer."""
        departs, spoken = number % 2 == 1, asyncio.Event()
        usage = UsageMetadataCallbackHandler()
        usage.run_inline = True
        words: list[str] = []

        async def consume() -> None:
            async for chunk in model.astream("Adieu" if departs else "Hello", {"callbacks": [usage]}):
                words.extend(chunk.text.split())
                spoken.set()

        call = asyncio.ensure_future(consume())
        if departs:
            await asyncio.sleep(rng.random() * 0.12)
            if number % 4 == 3:
                await spoken.wait()
            call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        whole = not call.cancelled() and call.exception() is None
        assert len(set(words)) <= 1
        if whole:
            assert words == words[:1] * WORDS
            assert [counts["input_tokens"] for counts in usage.usage_metadata.values()] == [
                slow[0].records[-1].prompt_tokens
            ]
        seen[words[0] if whole else "departed"] += 1

    for start in range(0, CALLS, AT_A_TIME):
        await asyncio.gather(*map(one, range(start, start + AT_A_TIME)))
        await asyncio.sleep(0.02)
    assert set(seen) == {"one", "two", "departed"}
    assert hedger.status()["last_60_minutes"]["hedges"] >= CALLS / 4
    for engine in slow:
        assert Counter(record.ending for record in engine.records)[Ending.ABORTED] >= CALLS / 20
    await nothing_is_left(slow, model)


async def test_r06_sixty_of_sixty_losers_stop_decoding() -> None:
    """With the client's default settings, whose `wait_for` swallows cancels on Python 3.11 in up to 30 % of cases.

    `accept` makes both attempts decode: the short answer wins while the long one is in the middle of its own.
    """

    def replies(request: Any) -> Reply:
        return Reply(text="yes " * 6)

    def at_length(request: Any) -> Reply:
        return Reply(text="well " * 4_000)

    hardware = Hardware(decode_rate=100.0, slots=64)
    with (
        FakeEngine.in_thread(hardware=hardware, replies=at_length) as long,
        FakeEngine.in_thread(hardware=hardware, replies=replies) as short,
    ):

        def accept(message: AIMessage) -> bool:
            return True

        model = hedged([long, short], ample(policy=Fixed(0.0)), options={"accept": accept})
        assert model._members[0].model.stream_chunk_timeout == 120.0  # type: ignore[attr-defined]
        while len(decoding(long)) < LOSERS:
            answers = await asyncio.gather(*(model.ainvoke("Hello") for _ in range(3)))
            assert {said(answer)["target"] for answer in answers} == {"1"}
            await long.wait_idle()
        losers = decoding(long)
        assert {record.ending for record in long.records} == {Ending.ABORTED}
        assert max(record.completion_computed for record in losers) < 2_000
        assert all(record.release_delay is not None for record in losers)
        assert len({record.completion_computed for record in losers}) > 3
        await nothing_is_left((long, short), model)


def decoding(engine: FakeEngine) -> list[Record]:
    """Return what the engine had begun to answer."""
    return [record for record in engine.records if record.first_token is not None]


async def nothing_is_left(engines: tuple[FakeEngine, FakeEngine], model: Any) -> None:
    """No request, no task, and no socket once the members' clients are closed."""
    for engine in engines:
        await engine.wait_idle()
    gc.collect()  # the SDK leaves its inner generators to the collector; they are to be closed while their loop runs
    await asyncio.sleep(0.01)
    pending = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if pending:
        await asyncio.wait(pending, timeout=HUNG_S)
    assert asyncio.all_tasks() == {asyncio.current_task()}
    for member in model._members:
        await member.copies.here().http_async_client.aclose()
    async with asyncio.timeout(HUNG_S):
        while any(engine.connections for engine in engines):  # noqa: ASYNC110 - an engine tells nobody of them
            await asyncio.sleep(0.01)
