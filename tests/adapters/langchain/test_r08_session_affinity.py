"""Request ids are an attempt's own (R8); what ties a conversation to a replica or its prompt cache is the caller's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel

from agent_hedge import Target
from agent_hedge.testing.engine import FakeEngine, Fault, Replay
from agent_hedge.testing.engine.request import Request
from tests.adapters.langchain.kit import ample, anthropic, anthropic_body, plain
from tests.conftest import HUNG_S

pytestmark = [pytest.mark.asyncio, pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio'")]

Engines = tuple[FakeEngine, FakeEngine]
CACHED = {"prompt_cache_key": "thread-7", "user": "user-3", "safety_identifier": "user-3"}
KNOWN = {"metadata": {"user_id": "user-3"}}
HEADERS = {"X-Session-Id": "thread-7", "x-session-affinity": "thread-7"}


@dataclass(frozen=True)
class Provider:
    member: Callable[..., BaseChatModel]
    """Makes a member from an engine and settings."""
    keys: dict[str, Any]
    """What its requests carry in their bodies."""
    passed: dict[str, Any]
    """How a caller says so."""
    fault: Fault | None = None
    """How the engine, which speaks OpenAI's protocol, answers in this one's."""


PROVIDERS = {
    "openai": Provider(plain, CACHED, CACHED),
    "anthropic": Provider(
        lambda engine, **settings: anthropic(base_url=engine.url, **settings),
        KNOWN,
        {"extra_body": KNOWN},  # `metadata` itself would be LangChain's
        Fault(replay=Replay(body=anthropic_body({"text": "Hello"}))),
    ),
}


async def ask(model: Any, how: str, **given: Any) -> None:
    if how == "invoke":
        await asyncio.to_thread(model.invoke, "Hello", **given)
    elif how == "stream":
        await asyncio.to_thread(lambda: list(model.stream("Hello", **given)))
    else:
        await model.ainvoke("Hello", **given)


@pytest.mark.parametrize("how", ["invoke", "stream", "ainvoke"])
@pytest.mark.parametrize("given", ["call", "binding", "member"])
@pytest.mark.parametrize("name", PROVIDERS)
async def test_r08_affinity_keys_reach_primary_and_hedge_unchanged(
    engines: Engines, agent_hedge_force: int, name: str, given: str, how: str
) -> None:
    provider = PROVIDERS[name]
    both = threading.Barrier(2)  # neither engine answers before the other attempt has come, too
    seen: list[Request] = []

    def receive(request: Request) -> Fault | None:
        seen.append(request)
        both.wait(HUNG_S)
        return provider.fault

    settings = {"model_kwargs": provider.keys, "default_headers": HEADERS} if given == "member" else {}
    passed = {**provider.passed, "extra_headers": HEADERS}
    members = (Target(str(number), provider.member(engine, **settings)) for number, engine in enumerate(engines))
    model: Any = ample().chat_model(*members)
    for engine in engines:
        engine.faults = receive
    if given == "call":
        await ask(model, how, **passed)
    else:
        await ask(model.bind(**passed) if given == "binding" else model, how)

    assert len(seen) == 2
    for request in seen:
        assert {key: request.json.get(key) for key in provider.keys} == provider.keys
        assert {key: request.headers.get(key.lower()) for key in HEADERS} == HEADERS
        assert "x-conversation-id" not in request.headers
    one, other = (request.headers["x-request-id"] for request in seen)
    assert one != other
