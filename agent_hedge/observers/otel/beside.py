"""Beside another instrumentation of LangChain: whose span counts a winner's tokens, and which one ours stand under."""

from __future__ import annotations

import sys

from opentelemetry.context import Context
from opentelemetry.trace import set_span_in_context

OPENINFERENCE = "openinference.instrumentation.langchain"
OTHERS = (OPENINFERENCE, "opentelemetry.instrumentation.langchain", "opentelemetry.instrumentation.genai.langchain")
"""Instrumentations that count the tokens of the chat model's run, which are the winner's."""
LANGSMITH = "langsmith._internal.otel._otel_exporter"
"""LangSmith loads this where it sends its runs to OpenTelemetry: they have spans then, none of them ever current."""


def graph_has_a_span() -> bool:
    """Whether another instrumentation is loaded, and with it a span around the steps of a graph."""
    return any(module in sys.modules for module in OTHERS)


def winner_is_counted() -> bool:
    """Whether there is another span of a chat model's call, with its tokens."""
    return graph_has_a_span() or LANGSMITH in sys.modules


def parent() -> Context | None:
    """Return what our next span is to stand under; None: what is current, as everywhere else.

    OpenInference makes none of its spans current, and tells the one of the node when it is asked.
    """
    other = sys.modules.get(OPENINFERENCE)
    if other is None or not other.LangChainInstrumentor().is_instrumented_by_opentelemetry:
        return None
    span = other.get_current_span()
    return None if span is None else set_span_in_context(span)
