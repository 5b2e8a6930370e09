"""G1: the span tree of every outcome, in full."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import NonRecordingSpan, SpanKind, StatusCode

from agent_hedge.core.events import AttemptEnded, Reason, StepReopened
from agent_hedge.core.ports import Refused
from agent_hedge.core.step import Certainty, Receipt, Usage
from agent_hedge.observers.otel import Described, Tracing
from agent_hedge.testing.scenario import Line

from .kit import play
from .spans import Backend, events, everything, said

STEP = "agent_hedge.step scenario"
ATTEMPT = "agent_hedge.attempt scenario"
A_STEP = {"node": "scenario"}
PRIMARY = {"target": "a", "attempt.role": "primary", "attempt.number": 0, "attempt.id": ...}
HEDGE = {
    "target": "b",
    "attempt.role": "hedge",
    "attempt.number": 1,
    "attempt.id": ...,
    "attempt.hedge_of_span_id": ...,
}
ONE: list[Any] = [(STEP, [(ATTEMPT, [])])]
TWO: list[Any] = [(STEP, [(ATTEMPT, []), (ATTEMPT, [])])]


@pytest.fixture
def backend() -> Backend:
    return Backend()


def seconds(span: Any) -> float:
    return float(round((span.end_time - span.start_time) / 1e9, 6))


def test_won_by_the_primary(backend: Backend) -> None:
    play(Tracing(backend.provider), Line("a", 0.5, first_token=0.2), policy=2.0)
    assert backend.tree() == ONE
    step, attempt = backend.spans
    assert (step.kind, attempt.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT)
    assert everything(step) == A_STEP | {"trigger": 2.0, "outcome": "answered", "winner": "a", "attempts": 1}
    assert events(step) == ["trigger_armed", "commit"]
    times = {"time.first_token": 0.2, "time.decode": 0.3}
    assert everything(attempt) == PRIMARY | {"outcome": "won"} | times
    assert events(attempt) == []
    assert (seconds(step), seconds(attempt)) == (0.5, 0.5)
    assert not attempt.links
    assert not any(name.startswith("gen_ai") for name in step.attributes or {}), "no usage, no model, on the step"


def test_won_by_the_hedge(backend: Backend) -> None:
    play(Tracing(backend.provider), ("a", 9.0), ("b", 0.25), policy=1.0)
    assert backend.tree() == TWO
    step, primary, hedge = backend.spans
    answered = {"trigger": 1.0, "outcome": "answered", "winner": "b", "attempts": 2, "hedges": 1}
    assert everything(step) == A_STEP | answered
    assert events(step) == ["trigger_armed", "hedge_due", "commit"]
    assert everything(primary) == PRIMARY | {"outcome": "superseded"}
    assert events(primary) == ["cancel_sent"]
    assert primary.status.status_code is StatusCode.UNSET
    assert "error.type" not in (primary.attributes or {})
    assert everything(hedge) == HEDGE | {"outcome": "won", "attempt.trigger_delay": 1.0}
    (link,) = hedge.links
    assert link.context.span_id == primary.context.span_id
    assert said(hedge, "attempt.hedge_of_span_id") == (f"{primary.context.span_id:016x}",)


class No:
    """A gate that refuses hedges for this reason."""

    def __init__(self, reason: Reason) -> None:
        self.reason = reason

    def admit(self, attempt: Any, view: Any) -> Any:
        from agent_hedge.core.race import PASS

        return Refused(self.reason, "37 of 200") if attempt.number else PASS


@pytest.mark.parametrize("reason", list(Reason))
def test_a_refusal_is_an_event_of_the_step_with_its_reason(backend: Backend, reason: Reason) -> None:
    play(Tracing(backend.provider), ("a", 3.0), ("b", 0.25), policy=1.0, gates=[No(reason)])
    assert backend.tree() == ONE
    step = backend.spans[0]
    assert events(step) == ["trigger_armed", "hedge_due", "refused", "commit"]
    refused = dict(step.events[2].attributes or {})
    assert refused == {
        "agent_hedge.reason": str(reason),
        "agent_hedge.attempt.role": "hedge",
        "agent_hedge.detail": "37 of 200",
    }
    answered = {"trigger": 1.0, "outcome": "answered", "winner": "a", "attempts": 1, "reason": str(reason)}
    assert everything(step) == A_STEP | answered
    assert everything(backend.spans[1]) == PRIMARY | {"outcome": "won"}


def test_all_failed(backend: Backend) -> None:
    play(Tracing(backend.provider), ("a", 1.0, ConnectionError("secret")), ("b", 1.0, OSError("secret")))
    assert backend.tree() == TWO
    step, first, second = backend.spans
    assert everything(step) == A_STEP | {"outcome": "failed", "error.type": "ConnectionError", "attempts": 2}
    assert events(step) == []
    assert step.status.status_code is StatusCode.ERROR
    assert everything(first) == PRIMARY | {
        "outcome": "failed",
        "failure": "recoverable",
        "error.type": "ConnectionError",
    }
    recovery = {"target": "b", "attempt.role": "recovery", "attempt.number": 1, "attempt.id": ...}
    assert everything(second) == recovery | {
        "outcome": "failed",
        "failure": "request",
        "error.type": "OSError",
        "attempt.trigger_delay": 1.0,
    }
    for attempt in (first, second):
        assert attempt.status.status_code is StatusCode.ERROR
        assert not attempt.links, "a recovery is no hedge"
    assert "secret" not in "".join(span.to_json() for span in backend.spans)


def test_the_deadline(backend: Backend) -> None:
    play(Tracing(backend.provider), ("a", 9.0), deadline=2.0)
    assert backend.tree() == ONE
    step, attempt = backend.spans
    late = {"outcome": "deadline", "error.type": "DeadlineExceeded", "attempts": 1}
    assert everything(step) == A_STEP | late | {"deadline.left": 2.0}
    assert events(step) == []
    assert everything(attempt) == PRIMARY | {"outcome": "cancelled", "cancel.cause": "deadline", "deadline.left": 2.0}
    assert events(attempt) == ["cancel_sent"]
    assert attempt.status.status_code is StatusCode.UNSET
    assert seconds(attempt) == 2.0


def test_barred_from_the_start(backend: Backend) -> None:
    class Barred:
        def next_launch_at(self, view: Any) -> Refused:
            return Refused(Reason.BARRED, "pay")

    play(Tracing(backend.provider), ("a", 3.0), ("b", 0.25), policy=Barred())
    step = backend.spans[0]
    assert events(step) == ["refused", "commit"], "nothing was ever due"
    assert dict(step.events[0].attributes or {})["agent_hedge.detail"] == "pay"
    assert everything(step) == A_STEP | {"outcome": "answered", "winner": "a", "attempts": 1, "reason": "barred"}
    assert everything(backend.spans[1]) == PRIMARY | {"outcome": "won"}


def test_the_attempts_of_a_chat_model_speak_the_genai_conventions(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = Described(provider="openai", model="gpt-x", address="api.example", port=443)
    for opt_in in ("", "gen_ai_latest_experimental"):
        monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", opt_in)
        backend.exporter.clear()
        chat(Tracing(backend.provider, describe=lambda _: described))
        attempt = backend.named("chat m")[0]
        attributes = dict(attempt.attributes or {})
        assert attributes["gen_ai.operation.name"] == "chat"
        assert (attributes["gen_ai.provider.name"], attributes["gen_ai.request.model"]) == ("openai", "gpt-x")
        assert (attributes["server.address"], attributes["server.port"]) == ("api.example", 443)
        assert ("gen_ai.system" in attributes) == (not opt_in)
        assert (attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (10, 5)
        assert attributes["gen_ai.response.id"] == "chatcmpl-1"
        (step,) = backend.named("agent_hedge.step")
        assert not any(name.startswith("gen_ai") for name in step.attributes or {})


def chat(tracing: Tracing, usage: Usage | None = None) -> None:
    """One chat model's step whose only attempt won and used this."""
    from agent_hedge.core.step import StepKey

    used = usage or Usage(input=10, output=5, certainty=Certainty.EXACT, response_id="chatcmpl-1")
    play(Counted(tracing, used), ("a", 0.5), key=StepKey(node="n", model="m"))


class Counted:
    """Puts a model's key and usage onto the events of a script, as an adapter would."""

    def __init__(self, tracing: Tracing, usage: Usage) -> None:
        self.tracing, self.usage = tracing, usage

    def on_event(self, event: Any) -> Any:
        from dataclasses import replace

        if isinstance(event, AttemptEnded):
            event = replace(event, receipt=Receipt(usage=self.usage))
        return self.tracing.on_event(event)


def test_a_lower_bound_is_no_usage(backend: Backend) -> None:
    chat(Tracing(backend.provider), Usage(output=7, certainty=Certainty.AT_LEAST))
    attempt = backend.named("chat")[0]
    assert said(attempt, "usage.certainty", "usage.received_output_tokens") == ("at_least", 7)
    assert "gen_ai.usage.output_tokens" not in (attempt.attributes or {})


def test_the_winners_usage_is_left_to_another_instrumentation(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "opentelemetry.instrumentation.langchain", sys)
    chat(Tracing(backend.provider))
    assert "gen_ai.usage.output_tokens" not in (backend.named("chat")[0].attributes or {})
    chat(Tracing(backend.provider, winner_usage=True))
    assert "gen_ai.usage.output_tokens" in (backend.named("chat")[1].attributes or {})


def test_of_a_trace_that_is_not_sampled_nothing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    provider = TracerProvider(sampler=ALWAYS_OFF)
    said_of: list[Any] = []
    monkeypatch.setattr(NonRecordingSpan, "set_attributes", lambda span, said: said_of.append(said))
    monkeypatch.setattr(NonRecordingSpan, "add_event", lambda span, *event: said_of.append(event))
    tracing = Tracing(provider)
    play(tracing, ("a", 9.0), ("b", 0.25), policy=1.0)
    assert said_of == []
    assert not tracing._steps
    assert not tracing._attempts


def test_spans_stand_under_the_span_that_is_current(backend: Backend) -> None:
    with backend.current("execute_task plan"):
        play(Tracing(backend.provider), ("a", 0.5))
    assert backend.tree() == [("execute_task plan", ONE)]


def test_a_step_that_is_run_again_is_linked_to_its_first_race(backend: Backend) -> None:
    tracing = Tracing(backend.provider)
    heard: list[Any] = []

    class Both:
        def on_event(self, event: Any) -> Any:
            heard.append(event)
            return tracing.on_event(event)

    play(Both(), Line("a", 0.5, OSError(), first_token=0.1), commit_on_token=True)
    first = heard[0]
    tracing.on_event(StepReopened(step_id=first.step_id, key=first.key, at=first.at + 0.5))
    for event in heard[1:]:
        tracing.on_event(event)
    one, again = backend.named(STEP)
    assert again.links[0].context.span_id == one.context.span_id
    assert said(again, "step.reopened") == (True,)
    assert backend.open.count == 0
    assert not tracing._steps, "and nothing of it is remembered"
