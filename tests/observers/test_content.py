"""Content is on spans where it was asked for, and nowhere else (R18)."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    ChatMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agent_hedge import Fixed, FleetBudget, Hedger, Target
from agent_hedge.adapters.langchain.content import Keeping
from agent_hedge.core.events import Event, FirstToken
from agent_hedge.core.step import Usage
from agent_hedge.errors import ConfigurationError
from agent_hedge.observers.otel import names
from agent_hedge.observers.otel.attributes import of_content
from agent_hedge.testing.engine import FakeEngine, Hardware
from agent_hedge.testing.engine.request import Request
from tests.conftest import HUNG_S

from .spans import Backend, said

PROMPT = "what is the canary's name?"
CAPTURE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ASKED = [
    {"role": "system", "parts": [{"type": "text", "content": "be brief"}]},
    {"role": "user", "parts": [{"type": "text", "content": PROMPT}]},
]


@pytest.fixture
def engines() -> Iterator[list[FakeEngine]]:
    hardware = Hardware(speedup=20.0)
    with (
        FakeEngine.in_thread("fixed:0.1", hardware=hardware) as one,
        FakeEngine.in_thread("fixed:0.1", hardware=hardware) as two,
    ):
        yield [one, two]


def ask(engines: list[FakeEngine], **settings: Any) -> tuple[str, str]:
    """Call a hedged model, whole and as a stream, and return its answers."""

    async def main() -> tuple[str, str]:
        budget = FleetBudget(1.0, floor=100, burst=100)
        async with Hedger(policy=Fixed(9.0), budget=budget, **settings) as hedger:
            model = hedger.chat_model(
                *(
                    Target(f"replica-{n}", ChatOpenAI(model="m", base_url=engine.base_url, api_key=SecretStr("none")))
                    for n, engine in enumerate(engines)
                )
            )
            messages = [("system", "be brief"), ("user", PROMPT)]
            answer = await model.ainvoke(messages)
            chunks = [chunk.text async for chunk in model.astream(messages)]
            return answer.text, "".join(chunks)

    return asyncio.run(main())


def shown(backend: Backend) -> list[tuple[Any, Any]]:
    return [
        tuple(None if text is None else json.loads(text) for text in said(span, *MESSAGES))  # type: ignore[misc]
        for span in backend.named("chat")
    ]


MESSAGES = ("gen_ai.input.messages", "gen_ai.output.messages")


@pytest.mark.parametrize(
    ("environment", "argument", "captured"),
    [
        ("", None, False),
        ("NO_CONTENT", None, False),
        ("EVENT_ONLY", None, False),
        ("SPAN_ONLY", None, True),
        ("span_and_event", None, True),
        ("true", None, True),
        ("SPAN_ONLY", False, False),
        ("", True, True),
    ],
)
def test_r18_content_is_on_spans_only_where_it_was_asked_for(
    environment: str,
    argument: bool | None,
    captured: bool,
    engines: list[FakeEngine],
    backend: Backend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CAPTURE, environment)
    whole, streamed = ask(engines, capture_content=argument)
    if not captured:
        assert shown(backend) == [(None, None)] * 2
        assert PROMPT not in "".join(span.to_json() for span in backend.spans)
        return
    assert whole
    assert streamed
    assert shown(backend) == [(ASKED, answered(whole)), (ASKED, answered(streamed))]
    others = [span for span in backend.spans if not span.name.startswith("chat")]
    assert others
    assert PROMPT not in "".join(span.to_json() for span in others), "on attempts only"


def answered(text: str, finish: str = "stop") -> list[Any]:
    return [{"role": "assistant", "parts": [{"type": "text", "content": text}], "finish_reason": finish}]


def test_of_a_loser_what_had_come_of_its_answer_is_shown(backend: Backend) -> None:
    """The primary has begun its answer when its hedge's is accepted: the first token does not decide here."""
    begun = threading.Event()

    class Ear:
        def on_event(self, event: Event) -> None:
            if isinstance(event, FirstToken) and event.attempt.number == 0:
                begun.set()

    def after_it(request: Request) -> None:
        begun.wait(HUNG_S)

    async def main() -> str:
        with (
            FakeEngine.in_thread("fixed:0.02", hardware=Hardware(decode_rate=1.0)) as slow,
            FakeEngine.in_thread("fixed:0.02", faults=after_it) as quick,
        ):
            budget = FleetBudget(1.0, floor=100, burst=100)
            hedger = Hedger(policy=Fixed(0.0), budget=budget, observers=[Ear()], capture_content=True)
            async with hedger:
                targets = (
                    Target(name, ChatOpenAI(model="m", base_url=engine.base_url, api_key=SecretStr("none")))
                    for name, engine in (("slow", slow), ("quick", quick))
                )
                model = hedger.chat_model(*targets, accept=lambda answer: True)
                return (await model.ainvoke(PROMPT)).text

    whole = asyncio.run(main())
    loser, winner = (said(span, "outcome", *MESSAGES) for span in backend.named("chat"))
    assert (loser[0], winner[0]) == ("superseded", "won")
    assert loser[1] == winner[1], "the same was asked"
    assert json.loads(winner[2]) == answered(whole)
    (message,) = json.loads(loser[2])
    assert 0 < len(message["parts"][0]["content"]) < len(whole)
    assert message["finish_reason"] == ""


def test_the_winners_content_is_left_to_another_instrumentation(
    engines: list[FakeEngine], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.langchain", sys)
    ask(engines, capture_content=True)
    assert shown(backend) == [(None, None)] * 2


def test_a_word_that_captures_nothing_is_said(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    for word, warned in (("", 0), ("SPAN_ONLY", 0), ("EVENT_ONLY", 1), ("yes", 1)):
        caplog.clear()
        monkeypatch.setenv(CAPTURE, word)
        names.captures_content()
        assert len(caplog.records) == warned, word


def test_r20_capture_content_is_yes_or_no() -> None:
    with pytest.raises(ConfigurationError, match="capture_content"):
        Hedger(capture_content="spans")  # type: ignore[arg-type]


def test_messages_in_the_form_of_the_conventions() -> None:
    call = {"name": "look", "args": {"at": "it"}, "id": "call-1", "type": "tool_call"}
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    asked = [
        SystemMessage("rules"),
        HumanMessage([{"type": "text", "text": "see"}, image]),
        AIMessage([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "I look"}], tool_calls=[call]),
        ToolMessage("seen", tool_call_id="call-1"),
        ChatMessage(content="so be it", role="critic"),
    ]
    keeping = Keeping(asked)
    for message in (
        AIMessageChunk(
            content="", tool_call_chunks=[tool_call_chunk(name="pay", args='{"sum": ', id="call-2", index=0)]
        ),
        AIMessageChunk(content="", tool_call_chunks=[tool_call_chunk(name=None, args="3", id=None, index=0)]),
    ):
        keeping.saw(ChatGenerationChunk(message=message))
    assert keeping.content() == (
        [
            {"role": "system", "parts": [{"type": "text", "content": "rules"}]},
            {"role": "user", "parts": [{"type": "text", "content": "see"}]},
            {
                "role": "assistant",
                "parts": [
                    {"type": "reasoning", "content": "hm"},
                    {"type": "text", "content": "I look"},
                    {"type": "tool_call", "id": "call-1", "name": "look", "arguments": {"at": "it"}},
                ],
            },
            {"role": "tool", "parts": [{"type": "tool_call_response", "id": "call-1", "response": "seen"}]},
            {"role": "critic", "parts": [{"type": "text", "content": "so be it"}]},
        ],
        [
            {
                "role": "assistant",
                "parts": [{"type": "tool_call", "id": "call-2", "name": "pay", "arguments": {"sum": 3}}],
                "finish_reason": "",
            }
        ],
    )


def test_what_cannot_be_shown_costs_no_span(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Usage):
        def content(self) -> Any:
            raise TypeError("secret")

    with caplog.at_level(logging.WARNING):
        assert of_content(Odd()) == {}
    assert "secret" not in caplog.text
    assert "TypeError" in caplog.text
    assert of_content(Usage()) == {}
