"""One run of an agent with two stragglers, sent to a backend by OTLP: six calls in a row, eight attempts.

``python -m tests.backends.run http://127.0.0.1:6006 [header=value ...]`` does the run and prints what it was, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from pydantic import SecretStr

from agent_hedge import Fixed, FleetBudget, Hedger, Never, Target
from agent_hedge.testing.engine import FakeEngine, Hardware
from agent_hedge.testing.profiles import Recorded

PROJECT = "agent-hedge"
NODES = ("plan", "search", "read", "compare", "write", "check")
EAST, WEST = Recorded([0.9, 0.7, 30.0, 0.8]), Recorded([0.6, 0.8, 30.0, 0.7])
"""First tokens in seconds: the third call is a straggler in the east, after which the run stays in the west, whose own
third is one."""
SLOW = ("read", "write")
"""The nodes that meet them, and the only ones that hedge: on a busy machine any call may be slow."""
ROWS = [(node, ["primary", "hedge"] if node in SLOW else ["primary"]) for node in NODES]


@dataclass(frozen=True, slots=True)
class Sent:
    """What the backend is to show: ids as hex, and the tokens of the answers, by the provider's word."""

    trace_id: str
    input_tokens: int
    output_tokens: int


def send(endpoint: str, headers: Mapping[str, str]) -> Sent:
    """Do the run and export it to ``{endpoint}/v1/traces``; it has been sent when this returns. Once in a process."""
    resource = Resource.create({"service.name": PROJECT, "openinference.project.name": PROJECT})
    provider = TracerProvider(resource=resource)
    exporter = OTLPSpanExporter(f"{endpoint}/v1/traces", headers=dict(headers))
    provider.add_span_processor(BatchSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    try:
        return asyncio.run(_run())
    finally:
        provider.shutdown()


async def _run() -> Sent:
    hardware = Hardware(speedup=4.0)
    budget = FleetBudget(1.0, floor=100, burst=100)
    async with (
        FakeEngine(EAST, hardware=hardware) as east,
        FakeEngine(WEST, hardware=hardware) as west,
        Hedger(policy=Never(), nodes=dict.fromkeys(SLOW, Fixed(0.4, attempts=2)), budget=budget) as hedger,
    ):
        targets = [Target("us-east", _client(east)), Target("us-west", _client(west))]
        graph = _graph(hedger.chat_model(*targets))
        question: Any = {"messages": [("user", "Why was the customer charged twice?")]}
        async with hedger.run(key="case-4711", tenant="acme", deadline=60.0):
            trace_id = trace.get_current_span().get_span_context().trace_id
            result = await graph.ainvoke(question)
    used = [message.usage_metadata for message in result["messages"] if message.type == "ai"]
    return Sent(f"{trace_id:032x}", sum(one["input_tokens"] for one in used), sum(one["output_tokens"] for one in used))


def _client(engine: FakeEngine) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o-mini", base_url=engine.base_url, api_key=SecretStr("none"))


def _graph(model: Any) -> Any:
    builder = StateGraph(MessagesState)
    previous: str = START
    for name in NODES:

        async def node(state: MessagesState) -> dict[str, Any]:
            return {"messages": [await model.ainvoke(state["messages"])]}

        builder.add_node(name, node)
        builder.add_edge(previous, name)
        previous = name
    return builder.compile()


if __name__ == "__main__":
    print(json.dumps(asdict(send(sys.argv[1], dict(header.split("=", 1) for header in sys.argv[2:])))))
