"""Spans as trees that can be compared: names, what they say, events, in the order of their start."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter


class Open(SpanProcessor):
    """Counts spans that were started and have not ended."""

    def __init__(self) -> None:
        self.count = 0
        self.order: list[int] = []
        self.contexts: dict[str, Any] = {}

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        self.count += 1
        self.order.append(span.context.span_id)
        self.contexts[span.name] = span.get_span_context()

    def on_end(self, span: ReadableSpan) -> None:
        self.count -= 1


class Backend:
    """An SDK that keeps everything in memory."""

    def __init__(self) -> None:
        self.provider = TracerProvider()
        self.exporter = InMemorySpanExporter()
        self.open = Open()
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.provider.add_span_processor(self.open)

    @property
    def spans(self) -> list[ReadableSpan]:
        """What has ended, in the order in which it was started."""
        order = {span_id: index for index, span_id in enumerate(self.open.order)}
        return sorted(self.exporter.get_finished_spans(), key=lambda span: order[span.context.span_id])

    def named(self, prefix: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name.startswith(prefix)]

    def open_of(self, name: str) -> Any:
        """Return the context of the newest span of this name, open or not."""
        return self.open.contexts[name]

    def children(self, parent: ReadableSpan | None) -> list[ReadableSpan]:
        wanted = None if parent is None else parent.context.span_id
        return [span for span in self.spans if (span.parent.span_id if span.parent else None) == wanted]

    def tree(self, parent: ReadableSpan | None = None) -> list[Any]:
        """Return ``[(name, children), ...]``."""
        return [(span.name, self.tree(span)) for span in self.children(parent)]

    @contextmanager
    def current(self, name: str) -> Iterator[None]:
        """Be inside a span of the application."""
        with trace.use_span(self.provider.get_tracer("app").start_span(name), end_on_exit=True):
            yield


def said(span: ReadableSpan, *names: str) -> tuple[Any, ...]:
    """Return these attributes; those of ours without their common prefix."""
    attributes = span.attributes or {}
    plain = ("error.", "gen_ai.", "server.")
    return tuple(attributes.get(name if name.startswith(plain) else f"agent_hedge.{name}") for name in names)


def everything(span: ReadableSpan) -> dict[str, Any]:
    """Return all that a span says, ours without the common prefix; ids, which differ in every run, as `...`."""
    attributes: dict[str, Any] = {
        name.removeprefix("agent_hedge."): value for name, value in (span.attributes or {}).items()
    }
    for name in ("attempt.id", "attempt.hedge_of_span_id"):
        if name in attributes:
            attributes[name] = ...
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in attributes.items()}


def events(span: ReadableSpan) -> list[str]:
    return [event.name.removeprefix("agent_hedge.") for event in span.events]
