"""B6 and DESIGN 5.17: one request an attempt, and the user's own objects stay as they were."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel

from agent_hedge.adapters.langchain.private import private_copy
from agent_hedge.errors import AllAttemptsFailed, ConfigurationError
from agent_hedge.testing.engine import FakeEngine, Fault
from tests.adapters.langchain.kit import Scripted, ample, anthropic, hedged, plain, requests

pytestmark = [pytest.mark.asyncio, pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio'")]

Engines = tuple[FakeEngine, FakeEngine]


async def ask(model: BaseChatModel, how: str) -> Any:
    if how == "astream":
        return [chunk async for chunk in model.astream("Hello")]
    return await (model.ainvoke("Hello") if how == "ainvoke" else asyncio.to_thread(model.invoke, "Hello"))


@pytest.mark.parametrize("how", ["ainvoke", "astream", "invoke"])
async def test_a_500_costs_exactly_one_request_an_attempt(engines: Engines, how: str) -> None:
    for engine in engines:
        engine.faults = Fault(status=500)
    model, before = hedged(engines, max_retries=5), requests(engines)
    with pytest.raises(openai.InternalServerError) as caught:
        await ask(model, how)
    assert isinstance(caught.value.__cause__, AllAttemptsFailed)
    attempts = len(caught.value.__cause__.exceptions)
    assert attempts == requests(engines) - before == 3


async def test_r08_every_attempt_has_a_request_id_of_its_own(engines: Engines, agent_hedge_force: int) -> None:
    """Engines match ids by equality or by prefix, so none may be the beginning of another."""
    model = hedged(engines)
    for _ in range(3):
        await model.ainvoke("Hello", extra_headers={"X-Mine": "kept"})
    seen = [received.request.headers for engine in engines for received in engine.requests]
    ids = [headers["x-request-id"] for headers in seen if headers.get("x-mine") == "kept"]
    assert len(ids) == len(set(ids)) >= 3
    assert all(one == other or not one.startswith(other) for one in ids for other in ids)
    assert all(one.startswith("ah-") for one in ids)


def anatomy(model: BaseChatModel) -> dict[str, Any]:
    """Return all that a model holds, clients and their settings by identity and value."""
    held = dict(model.__dict__)
    client = getattr(model, "root_async_client", None)
    return held | {"fields set": set(model.model_fields_set), "retries": client and client.max_retries}


async def test_the_users_model_is_untouched(engines: Engines, agent_hedge_force: int) -> None:
    members = [plain(engine, temperature=0.5, tags=["mine"], max_retries=4) for engine in engines]
    before = [anatomy(member) for member in members]
    model = ample().chat_model(*members)
    await model.ainvoke("Hello")
    await asyncio.to_thread(model.invoke, "Hello")
    await model.bind_tools([{"type": "function", "function": {"name": "look", "parameters": {}}}]).ainvoke("Hello")
    assert [anatomy(member) for member in members] == before


MODELS: dict[str, Callable[[FakeEngine], BaseChatModel]] = {
    "base url": lambda engine: plain(engine, temperature=0.1, seed=3),
    "proxy": lambda engine: plain(engine, openai_proxy="http://127.0.0.1:9"),
    "callable key": lambda engine: plain(engine, api_key=lambda: "none"),
    "responses": lambda engine: plain(engine, reasoning={"effort": "low"}),
    "anthropic": lambda _: anthropic(max_tokens=99),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_copy_asks_for_what_the_model_asks_for_but_never_again(name: str, engines: Engines) -> None:
    model: Any = MODELS[name](engines[0])
    copy: Any = private_copy(model)
    prompt: Any = [("human", "Hello")]
    assert copy._get_request_payload(prompt) == model._get_request_payload(prompt)
    client = copy._async_client if name == "anthropic" else copy.root_async_client
    assert client.max_retries == 0
    original = model._async_client if name == "anthropic" else model.root_async_client
    assert client._client is not original._client
    assert original.max_retries == 2


def test_a_copy_keeps_its_key_when_the_environment_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "first")
    model = ChatAnthropic(model_name="claude-sonnet-4-5", timeout=None, stop=None)
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    copy: Any = private_copy(model)
    assert copy.anthropic_api_key.get_secret_value() == "first"


async def test_a_client_of_the_users_own_is_kept(engines: Engines) -> None:
    seen: list[httpx.Request] = []

    async def see(request: Any) -> None:
        seen.append(request)

    client = openai.DefaultAsyncHttpxClient(event_hooks={"request": [see]})
    model = ample().chat_model(plain(engines[0], http_async_client=client), plain(engines[1]))
    await model.ainvoke("Hello")
    assert len(seen) == 1
    resource = openai.AsyncOpenAI(base_url=engines[0].base_url, api_key="none").chat.completions
    copy: Any = private_copy(plain(engines[0], async_client=resource))
    assert copy.async_client is resource


def test_http2_is_warned_of(engines: Engines) -> None:
    pytest.importorskip("h2")
    client = openai.DefaultAsyncHttpxClient(http2=True)
    with pytest.warns(UserWarning, match="HTTP/2"):
        private_copy(plain(engines[0], http_async_client=client))


async def test_every_loop_has_clients_of_its_own(engines: Engines) -> None:
    """One client on two loops fails with "Event loop is closed"."""
    model = hedged(engines)
    await model.ainvoke("Hello")
    await asyncio.to_thread(model.invoke, "Hello")
    for _ in range(3):
        await asyncio.to_thread(lambda: asyncio.run(model.ainvoke("Hello")))
    await model.ainvoke("Hello")
    assert len(model._members[0].copies._by_loop) <= 3  # closed loops are forgotten


def test_sync_callers_in_many_threads(engines: Engines, agent_hedge_force: int) -> None:
    model = hedged(engines)
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(model.invoke("Hello").text)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(answers)) == 1 < len(answers)


class Stubborn(Scripted):
    """A model that cannot be built from its settings."""

    max_retries: int = 2

    def __init__(self, secret: str, **fields: Any) -> None:
        super().__init__("hi", **fields)


def test_a_model_that_cannot_be_built_again_is_an_error_at_construction() -> None:
    with pytest.raises(ConfigurationError, match="Stubborn cannot be built again"):
        ample().chat_model(Stubborn("shh"), Scripted("hi"))


def test_building_copies_repeats_no_warning(engines: Engines) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        member = plain(engines[0], model_kwargs={"temperature": 0.5})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        private_copy(member)


async def test_closing_the_hedger_closes_its_connections_on_every_loop_it_knows(engines: Engines) -> None:
    hedger = ample()
    model = hedged(engines, hedger)
    await model.ainvoke("Hello")
    await asyncio.to_thread(model.invoke, "Hello")  # on the background loop
    copies = model._members[0].copies
    clients = [copy.http_async_client for copy in copies._by_loop.values()]  # type: ignore[attr-defined]
    assert [client.is_closed for client in clients] == [False, False]
    await hedger.aclose()
    assert [client.is_closed for client in clients] == [True, True]
    assert (await model.ainvoke("Hello")).text, "it stays usable, with connections of its own"
    await hedger.aclose()
    assert not copies._by_loop


async def test_closing_the_hedger_closes_connections_to_the_other_provider() -> None:
    hedger = ample()
    model = hedger.chat_model(anthropic(), anthropic(), family="same")
    copy: Any = model._members[0].copies.here()
    await hedger.aclose()
    assert copy._async_client.is_closed()


async def test_closing_the_hedger_leaves_the_users_own_clients_open(engines: Engines) -> None:
    client = openai.DefaultAsyncHttpxClient()
    hedger = ample()
    model = hedger.chat_model(plain(engines[0], http_async_client=client), Scripted(steps=("x",)), family="same")
    await model.ainvoke("Hello")
    await hedger.aclose()
    assert not client.is_closed
    await client.aclose()
