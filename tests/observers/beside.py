"""Two nodes of a LangGraph, seen by another instrumentation of LangChain and by us: what was told, as JSON.

The first calls a hedged model, whose first member is too slow; the second streams from it.

``python -m tests.observers.beside openinference|traceloop|official|langsmith``: instrumentations patch LangChain for
the whole process, and change what we say of a winner (`Tracing.winner_usage`), so each has one of its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from functools import reduce
from importlib import import_module
from operator import add
from typing import Any

from langchain_core.tracers.langchain import wait_for_all_tracers
from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from opentelemetry import trace
from pydantic import SecretStr

from agent_hedge import Fixed, FleetBudget, Hedger, Target
from agent_hedge.testing.engine import FakeEngine, Hardware

from .spans import Backend

INSTRUMENTATIONS = {
    "openinference": ("openinference.instrumentation.langchain", "LangChainInstrumentor"),
    "traceloop": ("opentelemetry.instrumentation.langchain", "LangchainInstrumentor"),
    "official": ("opentelemetry.instrumentation.genai.langchain", "LangChainInstrumentor"),
}
LANGSMITH = "langsmith"
"""It is in LangChain, and switched on by the environment; nothing leaves the process but to OpenTelemetry."""
SETTINGS = {"TRACING": "true", "TRACING_MODE": "otel", "API_KEY": "none", "ENDPOINT": "http://127.0.0.1:9"}


class Errors(logging.Handler):
    """Keeps what is logged as a warning or worse."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(f"{record.name}: {record.getMessage()}")


def main(name: str) -> None:
    errors, backend = Errors(), Backend()
    logging.getLogger().addHandler(errors)
    trace.set_tracer_provider(backend.provider)
    if name == LANGSMITH:
        os.environ |= {f"LANGSMITH_{key}": value for key, value in SETTINGS.items()}
    else:
        module, kind = INSTRUMENTATIONS[name]
        getattr(import_module(module), kind)().instrument(tracer_provider=backend.provider)
    hardware = Hardware(speedup=20.0)
    with (
        FakeEngine.in_thread("fixed:5000", hardware=hardware) as slow,
        FakeEngine.in_thread("fixed:0.1", hardware=hardware) as quick,
    ):
        answers = asyncio.run(ask(slow, quick))
    wait_for_all_tracers()
    json.dump(
        {
            "usage": [answer.usage_metadata for answer in answers],
            "spans": [
                {
                    "id": span.context.span_id,
                    "parent": span.parent.span_id if span.parent else None,
                    "name": span.name,
                    "scope": span.instrumentation_scope.name if span.instrumentation_scope else "",
                    "attributes": dict(span.attributes or {}),
                }
                for span in backend.spans
            ],
            "open": backend.open.count,
            "errors": errors.said,
        },
        sys.stdout,
    )


async def ask(*engines: FakeEngine) -> list[Any]:
    """Run the graph and return the answers of its nodes."""
    budget = FleetBudget(1.0, floor=100, burst=100)
    async with Hedger(policy=Fixed(0.05, attempts=2), budget=budget) as hedger:
        members = [
            Target(f"replica-{n}", ChatOpenAI(model="gpt-4o-mini", base_url=engine.base_url, api_key=SecretStr("none")))
            for n, engine in enumerate(engines)
        ]
        model = hedger.chat_model(*members)

        async def plan(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        async def write(state: MessagesState) -> dict[str, Any]:
            chunks = [chunk async for chunk in model.astream(state["messages"])]
            return {"messages": [reduce(add, chunks)]}

        builder = StateGraph(MessagesState).add_node("plan", plan).add_node("write", write)
        graph = builder.add_edge(START, "plan").add_edge("plan", "write").compile()
        question: Any = {"messages": [("user", "hello")]}
        result = await graph.ainvoke(question)
        return [message for message in result["messages"] if message.type != "human"]


if __name__ == "__main__":
    main(sys.argv[1])
