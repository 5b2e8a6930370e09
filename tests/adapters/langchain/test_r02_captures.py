"""B4: the first meaningful chunk of every captured stream is the event that its label names, or the difference known.

A capture that is cut *before* that event, and then ends, has said nothing: the rival answers. Cut *after* it, the
captured member has won. Both ends are clean, so that what is tested is the event and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel

from agent_hedge import FleetBudget, Hedger, Never, Target
from agent_hedge.adapters.langchain.model import HedgedChatModel
from agent_hedge.testing.engine import FakeEngine, Fault, Hardware, Replay
from tests.adapters.langchain.captures import Capture, captures
from tests.adapters.langchain.kit import anthropic, plain

PROTOCOLS: dict[str, Callable[[FakeEngine], BaseChatModel]] = {
    "oai-chat": plain,
    "oai-responses": lambda engine: plain(engine, use_responses_api=True),
    "anthropic": lambda engine: anthropic(base_url=engine.url),
}
KNOWN = {
    "oai-responses-59-stream": 4,  # a refusal; the labels know none in this protocol
    "oai-responses-116-openai-apply-patch-tool.1.chunks": 3,  # the text of a patch; the labels know none
}
"""Where we differ from the label, and at which event we commit instead."""
DONE = b"data: [DONE]\n\n"

needs_captures = pytest.mark.skipif(not captures(), reason="../shared/data/sse_captures.jsonl is absent")


@pytest.fixture(scope="module")
def engines() -> Iterator[tuple[FakeEngine, FakeEngine]]:
    hardware = Hardware(decode_rate=50_000.0)
    with FakeEngine.in_thread(hardware=hardware) as captured, FakeEngine.in_thread(hardware=hardware) as rival:
        yield captured, rival


@pytest.fixture(scope="module")
def models(engines: tuple[FakeEngine, FakeEngine]) -> dict[str, HedgedChatModel]:
    """Return a hedged model for each protocol: the captured member, and a rival that answers when it has not spoken."""
    hedger = Hedger(policy=Never(), budget=FleetBudget(recoveries=1.0, recoveries_per_minute=10_000))
    return {
        name: hedger.chat_model(*(Target(f"{name} {n}", member(engine)) for n, engine in enumerate(engines)))
        for name, member in PROTOCOLS.items()
    }


def answers(protocol: str) -> Replay:
    """Return a body that answers with text."""
    good = next(c for c in captures().values() if c.protocol == protocol and c.kind == "content" and not c.has_error)
    return Replay(body=good.body)


class Stage:
    """One capture on the first engine, in pieces; an answer on the second."""

    def __init__(self, capture: Capture, engines: tuple[FakeEngine, FakeEngine], model: HedgedChatModel) -> None:
        self.capture = capture
        self.captured, rival = engines
        rival.faults = Fault(replay=answers(capture.protocol))
        self.model = model

    def play(self, **cut: Any) -> None:
        self.captured.faults = Fault(replay=Replay(body=self.capture.body, **cut))

    def winner(self, **cut: Any) -> str:
        """Stream the capture so cut; return whose chunks the caller has seen: ``captured`` or ``rival``."""
        self.play(**cut)
        try:
            first, *_ = self.model.stream("Hello")
        except ValueError:  # a legacy completion, of which a chat client drops all: as with the plain member
            return "captured"
        return "rival" if first.response_metadata["agent_hedge"]["target"].endswith("1") else "captured"


@pytest.fixture
def stage(name: str, engines: tuple[FakeEngine, FakeEngine], models: dict[str, HedgedChatModel]) -> Stage:
    capture = captures()[name]
    return Stage(capture, engines, models[capture.protocol])


@needs_captures
@pytest.mark.parametrize("name", [name for name, capture in captures().items() if not capture.has_error])
def test_r02_the_first_meaningful_event_is_the_labelled_one(name: str, stage: Stage) -> None:
    first = KNOWN.get(name, stage.capture.first)
    winner = partial(stage.winner, append=DONE)
    if first is None:
        assert winner() == "rival"
        return
    assert winner(cut_events=first) == "rival"
    assert winner(cut_events=first + 1) == "captured"


@needs_captures
def test_r02_at_most_three_differences_a_protocol_and_none_of_a_kind_that_matters() -> None:
    differing = [captures()[name] for name in KNOWN]
    assert all(count <= 3 for count in Counter(capture.protocol for capture in differing).values())
    assert {capture.kind for capture in differing}.isdisjoint({"reasoning", "tool", "content"})
    assert Counter(capture.protocol for capture in captures().values()) == {
        "oai-chat": 59,
        "oai-responses": 32,
        "anthropic": 19,
    }


WITH_ERROR = [name for name, capture in captures().items() if capture.has_error]


@needs_captures
@pytest.mark.parametrize("name", WITH_ERROR)
def test_r02_an_error_frame_before_anything_meaningful_loses_to_a_rival_that_answers(name: str, stage: Stage) -> None:
    assert len(WITH_ERROR) == 3
    first, body = stage.capture.first, stage.capture.body
    if first is None:
        assert stage.winner() == "rival"
        return
    start = body.index(b'"error"')
    frame = body[body.rindex(b"\n\n", 0, start) + 2 :]
    assert stage.winner(cut_events=first, append=frame) == "rival"


@needs_captures
@pytest.mark.parametrize("name", [name for name in WITH_ERROR if captures()[name].first is not None])
def test_r03_an_error_after_the_first_meaningful_event_fails_a_streaming_caller_and_is_recovered_for_others(
    name: str, stage: Stage
) -> None:
    stage.play()
    seen: list[Any] = []
    with pytest.raises(Exception, match="tool"):
        seen += stage.model.stream("Hello")
    answer = stage.model.invoke("Hello")
    assert answer.response_metadata["agent_hedge"]["target"].endswith("1")
    assert answer.text
