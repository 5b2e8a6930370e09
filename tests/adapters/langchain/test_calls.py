"""How calls are driven: streams and whole answers, all ways to call, several providers, and what breaks (R3)."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGenerationChunk
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from agent_hedge import AllAttemptsFailed, DeadlineExceeded, Fixed, Target
from agent_hedge.adapters.langchain.model import HedgedChatModel
from agent_hedge.testing.clock import run_virtual
from agent_hedge.testing.engine import FakeEngine, Fault, Replay
from tests.adapters.langchain.kit import (
    Ear,
    Refusals,
    Scripted,
    Whole,
    ample,
    anthropic,
    anthropic_body,
    bare,
    hedged,
    plain,
    requests,
    said,
    text,
    usage,
)

pytestmark = [pytest.mark.asyncio, pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio'")]

Engines = tuple[FakeEngine, FakeEngine]


def now() -> float:
    return asyncio.get_running_loop().time()


def raced(*scripts: list[Any], delay: float = 1.0, **options: Any) -> tuple[HedgedChatModel, list[Scripted]]:
    members = [Scripted(*script) for script in scripts]
    return ample(policy=Fixed(delay)).chat_model(*members, **options), members


# --- all ways to call ---------------------------------------------------------------------------------------------


async def test_a_batch_is_raced_call_by_call(engines: Engines, agent_hedge_force: int) -> None:
    model = hedged(engines)
    answers = await model.abatch(["one", "two", "three"])
    assert [said(answer)["target"] for answer in answers] == [str(agent_hedge_force)] * 3
    assert len(model.batch(["four", "five"])) == 2


async def test_events_v2_know_one_run(engines: Engines, agent_hedge_force: int) -> None:
    async def kinds(model: BaseChatModel) -> list[str]:
        return [event["event"] async for event in model.astream_events("Hello", version="v2")]

    expected = await kinds(bare(engines[0], stream_usage=True))
    assert await kinds(hedged(engines)) == expected
    assert expected.count("on_chat_model_start") == expected.count("on_chat_model_end") == 1


async def test_events_v3_are_one_well_formed_message(engines: Engines, agent_hedge_force: int) -> None:
    async def kinds(model: BaseChatModel) -> list[str]:
        stream = await model.astream_events("Hello", version="v3")
        return [event["event"] async for event in stream]

    expected = await kinds(bare(engines[0], stream_usage=True))
    assert await kinds(hedged(engines)) == expected
    assert expected.count("message-start") == expected.count("message-finish") == 1


async def test_r05_a_graph_streams_the_winners_messages_alone(engines: Engines, agent_hedge_force: int) -> None:
    model = hedged(engines)

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(MessagesState)
    builder.add_node("ask", ask)
    builder.add_edge(START, "ask")
    graph = builder.compile()
    chunks: list[Any] = [
        message async for message, _ in graph.astream({"messages": [HumanMessage("Hello")]}, stream_mode="messages")
    ]
    expected = (await bare(engines[0]).ainvoke("Hello")).text
    assert len({chunk.id for chunk in chunks}) == 1
    assert "".join(chunk.text for chunk in chunks) == expected


class Composite(Scripted):
    """A model that runs another one inside itself, and writes to the graph's custom stream."""

    def __init__(self, *script: Any) -> None:
        super().__init__(*script)

    async def _astream(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **kwargs: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        get_stream_writer()("inside")
        async for chunk in Scripted("inner ").astream(messages):
            yield text(chunk.text)
        async for outer in super()._astream(messages, stop, **kwargs):
            yield outer


@pytest.mark.parametrize("attempts", [1, 2])
def test_r05_what_a_member_does_inside_itself_is_seen_by_nobody(attempts: int) -> None:
    async def main() -> None:
        model = ample(policy=Fixed(0.0, attempts=attempts)).chat_model(Composite("one"), Composite("two"))

        async def ask(state: MessagesState) -> dict[str, Any]:
            get_stream_writer()("outside")
            return {"messages": [await model.ainvoke(state["messages"])]}

        builder = StateGraph(MessagesState)
        builder.add_node("ask", ask)
        builder.add_edge(START, "ask")
        ear = Ear()
        seen: dict[str, list[Any]] = {"messages": [], "custom": []}
        stream = builder.compile().astream(
            {"messages": [HumanMessage("Hello")]}, {"callbacks": [ear]}, stream_mode=["messages", "custom"]
        )
        async for mode, part in stream:
            seen[str(mode)].append(part)
        assert seen["custom"] == ["outside"]
        assert "".join(message.text for message, _ in seen["messages"]) == "inner one"
        assert ear.kinds.count("start") == ear.kinds.count("end") == 1

    run_virtual(main)


@pytest.mark.parametrize("version", ["v0", "v1"])
async def test_both_output_versions(engines: Engines, agent_hedge_force: int, version: str) -> None:
    settings: dict[str, Any] = {"output_version": version, "stream_usage": True}
    one, ours = bare(engines[0], **settings), hedged(engines, **settings)
    expected, answer = await one.ainvoke("Hello"), await ours.ainvoke("Hello")
    assert answer.content == expected.content
    assert isinstance(answer.content, str) == (version == "v0")
    assert answer.content_blocks == expected.content_blocks
    streamed = [chunk.content async for chunk in ours.astream("Hello")]
    assert streamed == [chunk.content async for chunk in one.astream("Hello")]


# --- whole answers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trigger", ["first", "total"])
def test_r04_members_that_cannot_stream_are_hedged_only_on_the_total(trigger: Any) -> None:
    async def main() -> None:
        ears = Refusals()
        members = [Whole(5.0, "slow"), Whole(0.5, "fast")]
        model = ample(policy=Fixed(1.0), observers=[ears]).chat_model(*members, trigger=trigger)
        answer = await model.ainvoke("Hello")
        assert answer.text == ("fast" if trigger == "total" else "slow")
        assert ears.reasons == ([] if trigger == "total" else ["no_first_chunk"])
        chunks = [chunk.text async for chunk in model.astream("Hello")]
        assert chunks == [answer.text]

    run_virtual(main)


def test_one_member_that_cannot_stream_is_enough() -> None:
    async def main() -> None:
        members = [Scripted(0.1, "one"), Whole("two")]
        model = ample(policy=Fixed(1.0)).chat_model(*members)
        assert (await model.ainvoke("Hello")).text == "one"
        assert [chunk.text async for chunk in model.astream("Hello")] == ["one"]

    run_virtual(main)


@pytest.mark.parametrize(
    ("how", "tools", "streams"), [(True, False, False), ("tool_calling", False, True), ("tool_calling", True, False)]
)
async def test_disable_streaming_is_honoured_on_the_wire(
    engines: Engines, how: Any, tools: bool, streams: bool
) -> None:
    model: Any = hedged(engines, disable_streaming=how)
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
    await (model.bind_tools([tool]) if tools else model).ainvoke("Hello")
    assert bool(engines[0].requests[-1].request.json.get("stream")) == streams


async def test_several_answers_a_call_come_whole(engines: Engines) -> None:
    result = await hedged(engines, n=3).agenerate([[HumanMessage("Hello")]])
    expected = await bare(engines[0], n=3).agenerate([[HumanMessage("Hello")]])
    assert len(result.generations[0]) == len(expected.generations[0]) == 3
    assert [one.text for one in result.generations[0]] == [one.text for one in expected.generations[0]]
    assert "stream" not in engines[0].requests[-1].request.json or not engines[0].requests[-1].request.json["stream"]
    bound = await hedged(engines).agenerate([[HumanMessage("Hello")]], n=2)
    assert len(bound.generations[0]) == 2


async def test_audio_comes_whole(engines: Engines) -> None:
    await hedged(engines).ainvoke("Hello", modalities=["text", "audio"], audio={"voice": "x", "format": "wav"})
    assert not engines[0].requests[-1].request.json.get("stream")


def sse(*deltas: dict[str, Any]) -> Replay:
    frames = [
        {"id": "c", "object": "chat.completion.chunk", "created": 0, "model": "m", "choices": [choice]}
        for choice in deltas
    ]
    body = b"".join(b"data: " + json.dumps(frame).encode() + b"\n\n" for frame in frames)
    return Replay(body=body + b"data: [DONE]\n\n")


async def test_logprobs_are_those_of_the_plain_stream(engines: Engines) -> None:
    word = {"token": "Hi", "logprob": -0.1, "bytes": None, "top_logprobs": []}
    engines[0].faults = Fault(
        replay=sse(
            {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None},
            {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": [word]}, "finish_reason": None},
            {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"},
        )
    )
    expected = await bare(engines[0], logprobs=True, streaming=True).ainvoke("Hello")
    answer = await hedged(engines, logprobs=True).ainvoke("Hello")
    assert answer.response_metadata["logprobs"] == expected.response_metadata["logprobs"] is not None


# --- two providers ------------------------------------------------------------------------------------------------


class Weather(BaseModel):
    """The weather in one place."""

    city: str


def two_providers(engines: Engines, **options: Any) -> HedgedChatModel:
    claude = anthropic(base_url=engines[1].url, max_tokens=64)
    gpt = Target("gpt", plain(engines[0], max_tokens=64))
    return ample().chat_model(gpt, Target("claude", claude), family="any", **options)


def look(city: str) -> str:
    """Look out of the window."""
    return f"fine in {city}"


@pytest.mark.parametrize("how", ["invoke", "stream"])
async def test_tools_in_each_providers_own_wire_format(engines: Engines, agent_hedge_force: int, how: str) -> None:
    call = {"name": "look", "input": {"city": "Rome"}}
    engines[1].faults = Fault(replay=Replay(body=anthropic_body(call)))
    model = two_providers(engines).bind_tools([look], tool_choice="any")
    if how == "invoke":
        answer: Any = await model.ainvoke("Call look for 'Rome'")
    else:
        chunks = [chunk async for chunk in model.astream("Call look for 'Rome'")]
        answer = sum(chunks[1:], chunks[0])
    assert said(answer)["target"] == ("gpt", "claude")[agent_hedge_force]
    assert [(call["name"], call["args"]) for call in answer.tool_calls] == [("look", {"city": "Rome"})]
    sent = engines[agent_hedge_force].requests[-1].request.json
    tool = sent["tools"][0]
    if agent_hedge_force == 0:
        assert tool["function"]["parameters"]["properties"].keys() == {"city"}
        assert sent["tool_choice"] == "required"
    else:
        assert tool["input_schema"]["properties"].keys() == {"city"}
        assert sent["tool_choice"] == {"type": "any"}


@pytest.mark.parametrize("include_raw", [False, True])
@pytest.mark.parametrize("accept", [None, "schema"])
async def test_structured_output_in_each_providers_own_way(
    engines: Engines, agent_hedge_force: int, include_raw: bool, accept: Any
) -> None:
    call = {"name": "Weather", "input": {"city": "Rome"}}
    engines[1].faults = Fault(replay=Replay(body=anthropic_body(call)))
    model = two_providers(engines, accept=accept)
    chain = model.with_structured_output(Weather, method="function_calling", include_raw=include_raw)
    for result in (
        await chain.ainvoke("Weather for 'Rome'"),
        await asyncio.to_thread(chain.invoke, "Weather for 'Rome'"),
    ):
        assert (result["parsed"] if include_raw else result) == Weather(city="Rome")


async def test_an_anthropic_answer_has_its_text_and_usage(engines: Engines) -> None:
    engines[0].faults = Fault(status=503)
    engines[1].faults = Fault(replay=Replay(body=anthropic_body({"text": "Hello there"})))
    answer = await two_providers(engines).ainvoke("Hello")
    assert answer.text == "Hello there"
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["output_tokens"] == 5
    assert engines[1].requests[-1].request.headers["x-request-id"].startswith("ah-")


# --- what breaks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault(error_after=0), Fault(error_after=0, error_event=True), Fault(cut_after=0)])
@pytest.mark.parametrize("how", ["ainvoke", "astream"])
async def test_r02_a_stream_that_breaks_before_it_has_spoken_loses(engines: Engines, fault: Fault, how: str) -> None:
    engines[0].faults = fault
    model = hedged(engines)
    if how == "ainvoke":
        answer: Any = await model.ainvoke("Hello")
    else:
        answer, *_ = [chunk async for chunk in model.astream("Hello")]
    assert said(answer) == said(answer) | {"target": "1", "attempts": 2, "hedged": False}


@pytest.mark.parametrize("fault", [Fault(error_after=3), Fault(error_after=3, error_event=True), Fault(cut_after=3)])
async def test_r03_a_stream_that_breaks_after_that_is_the_streaming_callers_failure(
    engines: Engines, fault: Fault
) -> None:
    engines[0].faults = fault
    before = len(engines[1].records)
    seen: list[AIMessageChunk] = []

    async def stream() -> None:
        async for chunk in hedged(engines).astream("Hello"):
            seen.append(chunk)  # noqa: PERF401

    with pytest.raises(openai.APIError):
        await stream()
    assert len(engines[1].records) == before
    assert any(chunk.text for chunk in seen)
    assert {said(chunk)["target"] for chunk in seen[:1]} == {"0"}


@pytest.mark.parametrize("fault", [Fault(error_after=3), Fault(cut_after=3)])
@pytest.mark.parametrize("how", ["ainvoke", "invoke"])
async def test_r03_a_caller_that_does_not_stream_gets_the_step_run_again(
    engines: Engines, fault: Fault, how: str
) -> None:
    engines[0].faults = fault
    model, before = hedged(engines), requests(engines)
    answer = await (model.ainvoke("Hello") if how == "ainvoke" else asyncio.to_thread(model.invoke, "Hello"))
    assert said(answer)["target"] == "1"
    assert answer.text == (await bare(engines[1]).ainvoke("Hello")).text
    assert requests(engines) - before == 3


async def test_r03_where_every_run_breaks_the_first_error_is_the_callers(engines: Engines) -> None:
    for engine in engines:
        engine.faults = Fault(cut_after=3)
    before = requests(engines)
    with pytest.raises(openai.APIConnectionError) as caught:
        await hedged(engines).ainvoke("Hello")
    assert isinstance(caught.value.__cause__, AllAttemptsFailed)
    assert caught.value.__cause__.exceptions[0] is caught.value
    assert requests(engines) - before == len(caught.value.__cause__.exceptions) == 3


def test_r03_a_winner_that_breaks_in_a_way_nobody_can_mend_is_not_run_again() -> None:
    async def main() -> None:
        model, (_, second) = raced(["so ", ValueError("no")], ["fine"])
        with pytest.raises(ValueError, match="no") as caught:
            await model.ainvoke("Hello")
        assert caught.value.__cause__ is None
        assert second.calls == []

    run_virtual(main)


def test_r01_recover_widens_what_another_attempt_may_mend() -> None:
    async def main() -> None:
        for script in (["so ", KeyError("x")], [KeyError("x")]):
            model, (_, second) = raced(script, ["fine"], recover=(KeyError,))
            assert (await model.ainvoke("Hello")).text == "fine"
            assert len(second.calls) == 1

    run_virtual(main)


def test_r12_the_deadline_ends_a_step_that_is_run_again() -> None:
    async def main() -> None:
        model, _ = raced([0.5, "so ", ConnectionError()], [0.1, "and ", 9.0], timeout=2.0)
        with pytest.raises(DeadlineExceeded):
            await model.ainvoke("Hello")
        assert now() == pytest.approx(2.0)
        model, (_, second) = raced([0.5, "so ", 1.4, ConnectionError()], ["x"], timeout=1.0)
        with pytest.raises(DeadlineExceeded):
            await model.ainvoke("Hello")
        assert second.calls == []

    run_virtual(main)


def test_a_stream_that_says_nothing_is_an_answer_only_if_nothing_else_is() -> None:
    async def main() -> None:
        model, _ = raced(["", usage(0)], ["fine"])
        assert (await model.ainvoke("Hello")).text == "fine"
        model, (first, second) = raced(["", usage(7)], ["", usage(0)])
        answer = await model.ainvoke("Hello")
        assert answer.text == ""
        assert answer.usage_metadata is not None
        assert answer.usage_metadata["output_tokens"] == 7
        assert len(first.calls) + len(second.calls) == 3

    run_virtual(main)


def test_a_stream_without_any_chunk_fails_as_with_the_plain_model() -> None:
    async def main() -> None:
        model, _ = raced([], [])
        with pytest.raises(ValueError, match="No generation chunks were returned"):
            await model.ainvoke("Hello")
        with pytest.raises(ValueError, match="No generation chunks were returned"):
            [chunk async for chunk in model.astream("Hello")]

    run_virtual(main)


# --- the step's own things ----------------------------------------------------------------------------------------


def test_a_hedge_by_its_timer_and_what_is_said_of_it() -> None:
    async def main() -> None:
        model, (first, _) = raced([5.0, "slow"], [0.25, "fast ", 0.5, "answer"])
        answer = await model.ainvoke("Hello")
        assert said(answer) == {
            "target": "scripted:scripted#2",
            "attempts": 2,
            "hedged": True,
            "trigger_s": 1.0,
            "ttft_s": 0.25,
        }
        assert answer.text == "fast answer"
        assert first.alive == []
        chunks = [chunk async for chunk in model.astream("Hello")]
        assert [("agent_hedge" in chunk.response_metadata) for chunk in chunks][:2] == [True, False]

    run_virtual(main)


def test_r08_every_attempt_has_its_own_copy_of_what_it_is_given() -> None:
    async def main() -> None:
        model, (first, second) = raced([5.0, "slow"], ["fast"])
        given = [HumanMessage("Hello")]
        await model.ainvoke(given, stop=["x"], custom={"a": 1})
        assert first.calls[0]["messages"] == second.calls[0]["messages"] == given
        assert first.calls[0]["messages"] is not second.calls[0]["messages"]
        assert first.calls[0]["custom"] == second.calls[0]["custom"] == {"a": 1}

    run_virtual(main)


def test_steps_are_keyed_by_node_and_prompt_size() -> None:
    async def main() -> None:
        hedger = ample()
        model = hedger.chat_model(Scripted("hi"), Scripted("hi"))

        async def ask(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        builder = StateGraph(MessagesState)
        builder.add_node("think", ask)
        builder.add_edge(START, "think")
        await builder.compile().ainvoke({"messages": [HumanMessage("x" * 4096)]})
        await model.ainvoke("short")
        keys = {(key.node, key.size) for key in model._keys.values()}
        assert {node for node, _ in keys} == {"think", "chat"}
        assert len({size for _, size in keys}) == 2

    run_virtual(main)
