"""What `chat_model` takes and what it refuses: one clear message that names the value (R20)."""

from __future__ import annotations

import asyncio
import copy
import warnings
from typing import Any

import pytest
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel, FakeListChatModel
from langchain_core.messages import AIMessage
from langchain_core.rate_limiters import InMemoryRateLimiter
from langchain_openai import ChatOpenAI

from agent_hedge import Fixed, Hedger, Target
from agent_hedge.adapters.langchain.build import NODE
from agent_hedge.adapters.langchain.call import Call
from agent_hedge.core.step import Effect
from agent_hedge.errors import ConfigurationError
from tests.adapters.langchain.kit import Ear, Scripted, Whole, ample, anthropic


def openai(**settings: Any) -> ChatOpenAI:
    return ChatOpenAI(**({"model": "gpt-4o-mini", "base_url": "http://127.0.0.1:9/v1", "api_key": "none"} | settings))


class Toolless(Scripted):
    bind_tools = BaseChatModel.bind_tools


@pytest.mark.parametrize(
    ("members", "settings", "message"),
    [
        ([], {}, "at least one model"),
        ([object()], {}, "must be a chat model or its name, got object"),
        ([42], {}, "must be a chat model or its name, got int"),
        ([Scripted()], {"parity": "loose"}, "parity must be one of 'warn', 'strict', got 'loose'"),
        ([Target("empty")], {}, "Target 'empty' holding NoneType"),
        ([Target("list", [1])], {}, "Target 'list' holding list"),
        (["nobody:gpt-x"], {}, "member 'nobody:gpt-x' cannot be made"),
        ([Scripted(), Toolless()], {}, "'scripted:scripted' supports tools and 'toolless:scripted' does not"),
        ([Toolless(), Scripted()], {}, "'scripted:scripted' supports tools and 'toolless:scripted' does not"),
        ([Target("a", Scripted()), Target("a", Scripted())], {}, "two targets have the name 'a'"),
        ([Scripted().with_config(tags=["x"]), Scripted()], {}, "carries a config"),
        ([Scripted(), Scripted(tags=["x"])], {}, "'scripted:scripted#2' carries tags of its own"),
        ([Scripted(), Scripted(callbacks=[Ear()])], {}, "carries callbacks of its own"),
        ([Scripted(), Scripted(metadata={"a": 1})], {}, "carries metadata of its own"),
        ([Scripted(), Scripted(cache=False)], {}, "carries cache of its own"),
        ([ample().chat_model(Scripted(), Scripted()), Scripted()], {}, "HedgedChatModel is hedged already"),
        ([Scripted(), Scripted()], {"accept": "parses"}, "accept must be 'schema' or a function .* got 'parses'"),
        ([Scripted(), Scripted()], {"accept": 3}, "accept must be 'schema' or a function .* got 3"),
        ([Scripted(), Scripted()], {"accept": bool, "accept_on": "token"}, "accept_on must be one of None, 'final'"),
        ([Scripted(), Scripted()], {"accept_on": "final"}, "accept_on='final'.*there is none"),
        ([Scripted(), Scripted()], {"trigger": "last"}, "trigger must be one of 'first', 'total', got 'last'"),
        ([Scripted(), Scripted()], {"family": ""}, "family must be a name, got ''"),
        ([Scripted(), Scripted()], {"timeout": -1.0}, "timeout must be .* got -1.0"),
        ([Scripted(), Scripted()], {"timeout": float("nan")}, "timeout must be .* got nan"),
        ([Scripted(), Scripted()], {"policy": "fast"}, "policy must be a policy .* got 'fast'"),
        ([Scripted(), Scripted()], {"recover": (ValueError, "x")}, "recover takes exception types, got 'x'"),
    ],
)
def test_bad_input_is_one_clear_message(members: list[Any], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message) as caught:
        ample().chat_model(*members, **settings)
    assert "\n" not in str(caught.value)


def test_a_single_place_is_warned_of_where_the_user_wrote_it() -> None:
    with pytest.warns(UserWarning, match="one target with one copy .'scripted:scripted'") as caught:
        ample().chat_model(Scripted())
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ample().chat_model(Target("pool", Scripted(), copies=4))


# --- parity -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("one", "other", "difference"),
    [
        ({"model": "a"}, {"model": "b"}, r"model: .* has 'a', .* has 'b'"),
        ({"temperature": 0.1}, {"temperature": 0.2}, r"temperature: .* has 0.1, .* has 0.2"),
        ({"top_p": 0.1}, {}, r"top_p: .* has 0.1, .* has None"),
        ({"seed": 1}, {"seed": 2}, "seed"),
        ({"max_tokens": 5}, {"max_tokens": 6}, "max_tokens"),
        ({"stop": ["x"]}, {"stop": ["y"]}, "stop"),
    ],
)
def test_members_that_differ_in_what_must_match(one: dict[str, Any], other: dict[str, Any], difference: str) -> None:
    members = [openai(**one), openai(base_url="http://127.0.0.1:8/v1", **other)]
    with pytest.warns(UserWarning, match=difference) as caught:
        ample().chat_model(*members)
    assert caught[0].filename == __file__
    with pytest.raises(ConfigurationError, match=difference):
        ample().chat_model(*members, parity="strict")


def test_bound_arguments_count_as_settings() -> None:
    with pytest.raises(ConfigurationError, match=r"temperature: .* has 0.1, .* has 0.2"):
        ample().chat_model(openai().bind(temperature=0.1), openai(temperature=0.2), parity="strict")
    ample().chat_model(openai().bind(temperature=0.1), openai(temperature=0.1), parity="strict")
    layout = {"type": "json_object"}
    with pytest.raises(ConfigurationError, match="response_format: bound differently"):
        ample().chat_model(openai().bind(response_format=layout), openai(), parity="strict")


def test_a_family_stands_for_models_of_different_names() -> None:
    members = [openai(model="gpt-4o"), openai(model="prod-gpt-4o-eu")]
    ample().chat_model(*members, family="gpt-4o", parity="strict")


def test_equal_members_of_two_providers_differ_in_nothing_we_compare() -> None:
    settings = {"temperature": 0.5, "max_tokens": 100}
    ample().chat_model(openai(**settings), anthropic(**settings), family="any", parity="strict")


# --- members ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:members of a hedged model differ in max_tokens")
def test_members_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    model = ample().chat_model("openai:gpt-4o-mini", Target("claude", "anthropic:claude-sonnet-4-5"), family="any")
    assert [type(member.model) for member in model._members] == [ChatOpenAI, ChatAnthropic]
    assert [member.name for member in model._members] == ["openai:gpt-4o-mini", "claude"]
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(ConfigurationError, match=r"member 'openai:gpt-4o-mini' cannot be made: .*OPENAI_API_KEY"):
        ample().chat_model("openai:gpt-4o-mini")


def test_default_names_tell_members_apart_and_hold_no_secret() -> None:
    url = "https://user:secret@eu.example.com/v1"
    model = ample().chat_model(openai(), openai(), openai(base_url=url))
    assert [member.name for member in model._members] == [
        "openai:gpt-4o-mini:127.0.0.1:9",
        "openai:gpt-4o-mini:127.0.0.1:9#2",
        "openai:gpt-4o-mini:eu.example.com",
    ]


def test_targets_are_known_to_the_hedger_and_keyed_by_model() -> None:
    hedger = Hedger()
    hedger.chat_model(openai(), openai(base_url="http://127.0.0.1:8/v1"))
    assert set(hedger.status()["learning"]) == {
        f"{NODE}/gpt-4o-mini @ openai:gpt-4o-mini:127.0.0.1:9",
        f"{NODE}/gpt-4o-mini @ openai:gpt-4o-mini:127.0.0.1:8",
    }


def test_any_langchain_chat_model_can_be_a_member() -> None:
    model = ample().chat_model(FakeListChatModel(responses=["one"]), FakeListChatModel(responses=["two"]))
    assert model.invoke("Hello").text == "one"
    assert [chunk.text for chunk in model.stream("Hello")][:3] == list("one")


def test_rate_limiters_and_callbacks_of_the_primary_are_not_doubled() -> None:
    limiter = InMemoryRateLimiter(requests_per_second=1000)
    model = ample().chat_model(Scripted("hi", rate_limiter=limiter, tags=["t"]), Scripted("hi"))
    assert model.rate_limiter is None  # members ask for their turn themselves
    assert model.tags == ["t"]


def test_made_by_hand_it_says_how_it_is_made() -> None:
    from agent_hedge.adapters.langchain.model import HedgedChatModel

    with pytest.raises(AttributeError, match=r"made by Hedger\.chat_model"):
        HedgedChatModel().invoke("Hello")


# --- what a call may do twice -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore:members of a hedged model differ in tools")
@pytest.mark.parametrize(
    ("tools", "effect"),
    [
        ([], Effect.READ_ONLY),
        ([{"type": "function", "function": {"name": "pay"}}], Effect.READ_ONLY),
        ([{"type": "web_search_preview"}], Effect.READ_ONLY),
        ([{"type": "web_search_20250305", "name": "web_search"}], Effect.READ_ONLY),
        ([{"type": "code_interpreter", "container": {"type": "auto"}}], Effect.ONCE),
        ([{"type": "mcp", "server_url": "https://x"}], Effect.ONCE),
        ([{"code_execution": {}}], Effect.ONCE),
        ([{"type": "web_search_preview"}, {"type": "something_new"}], Effect.ONCE),
    ],
)
def test_r09_server_side_tools_that_may_write_bar_a_second_attempt(tools: list[Any], effect: Effect) -> None:
    model = ample().chat_model(Scripted(), Scripted())
    assert Call(model, [], None, {"tools": tools}).effect is effect
    bound: Any = ample().chat_model(Scripted().bind(tools=tools), Scripted())
    assert Call(bound, [], None, {}).effect is effect
    other: Any = ample().chat_model(Scripted(), Scripted().bind(tools=tools))
    assert Call(other, [], None, {}).effect is effect


def test_r09_the_operators_word_on_a_server_side_tool_is_heard_by_a_model_nobody_has_explained() -> None:
    hedger, search = ample(), [{"type": "web_search"}]
    model = hedger.chat_model(Scripted().bind(tools=search), Scripted().bind(tools=search))
    code: dict[str, Any] = {"tools": [{"type": "code_interpreter"}]}

    def effects() -> list[Effect]:
        return [Call(one, [], None, given).effect for one in (model, model.model_copy()) for given in ({}, code)]

    assert effects() == [Effect.READ_ONLY, Effect.ONCE] * 2
    hedger.registry.annotate("code_interpreter", Effect.READ_ONLY, namespace="provider", note="no network, no files")
    assert effects() == [Effect.READ_ONLY] * 4
    hedger.registry.annotate("web_search", Effect.ONCE, namespace="provider", note="it is billed by the search")
    assert effects() == [Effect.ONCE] * 4
    hedger.registry.annotate("web_search", Effect.IDEMPOTENT, namespace="provider")
    assert effects() == [Effect.ONCE] * 4, "a provider passes no fence: its act is not duplicated, however repeatable"


def test_r09_anthropics_remote_servers_bar_it_too() -> None:
    servers: list[Any] = [{"type": "url", "url": "https://x", "name": "x"}]
    model = ample().chat_model(anthropic(mcp_servers=servers), anthropic(mcp_servers=servers))
    assert Call(model, [], None, {}).effect is Effect.ONCE
    assert Call(ample().chat_model(anthropic(), anthropic()), [], None, {}).effect is Effect.READ_ONLY


def test_accept_takes_any_function_of_a_message() -> None:
    def accept(message: AIMessage) -> bool:
        return True

    assert ample().chat_model(Scripted("hi"), Scripted("hi"), accept=accept).invoke("Hello").text == "hi"


@pytest.mark.filterwarnings("ignore:members of a hedged model differ in temperature")
@pytest.mark.parametrize("member", [Scripted, Whole])
@pytest.mark.parametrize("passed", [None, ["call"]])
def test_a_bound_stop_is_a_members_own_unless_the_call_says_otherwise(member: Any, passed: list[str] | None) -> None:
    """It is no keyword of a call like the others: LangChain passes it on its own."""
    first, second = member("yes"), member("yes")
    with pytest.warns(UserWarning, match="differ in stop"):
        model = ample(policy=Fixed(0.01)).chat_model(
            first.bind(stop=["a"], temperature=0.5), second.bind(stop=["b"]), trigger="total"
        )
    given: Any = {} if passed is None else {"stop": passed}
    heard, of_the_primary = Ear(), Ear()
    model.invoke("x", {"callbacks": [heard]}, **given)
    asyncio.run(model.ainvoke("x", **given))
    list(model.stream("x", **given))
    asyncio.run(
        Scripted("yes").bind(stop=["a"], temperature=0.5).ainvoke("x", {"callbacks": [of_the_primary]}, **given)
    )
    assert [(call["stop"], call.get("temperature")) for call in first.calls] == [(passed or ["a"], 0.5)] * 3
    told = [heard.heard[0][1][2]["invocation_params"], of_the_primary.heard[0][1][2]["invocation_params"]]
    assert [each["stop"] for each in told] == [passed or ["a"]] * 2
    key = model._get_llm_string(stop=passed)
    assert ("call" in key) == (passed is not None)
    assert ("'b'" in key or '"b"' in key) == (passed is None)
    copied: Any = copy.deepcopy(model)
    assert [each.stop(None) for each in copied._members] == [["a"], ["b"]]
