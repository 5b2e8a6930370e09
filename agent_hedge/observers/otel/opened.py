"""An open span, and what it will say when it ends."""

from __future__ import annotations

from opentelemetry.trace import Span, Status, StatusCode

from agent_hedge.observers.otel import names
from agent_hedge.observers.otel.attributes import Attributes

_ERROR = Status(StatusCode.ERROR)


class Opened:
    """An open span, and what it will say when it ends: gathered here, and told to the SDK in one go.

    `offset`: nanoseconds from the run loop's clock to the epoch's.
    """

    __slots__ = ("events", "offset", "said", "span")

    def __init__(self, span: Span, said: Attributes, offset: int = 0) -> None:
        self.span = span
        self.said = said
        self.offset = offset
        self.events: list[tuple[str, Attributes | None, int]] = []

    def note(self, name: str, at: float, said: Attributes | None = None) -> None:
        """Gather an event; `at` is an instant of the run loop."""
        self.events.append((name, said, self.offset + int(at * 1e9)))

    def end(self, at: float | None = None) -> None:
        """Say everything, and end the span (now, without an instant of the run loop)."""
        span = self.span
        if span.is_recording():
            for event in self.events:
                span.add_event(*event)
            span.set_attributes(self.said)
            if names.ERROR_TYPE in self.said:
                span.set_status(_ERROR)
        span.end(None if at is None else self.offset + int(at * 1e9))
