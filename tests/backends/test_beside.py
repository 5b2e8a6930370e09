"""G3: beside another instrumentation of LangChain tokens are counted once and attempts are visible."""

from __future__ import annotations

import asyncio
import logging
from importlib import import_module
from typing import Any

import pytest
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import SecretStr

from agent_hedge import Fixed, FleetBudget, Hedger, Target
from agent_hedge.testing.engine import FakeEngine, Hardware

from ..observers.spans import Backend, said

INSTRUMENTATIONS = {
    "openinference": ("openinference.instrumentation.langchain", "LangChainInstrumentor"),
    "traceloop": ("opentelemetry.instrumentation.langchain", "LangchainInstrumentor"),
}
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")


@pytest.mark.parametrize("name", INSTRUMENTATIONS)
def test_tokens_are_counted_once(name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    module, kind = INSTRUMENTATIONS[name]
    instrumentor: Any = getattr(pytest.importorskip(module), kind)()
    backend = Backend()
    monkeypatch.setattr(import_module("agent_hedge.observers.otel"), "get_tracer_provider", lambda: backend.provider)
    instrumentor.instrument(tracer_provider=backend.provider)
    hardware = Hardware(speedup=20.0)
    try:
        with (
            FakeEngine.in_thread("fixed:5", hardware=hardware) as slow,
            FakeEngine.in_thread("fixed:0.1", hardware=hardware) as quick,
        ):
            answer = asyncio.run(_ask(slow, quick))
    finally:
        instrumentor.uninstrument()
    output = answer.usage_metadata["output_tokens"]
    counted = [value for span in backend.spans for key in OUTPUT if (value := (span.attributes or {}).get(key))]
    assert counted == [output], "once, over all spans"
    steps = backend.named("agent_hedge.step")
    assert len(steps) == 1
    attempts = backend.children(steps[0])
    assert [said(span, "attempt.role", "outcome") for span in attempts] == [
        ("primary", "superseded"),
        ("hedge", "won"),
    ]
    assert backend.open.count == 0
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def _ask(*engines: FakeEngine) -> Any:
    budget = FleetBudget(1.0, floor=100, burst=100)
    async with Hedger(policy=Fixed(0.05, attempts=2), budget=budget) as hedger:
        members = [
            Target(f"replica-{n}", ChatOpenAI(model="gpt-4o-mini", base_url=engine.base_url, api_key=SecretStr("none")))
            for n, engine in enumerate(engines)
        ]
        model = hedger.chat_model(*members)

        async def plan(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState).add_node("plan", plan).add_edge(START, "plan").compile()
        question: Any = {"messages": [("user", "hello")]}
        result = await graph.ainvoke(question)
        return result["messages"][-1]
