"""B3: a hedged model beside its plain member, also while hedges are forced and either attempt wins."""

from __future__ import annotations

import asyncio
import copy
import pickle
import sys
from typing import Any, TypedDict

import openai
import pytest
import uvloop
from langchain.agents import create_agent
from langchain.agents.middleware import ModelRetryMiddleware, SummarizationMiddleware
from langchain_core.caches import InMemoryCache
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage
from langchain_core.outputs import LLMResult
from langgraph.cache.memory import InMemoryCache as NodeCache
from langgraph.graph import START, StateGraph
from langgraph.types import CachePolicy, RetryPolicy
from pydantic import BaseModel

from agent_hedge import AllAttemptsFailed, Fixed
from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.engine import FakeEngine, Fault, Request
from tests.adapters.langchain.kit import (
    Ear,
    Limiter,
    Refusals,
    Scripted,
    ample,
    bare,
    hedged,
    plain,
    requests,
    said,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio'")]

Engines = tuple[FakeEngine, FakeEngine]

BUSY = Fault(status=429, retry_after=0.0)


class Messages(TypedDict):
    messages: list[Any]


def without_ours(result: LLMResult) -> LLMResult:
    """Return the result without what is ours, and without what differs between any two runs of the plain model."""
    result = result.model_copy(deep=True)
    for [generation] in result.generations:
        message = generation.message  # type: ignore[union-attr]
        message.id = None
        message.response_metadata.pop("agent_hedge", None)
    return result


# --- what it says ---------------------------------------------------------------------------------------------------


async def test_usage_is_told_once_with_a_base_url_of_the_users_own(engines: Engines, agent_hedge_force: int) -> None:
    model = hedged(engines)
    expected = (await bare(engines[0]).ainvoke("How many?")).usage_metadata
    handler = UsageMetadataCallbackHandler()
    answer = await model.ainvoke("How many?", config={"callbacks": [handler]})
    assert answer.usage_metadata is not None
    assert expected is not None
    assert answer.usage_metadata["total_tokens"] == expected["total_tokens"]
    assert [counts["total_tokens"] for counts in handler.usage_metadata.values()] == [expected["total_tokens"]]
    assert said(answer)["target"] == str(agent_hedge_force)
    chunks = [chunk async for chunk in model.astream("How many?")]
    assert [chunk.usage_metadata["total_tokens"] for chunk in chunks if chunk.usage_metadata] == [
        expected["total_tokens"]
    ]


@pytest.mark.parametrize("how", ["ainvoke", "astream", "invoke", "stream"])
async def test_callbacks_tags_and_metadata_are_those_of_the_plain_model(
    engines: Engines, agent_hedge_force: int, how: str
) -> None:
    heard = []
    settings: dict[str, Any] = {
        "tags": ["mine"],
        "metadata": {"team": "search"},
        "temperature": 0.5,
        "stream_usage": True,
    }
    for model in (bare(engines[0], streaming=True, **settings), hedged(engines, streaming=True, **settings)):
        ear = Ear()
        config: Any = {"callbacks": [ear], "tags": ["theirs"], "metadata": {"user": 7}, "run_name": "answer"}
        if how == "ainvoke":
            await model.ainvoke("Hello", config, stop=["never"])
        elif how == "astream":
            async for _ in model.astream("Hello", config, stop=["never"]):
                pass
        elif how == "invoke":
            await asyncio.to_thread(model.invoke, "Hello", config, stop=["never"])
        else:
            await asyncio.to_thread(lambda: list(model.stream("Hello", config, stop=["never"])))  # noqa: B023
        heard.append(ear)
    expected, ours = heard
    assert ours.kinds == expected.kinds
    assert ours.heard[0] == expected.heard[0]
    assert [token for kind, token in ours.heard if kind == "token"] == [
        t for kind, t in expected.heard if kind == "token"
    ]
    assert without_ours(ours.heard[-1][1]) == without_ours(expected.heard[-1][1])


async def test_an_error_ends_the_run_as_with_the_plain_model(engines: Engines, agent_hedge_force: int) -> None:
    for engine in engines:
        engine.faults = Fault(status=400)
    ears = [Ear(), Ear()]
    for model, ear in zip((bare(engines[0]), hedged(engines)), ears, strict=True):
        with pytest.raises(openai.BadRequestError):
            await model.ainvoke("Hello", config={"callbacks": [ear]})
    assert ears[1].kinds == ears[0].kinds == ["start", "error"]


def test_it_is_known_by_what_its_primary_is_known_by(engines: Engines) -> None:
    settings: dict[str, Any] = {"temperature": 0.3, "custom_get_token_ids": lambda text: [1] * len(text.split())}
    single, ours = plain(engines[0], **settings), hedged(engines, **settings)
    assert ours.profile == single.profile is not None
    for name in ("model_name", "temperature", "openai_api_base", "_llm_type", "_identifying_params", "_serialized"):
        assert getattr(ours, name) == getattr(single, name)
    assert ours.get_num_tokens("three little words") == single.get_num_tokens("three little words") == 3
    assert ours.get_token_ids("two words") == [1, 1]
    assert ours._get_ls_params(stop=["x"]) == single._get_ls_params(stop=["x"])
    assert ours._get_ls_params(model="other")["ls_model_name"] == "other"
    with pytest.raises(AttributeError):
        ours.no_such_thing  # noqa: B018


# --- what it honours ------------------------------------------------------------------------------------------------


async def test_rate_limiters_are_waited_for_as_by_the_plain_model(engines: Engines) -> None:
    limiter = Limiter(turns=1)
    model = hedged(engines, rate_limiter=limiter)
    await model.ainvoke("one")
    async for _ in model.astream("two"):
        pass
    await asyncio.to_thread(model.invoke, "three")
    assert (limiter.taken, limiter.waited, limiter.refused) == (3, 2, 0)


async def test_a_hedge_that_would_wait_for_a_rate_limiter_is_refused(engines: Engines) -> None:
    ears = Refusals()
    hedger = ample(policy=Fixed(0.0), observers=[ears])
    before = requests(engines)
    limiter = Limiter(turns=1)
    model = hedger.chat_model(plain(engines[0]), plain(engines[1], rate_limiter=limiter))
    answers = [await model.ainvoke("Hello") for _ in range(3)]
    assert [said(answer)["hedged"] for answer in answers] == [True, False, False]
    assert ears.reasons == ["rate_limited", "rate_limited"]
    assert (limiter.taken, limiter.refused) == (1, 2)
    assert hedger.status()["budget"]["hedges"] == 1
    assert requests(engines) - before <= 4


async def test_the_cache_answers_without_a_dispatch_and_is_keyed_by_all_members(
    engines: Engines, agent_hedge_force: int
) -> None:
    cache = InMemoryCache()
    model = hedged(engines, cache=cache)
    first = await model.ainvoke("Hello")
    before = requests(engines)
    again = await model.ainvoke("Hello")
    assert requests(engines) == before
    assert again.text == first.text
    assert said(first)["hedged"]
    assert said(again) == said(first) | {"attempts": 0, "hedged": False, "trigger_s": None, "ttft_s": None}
    other = ample().chat_model(plain(engines[0], cache=cache), plain(engines[1], model="another"), family="one")
    await other.ainvoke("Hello")
    assert requests(engines) > before


async def test_a_node_cache_hit_costs_no_dispatch(engines: Engines, agent_hedge_force: int) -> None:
    model = hedged(engines)

    async def answer(state: Messages) -> dict[str, Any]:
        return {"messages": [*state["messages"], (await model.ainvoke(state["messages"])).text]}

    builder = StateGraph(Messages)
    builder.add_node("answer", answer, cache_policy=CachePolicy())
    builder.add_edge(START, "answer")
    graph = builder.compile(cache=NodeCache())
    first = await graph.ainvoke({"messages": ["Hello"]})
    before = requests(engines)
    assert await graph.ainvoke({"messages": ["Hello"]}) == first
    assert requests(engines) == before


# --- agents ---------------------------------------------------------------------------------------------------------


class Weather(BaseModel):
    """The weather in one place."""

    city: str
    degrees: int


def look(city: str) -> str:
    """Look out of the window."""
    return f"fine in {city}"


@pytest.mark.parametrize("name", ["gpt-5", "gpt-3.5-turbo"])
async def test_create_agent_picks_the_same_structured_output_strategy(
    engines: Engines, agent_hedge_force: int, name: str
) -> None:
    """gpt-5's profile has native structured output, the other's has not: a tool stands in."""
    sent = []
    for model in (bare(engines[0], model=name), hedged(engines, model=name)):
        agent = create_agent(model, [look], response_format=Weather)
        result = await agent.ainvoke({"messages": [HumanMessage("Call Weather: 'Rome' has 21 degrees")]})
        assert result["structured_response"] == Weather(city="Rome", degrees=21) or name == "gpt-5"
        body = dict(engines[0].requests[-1].request.json)
        sent.append({key: body.get(key) for key in ("tools", "tool_choice", "response_format")})
    assert sent[0] == sent[1]
    assert (sent[0]["response_format"] is not None) == (name == "gpt-5")


def test_fractional_summarisation_reads_the_profile(engines: Engines) -> None:
    for model in (plain(engines[0]), hedged(engines)):
        SummarizationMiddleware(model=model, trigger=("fraction", 0.5), keep=("fraction", 0.1))
    for nameless in (plain(engines[0], model="unheard-of"), hedged(engines, model="unheard-of")):
        with pytest.raises(ValueError, match="profile"):
            SummarizationMiddleware(model=nameless, trigger=("fraction", 0.5), keep=("fraction", 0.1))


async def test_an_agent_with_tools_runs_to_its_end(engines: Engines, agent_hedge_force: int) -> None:
    results = []
    for model in (bare(engines[0]), hedged(engines)):
        agent = create_agent(model, [look])
        result = await agent.ainvoke({"messages": [HumanMessage("Call look for 'Oslo'")]})
        results.append([(message.type, message.text) for message in result["messages"]])
    assert results[0] == results[1]
    assert [kind for kind, _ in results[0]] == ["human", "ai", "tool", "ai"]


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.fixture
def busy(engines: Engines) -> None:
    for engine in engines:
        engine.faults = BUSY


@pytest.mark.usefixtures("busy")
async def test_a_rate_limit_error_is_the_users_own_type_with_its_response(
    engines: Engines, agent_hedge_force: int
) -> None:
    model = hedged(engines)
    with pytest.raises(openai.RateLimitError) as caught:
        await model.ainvoke("Hello")
    assert caught.value.response.status_code == 429
    assert caught.value.response.headers["retry-after"] == "0"
    assert isinstance(caught.value.__cause__, AllAttemptsFailed)
    assert caught.value.__cause__.exceptions[0] is caught.value
    with pytest.raises(openai.RateLimitError):
        await asyncio.to_thread(model.invoke, "Hello")
    with pytest.raises(openai.RateLimitError):
        [chunk async for chunk in model.astream("Hello")]


@pytest.mark.usefixtures("busy")
async def test_fallbacks_by_exception_type(engines: Engines, agent_hedge_force: int) -> None:
    spare = Scripted("spare")
    for model in (bare(engines[0], max_retries=0), hedged(engines)):
        chain = model.with_fallbacks([spare], exceptions_to_handle=(openai.RateLimitError,))
        assert (await chain.ainvoke("Hello")).text == "spare"
        strict = model.with_fallbacks([spare], exceptions_to_handle=(openai.NotFoundError,))
        with pytest.raises(openai.RateLimitError):
            await strict.ainvoke("Hello")


def fails_at_first(request: Request) -> Fault | None:
    """429 for every request of the first try; the prompt says which try it is."""
    return BUSY if "try 1" in request.prompt else None


async def test_retry_policies_by_exception_type(engines: Engines, agent_hedge_force: int) -> None:
    for engine in engines:
        engine.faults = fails_at_first
    for model in (bare(engines[0], max_retries=0), hedged(engines)):
        tries: list[int] = []

        async def ask(state: Messages, model: BaseChatModel = model, tries: list[int] = tries) -> dict[str, Any]:
            tries.append(len(tries) + 1)
            return {"messages": [(await model.ainvoke(f"try {tries[-1]}")).text]}

        builder = StateGraph(Messages)
        policy = RetryPolicy(retry_on=openai.RateLimitError, initial_interval=0.0, jitter=False)
        builder.add_node("ask", ask, retry_policy=policy)
        builder.add_edge(START, "ask")
        await builder.compile().ainvoke({"messages": []})
        assert tries == [1, 2]


async def test_model_retry_middleware(engines: Engines, agent_hedge_force: int) -> None:
    for model in (bare(engines[0], max_retries=0), hedged(engines)):
        engines[0].faults = engines[1].faults = BUSY
        seen: list[Exception] = []

        def retry_on(error: Exception, seen: list[Exception] = seen) -> bool:
            seen.append(error)
            engines[0].faults = engines[1].faults = None
            return isinstance(error, openai.RateLimitError)

        retry = ModelRetryMiddleware(max_retries=2, retry_on=retry_on, initial_delay=0.0, jitter=False)
        result = await create_agent(model, [], middleware=[retry]).ainvoke({"messages": [HumanMessage("Hello")]})
        assert [isinstance(error, openai.RateLimitError) for error in seen] == [True]
        assert result["messages"][-1].response_metadata["finish_reason"] == "stop"


# --- copies, loops --------------------------------------------------------------------------------------------------


async def test_copies_share_the_hedger_and_call_copied_members() -> None:
    hedger = ample()
    bound: Any = hedger.chat_model(Scripted("one"), Scripted("two")).bind_tools(["look"])
    for copied in (copy.copy(bound), copy.deepcopy(bound), bound.model_copy(), bound.model_copy(deep=True)):
        assert (await copied.ainvoke("Hello")).text == "one"
    assert hedger.status()["last_60_minutes"]["requests"] == 4
    model = hedger.chat_model(Scripted("one"), Scripted("two"))
    deep = copy.deepcopy(model)
    assert (await deep.ainvoke("Hello")).text == "one"
    assert deep._primary is not model._primary


async def test_a_copied_binding_gives_each_member_its_own_tools() -> None:
    def fails(_: int) -> list[Any]:
        return [ConnectionError()]

    other = Scripted("two", model_name="second")
    bound: Any = ample().chat_model(Scripted(script=fails, model_name="first"), other, family="f").bind_tools(["look"])
    copied = copy.deepcopy(bound)
    assert (await copied.ainvoke("Hello")).text == "two"
    assert copied.bound._members[1].model.calls[0]["tools"] == [{"name": "second:look"}]


async def test_a_member_may_ignore_tools_but_not_bind_them_unseen() -> None:
    class Ignores(Scripted):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    class Elsewhere(Scripted):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self.model_copy()

    model = ample().chat_model(Ignores(script=["one"]), Scripted("two"), family="f")
    assert (await model.bind_tools(["look"]).ainvoke("Hello")).text == "one"
    with pytest.raises(ConfigurationError, match=r"\(Elsewhere\) binds tools in a way that cannot be hedged"):
        ample().chat_model(Elsewhere(script=["one"]), Scripted("two"), family="f").bind_tools(["look"])


async def test_an_updated_copy_updates_every_member(engines: Engines, agent_hedge_force: int) -> None:
    model = hedged(engines)
    updated = model.model_copy(update={"temperature": 0.25, "tags": ["new"]})
    await updated.ainvoke("Hello")
    assert updated.temperature == 0.25
    assert updated.tags == ["new"]
    assert model.temperature is None
    for engine in engines:
        await engine.wait_idle()
    winner = engines[agent_hedge_force]
    assert winner.requests[-1].request.json["temperature"] == 0.25
    with pytest.raises(ConfigurationError, match="'no_such_setting'"):
        model.model_copy(update={"no_such_setting": 1})
    with pytest.raises(ConfigurationError, match="'rate_limiter'"):
        model.model_copy(update={"rate_limiter": Limiter()})


def test_what_the_plain_member_cannot_do_the_hedged_model_cannot_do_either(engines: Engines) -> None:
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(plain(engines[0]))
    with pytest.raises(TypeError, match=r"cannot be pickled.*Hedger\.chat_model"):
        pickle.dumps(hedged(engines))
    with pytest.raises(TypeError, match="pickle"):
        copy.deepcopy(plain(engines[0]))
    with pytest.raises(TypeError, match="pickle"):
        copy.deepcopy(hedged(engines))


def test_it_runs_on_uvloop(engines: Engines, agent_hedge_force: int) -> None:
    model = hedged(engines)

    async def ask() -> tuple[AIMessage, AIMessageChunk]:
        answer = await model.ainvoke("Hello")
        first, *_ = [chunk async for chunk in model.astream("Hello")]
        return answer, first

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        for message in runner.run(ask()):
            assert said(message)["target"] == str(agent_hedge_force)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager task factories come with Python 3.12")
def test_it_runs_on_eager_tasks(engines: Engines, agent_hedge_force: int) -> None:
    async def ask() -> AIMessage:
        asyncio.get_running_loop().set_task_factory(asyncio.eager_task_factory)  # type: ignore[attr-defined, unused-ignore]
        return await hedged(engines).ainvoke("Hello")

    assert said(asyncio.run(ask()))["target"] == str(agent_hedge_force)
