"""`accept=` and `accept="schema"`: whole answers are judged, the first token only disarms the trigger."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain_core.exceptions import OutputParserException
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGenerationChunk
from pydantic import BaseModel

from agent_hedge import Fixed
from agent_hedge.errors import AnswerRejected, ConfigurationError
from agent_hedge.testing.clock import run_virtual
from agent_hedge.testing.engine import FakeEngine, Reply, Request, ToolCall
from tests.adapters.langchain.kit import Ear, Scripted, Step, ample, hedged, plain, requests, said


def good(message: AIMessage) -> bool:
    return "good" in message.text


def judged(*scripts: list[Step], **options: Any) -> tuple[BaseChatModel, list[Scripted]]:
    members = [Scripted(*script) for script in scripts]
    hedger = ample(policy=Fixed(1.0))
    return hedger.chat_model(*members, **({"accept": good} | options)), members


def test_a_rejected_answer_is_a_recoverable_failure() -> None:
    async def main() -> None:
        model, (_, second) = judged([0.1, "bad", 0.4], [0.1, "good", 0.2])
        started = asyncio.get_running_loop().time()
        answer = await model.ainvoke("Hello")
        assert answer.text == "good"
        assert said(answer)["target"].endswith("#2")
        assert asyncio.get_running_loop().time() - started == pytest.approx(0.8)  # at 0.5 the next attempt is due
        assert len(second.calls) == 1

    run_virtual(main)


def test_r04_the_first_token_disarms_the_trigger_and_elects_nobody() -> None:
    async def main() -> None:
        model, (_, second) = judged([0.5, "slow and ", 9.0, "good"], [0.1, "good"])
        assert (await model.ainvoke("Hello")).text == "slow and good"
        assert second.calls == []

    run_virtual(main)


def test_both_attempts_decode_until_an_answer_is_accepted() -> None:
    async def main() -> None:
        model, (first, second) = judged([2.0, "good", 8.0], [0.5, "good", 2.0])
        started = asyncio.get_running_loop().time()
        answer = await model.ainvoke("Hello")
        assert asyncio.get_running_loop().time() - started == pytest.approx(3.5)
        assert said(answer) == {
            "target": "scripted:scripted#2",
            "attempts": 2,
            "hedged": True,
            "trigger_s": 1.0,
            "ttft_s": 0.5,
        }
        assert first.alive == second.alive == []

    run_virtual(main)


def test_where_nothing_is_accepted_the_step_fails() -> None:
    async def main() -> None:
        model, members = judged(["bad"], ["worse"])
        with pytest.raises(AnswerRejected, match="said no"):
            await model.ainvoke("Hello")
        assert sum(len(member.calls) for member in members) == 3

    run_virtual(main)


def test_an_accept_that_raises_fails_the_request() -> None:
    async def main() -> None:
        model, (_, second) = judged(["x"], ["good"], accept=lambda message: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await model.ainvoke("Hello")
        assert second.calls == []

    run_virtual(main)


def test_a_streaming_caller_needs_accept_on_final_which_buffers() -> None:
    async def main() -> None:
        model, _ = judged(["good"], ["good"])
        with pytest.raises(ConfigurationError, match="accept_on='final'"):
            [chunk async for chunk in model.astream("Hello")]
        model, _ = judged(["bad ", "start"], ["good ", "end"], accept_on="final")
        chunks = [chunk async for chunk in model.astream("Hello")]
        assert [chunk.text for chunk in chunks] == ["good end"]
        assert chunks[0].chunk_position == "last"

    run_virtual(main)


def test_a_buffered_answer_keeps_its_tool_calls() -> None:
    async def main() -> None:
        right = tool_call_chunk(name="look", args='{"city": "Rome"}', id="c1", index=0)
        broken = tool_call_chunk(name="look", args="not json", id="c2", index=1)
        chunk = ChatGenerationChunk(message=AIMessageChunk(content="good", tool_call_chunks=[right, broken]))
        model, _ = judged([chunk], [chunk], accept_on="final")
        [first] = [chunk async for chunk in model.astream("Hello")]
        assert [call["args"] for call in first.tool_calls] == [{"city": "Rome"}]
        assert [call["args"] for call in first.invalid_tool_calls] == ["not json"]

    run_virtual(main)


# --- accept="schema" ------------------------------------------------------------------------------------------------


class Weather(BaseModel):
    """The weather in one place."""

    city: str
    degrees: int


def speaks(*replies: str | dict[str, Any]) -> Callable[[Request], Reply]:
    """Answer the next requests with these texts, or arguments of the tool that the request must call."""
    script = iter(replies)

    def reply(request: Request) -> Reply:
        said = next(script)
        text = said if isinstance(said, str) else json.dumps(said)
        names = [function["name"] for function in request.tools]
        return Reply(tool_calls=(ToolCall(names[0], text),)) if names else Reply(text=text)

    return reply


RIGHT, WRONG = {"city": "Rome", "degrees": 21}, {"city": "Rome", "degrees": "mild"}


@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
@pytest.mark.parametrize("include_raw", [False, True])
def test_an_answer_that_does_not_parse_is_a_rejected_answer(method: str, include_raw: bool) -> None:
    ear = Ear()
    with (
        FakeEngine.in_thread(replies=speaks(WRONG)) as first,
        FakeEngine.in_thread(replies=speaks(RIGHT)) as second,
    ):
        model = hedged([first, second], options={"accept": "schema"})
        chain = model.with_structured_output(Weather, method=method, include_raw=include_raw)
        result = chain.invoke("How is the weather in Rome?", {"callbacks": [ear]})
        assert requests([first]) == requests([second]) == 1
    parsed = result["parsed"] if include_raw else result
    assert parsed == Weather(city="Rome", degrees=21)
    assert ear.kinds == ["start", "end"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_where_no_answer_parses_it_is_as_without_us(method: Any) -> None:
    replies = [WRONG, WRONG, WRONG, WRONG]
    with FakeEngine.in_thread(replies=speaks(*replies)) as first, FakeEngine.in_thread(replies=speaks(*replies)) as two:
        outcomes = []
        for model in (plain(first), hedged([first, two], options={"accept": "schema"})):
            with pytest.raises(Exception, match="degrees") as caught:
                model.with_structured_output(Weather, method=method).invoke("Hello")
            outcomes.append(type(caught.value))
        assert outcomes[0] is outcomes[1]


def test_with_include_raw_the_primarys_answer_is_given_with_its_parsing_error() -> None:
    with FakeEngine.in_thread(replies=lambda _: "not json") as one, FakeEngine.in_thread(replies=lambda _: "no") as two:
        model = hedged([one, two], options={"accept": "schema"})
        result = model.with_structured_output(Weather, method="json_mode", include_raw=True).invoke("Hello")
    assert result["raw"].text == "not json"
    assert result["parsed"] is None
    assert isinstance(result["parsing_error"], OutputParserException)
    assert said(result["raw"])["target"] == "0"


def test_without_structured_output_schema_judges_nothing() -> None:
    async def main() -> None:
        model, (first, second) = judged(["anything"], ["other"], accept="schema")
        assert (await model.astream("Hello").__anext__()).text == "anything"
        assert second.calls == []
        assert first.alive == []

    run_virtual(main)


def test_r05_a_judges_parser_is_heard_by_nobody() -> None:
    """A loser's answer must not show up as a parser's run in the caller's trace."""

    class Chains(Ear):
        def on_chain_start(self, serialized: Any, inputs: Any, **given: Any) -> None:
            self.heard.append(("chain", given.get("name")))

    heard = []
    for accept in (None, "schema"):
        with FakeEngine.in_thread() as one, FakeEngine.in_thread() as two:
            ear = Chains()
            model = hedged([one, two], options={"accept": accept})
            model.with_structured_output(Weather).invoke("'Rome' has 21 degrees", {"callbacks": [ear]})
            heard.append(ear.heard)
    assert [kind for kind, _ in heard[0]] == [kind for kind, _ in heard[1]]
