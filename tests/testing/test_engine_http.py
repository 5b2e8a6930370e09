"""The fake engine over real HTTP on loopback: the API, each switch, and what it records."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, SecretStr

from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.engine import (
    Ending,
    FakeEngine,
    Fault,
    Hardware,
    Notice,
    Replay,
    Reply,
    Request,
    Stall,
    ToolCall,
    connection,
    parse_fault,
    split_events,
)
from agent_hedge.testing.engine.replies import derived
from agent_hedge.testing.engine.schema import Filler
from tests.conftest import HUNG_S

pytestmark = pytest.mark.asyncio

CAPTURES = Path(__file__).parents[3] / "shared/data/sse_captures.jsonl"
QUICK = Hardware(decode_rate=5_000)
ENDLESS = " word" * 5_000
"""25 s of answer at 200 tokens a second: it only ends when somebody ends it."""
SLOW = Hardware(decode_rate=200)
HELLO = [{"role": "user", "content": "Hello engine, how are you today?"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
GREET = {
    "type": "function",
    "function": {"name": "greet", "parameters": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


@asynccontextmanager
async def serving(*args: Any, **settings: Any) -> AsyncIterator[tuple[FakeEngine, httpx.AsyncClient]]:
    settings.setdefault("hardware", QUICK)
    async with (
        FakeEngine(*args, **settings) as engine,
        httpx.AsyncClient(base_url=engine.url, timeout=HUNG_S) as client,
    ):
        yield engine, client


def body(**more: Any) -> dict[str, Any]:
    return {"model": "any", "messages": HELLO, **more}


async def post(client: httpx.AsyncClient, headers: dict[str, str] | None = None, **more: Any) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body(**more), headers=headers)


def chunks(text: str) -> list[dict[str, Any]]:
    data = [event.removeprefix("data: ") for event in text.split("\n\n") if event.startswith("data: ")]
    return [json.loads(line) for line in data if line != "[DONE]"]


def text_in(text: str, choice: int = 0) -> str:
    deltas = [item["delta"] for chunk in chunks(text) for item in chunk.get("choices", ()) if item["index"] == choice]
    return "".join(delta.get("content") or "" for delta in deltas)


def asked(content: str, **more: Any) -> Request:
    messages = [{"role": "user", "content": content}]
    return Request("POST", "/v1/chat/completions", {}, json.dumps({"messages": messages, **more}).encode())


@asynccontextmanager
async def streaming(client: httpx.AsyncClient, headers: dict[str, str] | None = None) -> AsyncIterator[httpx.Response]:
    """A stream that is left in mid-air, after its first line with content."""
    async with client.stream("POST", "/v1/chat/completions", json=body(stream=True), headers=headers) as response:
        lines = response.aiter_lines()  # kept: a generator that is dropped closes the response
        async for line in lines:
            if line.startswith("data: ") and text_in(line + "\n\n"):
                break
        yield response


async def read_raw(client: httpx.AsyncClient, into: bytearray, **request: Any) -> None:
    async with client.stream("POST", "/v1/chat/completions", **request) as response:
        assert response.status_code == 200
        async for data in response.aiter_raw():
            into += data


# The API


async def test_a_document_and_a_stream_say_the_same() -> None:
    async with serving() as (engine, client):
        document = (await post(client)).json()
        stream = await post(client, stream=True, stream_options={"include_usage": True})
    said = document["choices"][0]
    assert said["finish_reason"] == "stop"
    assert text_in(stream.text) == said["message"]["content"] != ""
    parts = chunks(stream.text)
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert parts[-2]["choices"][0]["finish_reason"] == "stop"
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"] == document["usage"]
    assert stream.text.endswith("data: [DONE]\n\n")
    assert {part["model"] for part in parts} == {"any"}
    assert [record.ending for record in engine.records] == [Ending.COMPLETED] * 2
    assert document["usage"]["completion_tokens"] == engine.records[0].completion_computed


async def test_usage_is_sent_only_where_it_was_asked_for() -> None:
    async with serving() as (_, client):
        assert all("usage" not in chunk for chunk in chunks((await post(client, stream=True)).text))


async def test_request_ids_come_back_and_stay_unique_inside() -> None:
    async with serving(hardware=SLOW, replies=lambda _: ENDLESS) as (engine, client):
        async with streaming(client, {"x-request-id": "mine"}) as one, streaming(client, {"x-request-id": "mine"}):
            assert one.headers["x-request-id"] == "mine"
            assert [record.id for record in engine.records] == ["mine", "mine~1"]
            prefix = await client.post("/v1/abort", json={"request_ids": ["min"]})
            assert prefix.json() == {"status": "aborted", "aborted": 0}
            answer = await client.post("/v1/abort", json={"request_ids": ["chatcmpl-mine"]})
            assert answer.json() == {"status": "aborted", "aborted": 2}
        await engine.wait_idle()
        assert len((await post(client, max_tokens=1)).headers["x-request-id"]) == 32


async def test_max_tokens_stop_and_n() -> None:
    async with serving(replies=lambda _: "one two three four") as (engine, client):
        short = (await post(client, max_tokens=2)).json()["choices"][0]
        stopped = (await post(client, stop=["three"])).json()["choices"][0]
        several = await post(client, n=3, stream=True)
        many = await post(client, n=100)
    assert (short["message"]["content"], short["finish_reason"]) == ("one two", "length")
    assert (stopped["message"]["content"], stopped["finish_reason"]) == ("one two ", "stop")
    assert [text_in(several.text, choice) for choice in range(4)] == ["one two three four"] * 3 + [""]
    assert engine.records[2].completion_computed == 12
    assert many.status_code == 400


async def test_scripted_replies_then_derived_ones() -> None:
    call = ToolCall("pay", {"amount": 3, "to": "Zoë"})
    script = [Reply(reasoning="hm hm", text="hi", tool_calls=(call,)), Reply(refusal="no"), Reply(), "bare"]
    async with serving(replies=script) as (_, client):
        first, second, empty, bare = [(await post(client)).json()["choices"][0] for _ in script]
        derived_one = (await post(client)).json()["choices"][0]
    assert first["message"]["reasoning_content"] == "hm hm"
    assert first["message"]["content"] == "hi"
    assert first["message"]["tool_calls"][0]["function"] == {"name": "pay", "arguments": '{"amount": 3, "to": "Zoë"}'}
    assert first["finish_reason"] == "tool_calls"
    assert (second["message"]["refusal"], second["message"]["content"]) == ("no", None)
    assert empty["message"]["content"] == ""
    assert bare["message"]["content"] == "bare"
    assert derived_one["message"]["content"].startswith("On Hello engine")


async def test_pages() -> None:
    async with serving(model="m-1") as (_, client):
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/v1/models")).json()["data"][0]["id"] == "m-1"
        assert (await client.get("/v1/models/m-1")).json()["id"] == "m-1"
        assert (await client.get("/nowhere")).status_code == 404
        assert (await client.post("/v1/embeddings", json={})).status_code == 404
        assert (await client.get("/v1/chat/completions")).status_code == 405


@pytest.mark.parametrize(
    "content",
    [b"{", b"[]", b"{}", b'{"messages": []}', b'{"messages": ["x"]}', b'{"messages": [{}], "tools": 3}',
     b'{"messages": [{"role": "user"}], "max_tokens": 0}', b'{"messages": [{"role": "user"}], "n": "x"}'],
)  # fmt: skip
async def test_r20_a_bad_body_is_a_400_of_openais_shape(content: bytes) -> None:
    async with serving() as (engine, client):
        answer = await client.post("/v1/chat/completions", content=content)
        assert answer.status_code == 400
        assert answer.json()["error"]["type"] == "invalid_request_error"
        assert engine.is_idle


# What is said


async def test_tools_named_in_the_prompt_are_called_in_parallel() -> None:
    reply = derived(asked("Please greet 'Zoë 你好' and then add 7 and -12.", tools=[ADD, GREET]))
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [
        ("greet", {"name": "Zoë 你好"}),
        ("add", {"a": 7, "b": -12}),
    ]


async def test_the_name_of_a_tool_is_no_argument() -> None:
    reply = derived(asked("Use `greet` for 'Ann'.", tools=[ADD, GREET]))
    assert reply.tool_calls == (ToolCall("greet", {"name": "Ann"}),)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({}, ["add"]),
        ({"tool_choice": "required"}, ["add"]),
        ({"tool_choice": "any"}, ["add"]),
        ({"tool_choice": {"type": "function", "function": {"name": "greet"}}}, ["greet"]),
        ({"tool_choice": "none"}, []),
    ],
)
async def test_tool_choice(settings: dict[str, Any], names: list[str]) -> None:
    assert [call.name for call in derived(asked("Hello!", tools=[ADD, GREET], **settings)).tool_calls] == names


async def test_parallel_calls_can_be_switched_off() -> None:
    reply = derived(asked("greet and add", tools=[ADD, GREET], parallel_tool_calls=False))
    assert [call.name for call in reply.tool_calls] == ["greet"]


async def test_after_a_tool_has_answered_there_is_text() -> None:
    messages = [*HELLO, {"role": "tool", "content": "42", "tool_call_id": "x"}]
    async with serving() as (_, client):
        choice = (await post(client, messages=messages, tools=[ADD])).json()["choices"][0]
        unknown = await post(client, tools=[ADD], tool_choice={"type": "function", "function": {"name": "nix"}})
    assert choice["finish_reason"] == "stop"
    assert choice["message"]["content"]
    assert unknown.status_code == 400


async def test_a_streamed_tool_call_has_its_name_first_and_its_arguments_in_parts() -> None:
    async with serving(replies=[Reply(tool_calls=(ToolCall("add", '{"a": 1, "b": 2}'),))]) as (_, client):
        parts = chunks((await post(client, stream=True)).text)
    deltas = [part["choices"][0]["delta"] for part in parts]
    calls = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert calls[0]["function"] == {"name": "add", "arguments": ""}
    assert calls[0]["id"].startswith("call_")
    assert len(calls) > 2
    assert "".join(call["function"]["arguments"] for call in calls) == '{"a": 1, "b": 2}'
    assert parts[-1]["choices"][0]["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "integer", "maximum": 5}, 5),
        ({"type": "number"}, 17),
        ({"type": ["null", "string"]}, "blue"),
        ({"enum": ["x", "y"]}, "x"),
        ({"const": 9}, 9),
        ({"anyOf": [{"type": "null"}, {"type": "boolean"}]}, True),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [17, 17]),
        ({"type": "array", "prefixItems": [{"type": "string"}]}, ["blue"]),
        ({"$ref": "#/$defs/d", "$defs": {"d": {"properties": {"c": {"type": "string"}}}}}, {"c": "blue"}),
        ({"allOf": [{"properties": {"a": {"const": 1}}}, {"properties": {"b": {"const": 2}}}]}, {"a": 1, "b": 2}),
        ({}, "blue"),
    ],
)
async def test_schemas_are_filled_from_the_prompt(schema: dict[str, Any], value: Any) -> None:
    filled = Filler("it's 'blue' and 17 of `them`").fill(schema)
    assert filled == value or value == {"a": 1, "b": 2} == dict(sorted(filled.items()))


async def test_a_schema_that_contains_itself_ends() -> None:
    node = {
        "type": "object",
        "properties": {"child": {"$ref": "#/$defs/n"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}},
    }
    assert json.dumps(Filler("x").fill({"$ref": "#/$defs/n", "$defs": {"n": node}})).count("child") > 3


async def test_response_formats() -> None:
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
    layout = {"type": "json_schema", "json_schema": {"name": "trip", "schema": schema}}
    messages = [{"role": "user", "content": "Plan a trip to 'Łódź' for 3 days"}]
    async with serving() as (_, client):
        strict = (await post(client, messages=messages, response_format=layout)).json()
        loose = (await post(client, response_format={"type": "json_object"})).json()
    assert json.loads(strict["choices"][0]["message"]["content"]) == {"city": "Łódź", "days": 3}
    assert isinstance(json.loads(loose["choices"][0]["message"]["content"]), dict)


# Faults


@pytest.mark.parametrize("status", [400, 401, 429, 500, 503])
async def test_a_status_is_answered_at_once_and_recorded(status: int) -> None:
    async with serving(faults=Fault(status=status, retry_after=2)) as (engine, client):
        answer = await post(client, stream=True)
        assert answer.status_code == status
        assert answer.headers["retry-after"] == "2"
        assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
        assert [record.ending for record in engine.records] == [Ending.REJECTED]
        assert [received.status for received in engine.requests] == [status]


async def test_an_error_frame_in_a_200_before_and_after_the_first_chunk() -> None:
    async with serving(replies=lambda _: "one two three") as (engine, client):
        early = await post(client, {"x-fault": "error_after=0"}, stream=True)
        late = await post(client, {"x-fault": "error_after=2 error_event"}, stream=True)
        beyond = await post(client, {"x-fault": "error_after=9"}, stream=True)
        document = await post(client, {"x-fault": "error_after=1"})
        held = await post(client, {"x-fault": "error_after=0;late_headers"}, stream=True)
        await engine.wait_idle()
    assert (early.status_code, text_in(early.text)) == (200, "")
    assert chunks(early.text)[0]["error"]["type"] == "server_error"
    assert (late.status_code, text_in(late.text.partition("event: error")[0])) == (200, "one two")
    assert not late.text.endswith("[DONE]\n\n")
    assert "error" in chunks(beyond.text)[-1]
    assert [document.status_code, held.status_code] == [500, 500]
    endings = [record.ending for record in engine.records]
    assert endings == [Ending.FAILED, Ending.FAILED, Ending.COMPLETED, Ending.FAILED, Ending.FAILED]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_cut_closes_the_socket_in_mid_body(stream: bool) -> None:
    got = bytearray()
    async with serving(replies=lambda _: "one two three", faults=Fault(cut_after=2)) as (engine, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await read_raw(client, got, json=body(stream=stream))
        await engine.wait_for(lambda engine: engine.is_idle and engine.connections == 0)
        assert engine.records[0].completion_computed == 2
    assert text_in(got.decode()) == ("one two" if stream else "")


async def test_a_cut_before_any_byte() -> None:
    async with serving(faults=Fault(cut_after=0, late_headers=True)) as (_, client):
        with pytest.raises(httpx.RemoteProtocolError, match="without sending a response"):
            await post(client, stream=True)


@pytest.mark.parametrize("words", ["pings=3", "pings=3:0.01 role_first"])
async def test_preludes_come_before_the_first_token(words: str) -> None:
    async with serving("fixed:0.2") as (engine, client):
        seen: list[str] = []
        async with client.stream(
            "POST", "/v1/chat/completions", json=body(stream=True), headers={"x-fault": words}
        ) as response:
            async for line in response.aiter_lines():
                if text_in(line + "\n\n"):
                    break
                seen.append(line)
        said = [line[:6] for line in seen if line]
        assert said == (["data: ", *[": ping"] * 3] if "role_first" in words else [*[": ping"] * 3, "data: "])
        await engine.wait_idle()


async def test_a_stall_is_a_pause_of_the_engine() -> None:
    async with serving(hardware=Hardware(decode_rate=1000), faults=Fault(stall=Stall(2, 0.25))) as (engine, client):
        await post(client, stream=True, max_tokens=4)
        record = engine.records[0]
        assert record.finished is not None
        assert record.first_token is not None
        assert record.finished - record.first_token == pytest.approx(0.253, abs=1e-6)


async def test_faults_can_be_scripted_computed_and_replaced() -> None:
    async with serving(faults=[Fault(status=503), Fault(), Fault(status=429)]) as (engine, client):
        assert [(await post(client)).status_code for _ in range(4)] == [503, 200, 429, 200]
        engine.faults = lambda request: Fault(status=500) if "x-odd" in request.headers else None
        assert [(await post(client, {"x-odd": "1"})).status_code, (await post(client)).status_code] == [500, 200]
        engine.faults = Fault(status=401)
        assert (await post(client)).status_code == 401
        assert (await post(client, {"x-fault": "status=400"})).status_code == 400
        assert engine.faults == Fault(status=401)
        engine.faults = None
        assert (await post(client)).status_code == 200


async def test_r20_faults_that_cannot_be_meant() -> None:
    async with serving() as (_, client):
        answer = await post(client, {"x-fault": "explode=1"})
        assert answer.status_code == 400
        assert "'explode=1' is no fault" in answer.json()["error"]["message"]
    for words in ("status=200", "notice=maybe", "stall=3", "role_first=1", "cut_after=-1", "pings", "replay=x"):
        with pytest.raises(ConfigurationError):
            parse_fault(words)
    with pytest.raises(ConfigurationError, match="cut_bytes"):
        Replay(body=b"", cut_bytes=-1)


async def test_words_and_fields_are_the_same_faults() -> None:
    words = "status=429;retry_after=0.5, notice=late:2 pings=3:0.1 stall=4:0.5 role_first"
    assert parse_fault(words) == Fault(
        status=429,
        retry_after=0.5,
        notice=Notice.LATE,
        notice_after=2,
        pings=3,
        ping_every=0.1,
        stall=Stall(4, 0.5),
        role_first=True,
    )


# Clients that leave


async def test_a_client_that_leaves_in_decode_is_noticed_at_once() -> None:
    async with serving(hardware=SLOW, replies=lambda _: ENDLESS) as (engine, client):
        async with streaming(client):
            assert engine.running == 1
        await engine.wait_idle()
        record = engine.records[0]
        assert record.ending is Ending.ABORTED
        assert record.noticed == record.disconnected
        assert record.computed_after_disconnect <= 1


async def test_a_client_that_leaves_late_is_computed_for() -> None:
    async with serving(hardware=SLOW, replies=lambda _: ENDLESS, faults=parse_fault("notice=late:0.2")) as (
        engine,
        client,
    ):
        async with streaming(client):
            pass
        await engine.wait_idle()
        record = engine.records[0]
        assert record.noticed is not None
        assert record.disconnected is not None
        assert record.noticed - record.disconnected == pytest.approx(0.2, abs=1e-6)
        assert 39 <= record.computed_after_disconnect <= 42


async def test_a_client_that_is_never_missed_is_computed_for_to_the_end() -> None:
    async with serving(hardware=SLOW, replies=[" word" * 100], faults=Fault(notice=Notice.NEVER)) as (engine, client):
        async with streaming(client):
            pass
        await engine.wait_idle()
        record = engine.records[0]
        assert (record.ending, record.noticed) == (Ending.COMPLETED, None)
        assert record.computed_after_disconnect > 0
        assert record.release_delay is not None
        assert (await metrics(client))['vllm:request_success_total{finished_reason="stop"}'] == 1


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_before_the_first_token(stream: bool) -> None:
    async with serving("fixed:30", faults=Fault()) as (engine, client):
        task = asyncio.create_task(post(client, stream=stream))
        await engine.wait_for(lambda engine: engine.running == 1)
        task.cancel()
        await engine.wait_idle()
        assert (engine.records[0].ending, engine.records[0].completion_computed) == (Ending.ABORTED, 0)
        assert engine.connections == 0


async def test_a_departure_noticed_at_the_first_token() -> None:
    async with serving("fixed:0.5", hardware=SLOW, faults=Fault(notice=Notice.FIRST_TOKEN)) as (engine, client):
        task = asyncio.create_task(post(client, stream=True))
        await engine.wait_for(lambda engine: engine.running == 1)
        task.cancel()
        await engine.wait_idle()
        record = engine.records[0]
        assert record.first_token == record.noticed == record.released
        assert record.completion_computed == 1


async def test_a_client_that_leaves_the_queue_disturbs_nobody() -> None:
    one_slot = Hardware(slots=1, decode_rate=200)
    async with serving(hardware=one_slot, replies=lambda _: ENDLESS) as (engine, client), streaming(client):
        queued = [asyncio.create_task(post(client)) for _ in range(2)]
        await engine.wait_for(lambda engine: engine.waiting == 2)
        queued[0].cancel()
        await engine.wait_for(lambda engine: engine.waiting == 1)
        assert engine.running == 1
        left = [record for record in engine.records if record.ending is Ending.ABORTED]
        assert [record.prefill_started for record in left] == [None]
        queued[1].cancel()


async def test_an_abort_by_id_ends_the_stream_of_a_client_that_stays() -> None:
    async with serving(hardware=SLOW, replies=lambda _: ENDLESS) as (engine, client):
        reader = asyncio.create_task(post(client, {"x-request-id": "r-1"}, stream=True))
        await engine.wait_for(lambda engine: bool(engine.records) and engine.records[0].completion_computed > 3)
        answer = await client.post("/inference/v1/abort_requests", json={"request_ids": ["r-1"]})
        assert answer.json()["aborted"] == 1
        parts = chunks((await reader).text)
        assert parts[-1]["choices"][0]["finish_reason"] == "abort"
        assert engine.records[0].ending is Ending.ABORTED
        assert engine.records[0].disconnected is None
        assert (await client.post("/v1/abort", json={"request_ids": ["r-1"]})).json()["aborted"] == 0
        for nonsense in ("{}", '{"request_ids": []}', '{"request_ids": [3]}'):
            assert (await client.post("/v1/abort", content=nonsense)).status_code == 400


# Load


async def test_metrics_speak_vllm() -> None:
    async with serving(hardware=SLOW, replies=lambda request: ENDLESS if request.json.get("stream") else "x y") as (
        engine,
        client,
    ):
        await post(client)
        async with streaming(client):
            during = await metrics(client)
        await engine.wait_idle()
        after = await metrics(client)
    prompts = [record.prompt_tokens for record in engine.records]
    assert during["vllm:num_requests_running"] == 1
    assert during["vllm:num_requests_waiting"] == 0
    assert 0 < during["vllm:kv_cache_usage_perc"] < 1
    assert during["vllm:prompt_tokens_total"] == sum(prompts)
    assert after["vllm:num_requests_running"] == after["vllm:kv_cache_usage_perc"] == 0
    assert after["vllm:generation_tokens_total"] == sum(record.completion_computed for record in engine.records)
    assert after['vllm:request_success_total{finished_reason="stop"}'] == 1
    assert after['vllm:request_success_total{finished_reason="abort"}'] == 0  # dead, as in the real engine


async def metrics(client: httpx.AsyncClient) -> dict[str, float]:
    values = {}
    for line in (await client.get("/metrics")).text.splitlines():
        if not line.startswith("#"):
            name, value = line.rsplit(" ", 1)
            name = name.replace('engine="0",model_name="fake-model"', "").replace("{,", "{").removesuffix("{}")
            values[name] = float(value)
    return values


async def test_a_prompt_is_not_in_the_counter_before_its_first_output() -> None:
    async with serving("fixed:30") as (engine, client):
        task = asyncio.create_task(post(client))
        await engine.wait_for(lambda engine: engine.running == 1)
        assert (await metrics(client))["vllm:prompt_tokens_total"] == 0
        task.cancel()
        await engine.wait_idle()


async def test_a_full_queue_is_a_503_and_a_long_prompt_a_400() -> None:
    small = Hardware(slots=1, queue_limit=0, blocks=100, decode_rate=200)
    async with serving(hardware=small, replies=lambda _: " word" * 1000) as (engine, client), streaming(client):
        full = await post(client)
        long = await post(client, messages=[{"role": "user", "content": "x" * 100_000}])
        assert full.status_code == 503
        assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert [received.status for received in engine.requests] == [200, 503, 400]


async def test_one_draw_key_is_one_time_on_every_engine_of_a_seed() -> None:
    extras = []
    for seed in (5, 5, 6):
        async with serving("lognormal:0.001,1", seed=seed) as (engine, client):
            await post(client, max_tokens=1)
            await post(client, {"x-draw": "run/1/east"}, max_tokens=1)
            extras.append(engine.records[1].extra)
    assert extras[0] == extras[1] != extras[2]


# Replay


@pytest.mark.skipif(not CAPTURES.exists(), reason=f"{CAPTURES} is not here")
async def test_captures_are_replayed_byte_for_byte() -> None:
    captures = [json.loads(line) for line in CAPTURES.read_text().splitlines()]
    assert len(captures) > 100
    async with serving(hardware=Hardware(decode_rate=1e6)) as (engine, client):
        for capture in captures:
            engine.faults = [Fault(replay=Replay(body=capture["body"].encode()))]
            answer = await client.post(capture["endpoint"] or "/v1/messages", json={"stream": True})
            assert answer.content == capture["body"].encode()
            assert answer.headers["content-type"] == "text/event-stream"
        assert {record.ending for record in engine.records} == {Ending.COMPLETED}


RAW = b"event: a\r\ndata: 1\r\n\r\ndata: 2\n\n: ping\n\ndata: 3\n\n"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_replay_with_an_error_appended_ends_properly(path: str) -> None:
    replay = Replay(body=RAW, cut_events=2, append=b"event: error\ndata: {}\n\n", content_type="text/event-stream")
    async with serving(faults=Fault(replay=replay)) as (_, client):
        assert (await client.post(path, content=b"x")).content == RAW[:30] + b"event: error\ndata: {}\n\n"


@pytest.mark.parametrize(
    ("cut", "expected"), [({"cut_events": 1}, 21), ({"cut_bytes": 31}, 31), ({"cut_events": 0}, 0)]
)
async def test_a_replay_cut_short_closes_the_socket(cut: dict[str, Any], expected: int) -> None:
    got = bytearray()
    async with serving(faults=Fault(replay=Replay(body=RAW, **cut))) as (_, client):
        with pytest.raises(httpx.RemoteProtocolError):
            await read_raw(client, got)
    assert got == RAW[:expected]


async def test_events_joined_are_the_body() -> None:
    assert split_events(RAW) == [b"event: a\r\ndata: 1\r\n\r\n", b"data: 2\n\n", b": ping\n\n", b"data: 3\n\n"]
    for text in (b"", b"no blank line", RAW + b"tail", b"\n\n\n\n"):
        assert b"".join(split_events(text)) == text


# HTTP


async def test_a_connection_is_kept_alive() -> None:
    async with serving() as (engine, client):
        for stream in (True, False, True):
            await post(client, stream=stream)
        await post(client, {"x-fault": "status=429"})
        assert engine.connections == 1


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with serving(replies=["first", "second"]) as (engine, _):
        content = json.dumps(body()).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n" % len(content)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rsplit(":", 1)[1]))
        writer.write((head + b"\r\n" + content) + (head + b"connection: close\r\n\r\n" + content))
        answer = await reader.read()
        writer.close()
        assert answer.index(b"first") < answer.index(b"second")
        await engine.wait_for(lambda engine: engine.connections == 0)


async def test_what_is_not_http_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_BODY", 10)
    async with serving() as (engine, client):
        assert (await post(client)).status_code == 413
        reader, writer = await asyncio.open_connection("127.0.0.1", int(engine.url.rsplit(":", 1)[1]))
        writer.write(b"nonsense\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 400")
        writer.close()


async def test_r20_a_port_in_use_is_named() -> None:
    async with FakeEngine() as engine:
        port = int(engine.url.rsplit(":", 1)[1])
        with pytest.raises(ConfigurationError, match=rf"127\.0\.0\.1:{port}: Address already in use"):
            await FakeEngine(port=port).start()


async def test_closing_ends_what_runs() -> None:
    async with serving(hardware=SLOW, replies=lambda _: ENDLESS) as (engine, client):
        reader = asyncio.create_task(post(client, stream=True))
        await engine.wait_for(lambda engine: bool(engine.records) and engine.records[0].completion_computed > 3)
        waiter = asyncio.create_task(engine.wait_for(lambda engine: engine.running == 9))
        await engine.wait_for(lambda engine: len(engine._waiters) == 2)
        await engine.aclose()
        with pytest.raises(RuntimeError, match="closed while somebody waited"):
            await waiter
        with pytest.raises(httpx.TransportError):
            await reader
        assert engine.connections == 0
        with pytest.raises(RuntimeError, match="not running"):
            await engine.wait_idle()


async def test_a_reply_function_that_raises_is_a_500_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(replies=lambda _: 1 / 0) as (engine, client):
        answer = await post(client)
        assert answer.status_code == 500
        assert "ZeroDivisionError" in answer.json()["error"]["message"]
        assert "division by zero" in caplog.text
        assert engine.is_idle


async def test_waiting_in_vain_says_where_the_engine_stands() -> None:
    async with serving() as (engine, _):
        with pytest.raises(TimeoutError, match="0 running, 0 waiting, 0 records"):
            await engine.wait_for(lambda engine: engine.running > 5, timeout=0.01)
        with pytest.raises(ZeroDivisionError):
            await engine.wait_for(lambda engine: 1 / engine.running > 0)


# A real client


@tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers."""
    return a * b


class Trip(BaseModel):
    """A trip."""

    city: str
    days: int


def chat_openai(engine: FakeEngine, **settings: Any) -> ChatOpenAI:
    http = httpx.AsyncClient()
    return ChatOpenAI(
        model="any", base_url=engine.base_url, api_key=SecretStr("none"), http_async_client=http, **settings
    )


async def test_chat_openai_streams_calls_tools_and_fills_schemas() -> None:
    async with FakeEngine(hardware=QUICK) as engine:
        model = chat_openai(engine, stream_usage=True)
        streamed = [chunk async for chunk in model.astream("Hello")]
        assert len(streamed) > 10
        assert sum(chunk.usage_metadata is not None for chunk in streamed) == 1
        assert "".join(str(chunk.content) for chunk in streamed) == (await model.ainvoke("Hello")).content
        called = await model.bind_tools([multiply]).ainvoke("multiply 6 by 7")
        assert [(call["name"], call["args"]) for call in called.tool_calls] == [("multiply", {"a": 6, "b": 7})]
        trip = await model.with_structured_output(Trip).ainvoke("4 days in 'Rome'")
        assert trip == Trip(city="Rome", days=4)
        assert all(record.ending is Ending.COMPLETED for record in engine.records)
