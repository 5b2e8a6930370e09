"""R12, Build 2 of the run: a member's own time-outs end no later than the deadline, and are never made longer."""

from __future__ import annotations

import math
import time
from typing import Any

import httpx
import openai
import pytest

from agent_hedge.adapters.langchain.deadline import limited
from agent_hedge.adapters.langchain.private import private_copy
from agent_hedge.testing.engine import FakeEngine
from tests.adapters.langchain.kit import ample, anthropic, plain

pytestmark = [pytest.mark.asyncio, pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio'")]

Engines = tuple[FakeEngine, FakeEngine]


class Wire:
    """A client of the user's that notes the time-outs and the headers of every request."""

    def __init__(self) -> None:
        self.timeouts: list[dict[str, float | None]] = []
        self.headers: list[httpx.Headers] = []
        self.client = openai.DefaultAsyncHttpxClient(event_hooks={"request": [self._see]})

    async def _see(self, request: Any) -> None:
        self.timeouts.append(request.extensions["timeout"])
        self.headers.append(request.headers)


@pytest.mark.parametrize("how", ["ainvoke", "astream", "responses"])
async def test_r12_the_sdks_time_outs_end_with_the_run(engines: Engines, how: str) -> None:
    wire, hedger = Wire(), ample()
    settings: dict[str, Any] = {"use_responses_api": True} if how == "responses" else {}
    member = plain(engines[0], http_async_client=wire.client, timeout=httpx.Timeout(600.0, connect=5.0), **settings)
    model = hedger.chat_model(member, plain(engines[1], **settings))
    async with hedger.run(deadline=20.0):
        if how == "astream":
            assert [chunk async for chunk in model.astream("Hello")]
        elif how == "ainvoke":
            await model.ainvoke("Hello")
        else:
            with pytest.raises(openai.NotFoundError):  # the fake engine has no such address
                await model.ainvoke("Hello")
    (seen,) = wire.timeouts
    assert seen["connect"] == 5.0, "what is shorter stays"
    assert 15.0 < (seen["read"] or 0.0) <= 20.0
    await wire.client.aclose()


async def test_r12_without_a_deadline_the_members_time_outs_are_its_own(engines: Engines) -> None:
    wire, hedger = Wire(), ample()
    model = hedger.chat_model(plain(engines[0], http_async_client=wire.client, timeout=44.0), plain(engines[1]))
    await model.ainvoke("Hello")
    assert wire.timeouts == [dict.fromkeys(("connect", "read", "write", "pool"), 44.0)]
    await wire.client.aclose()


async def test_r12_a_time_out_of_the_call_is_kept_where_it_is_shorter(engines: Engines) -> None:
    wire, hedger = Wire(), ample()
    model = hedger.chat_model(plain(engines[0], http_async_client=wire.client), plain(engines[1]))
    async with hedger.run(deadline=20.0):
        await model.ainvoke("Hello", timeout=3.0)
        await model.ainvoke("Hello", timeout=300.0)
    first, second = wire.timeouts
    assert first["read"] == 3.0
    assert 15.0 < (second["read"] or 0.0) <= 20.0
    await wire.client.aclose()


async def test_r12_the_other_provider_too() -> None:
    copy = private_copy(anthropic(default_request_timeout=90.0))
    assert limited(copy, None, 7.0) == httpx.Timeout(7.0)
    assert limited(copy, None, 100.0) == httpx.Timeout(90.0)
    assert limited(copy, None, math.inf) is None


async def test_r12_every_attempt_says_what_is_left_to_it_where_that_is_asked_for(engines: Engines) -> None:
    wire = Wire()
    hedger = ample(deadline_headers={"grpc-timeout": "grpc", "X-Request-Deadline": "epoch"})
    model = hedger.chat_model(plain(engines[0], http_async_client=wire.client), plain(engines[1]))
    await model.ainvoke("Hello")
    async with hedger.run(deadline=20.0):
        await model.ainvoke("Hello")
    endless, limited_ = wire.headers
    assert "grpc-timeout" not in endless
    assert 15_000 < int(limited_["grpc-timeout"].removesuffix("m")) <= 20_000
    assert float(limited_["x-request-deadline"]) == pytest.approx(time.time() + 20.0, abs=5.0)
    await wire.client.aclose()
