"""An OTLP receiver that is none of ours (`oteltap`): what was exported to it, once it is whole."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Set
from typing import Any

from oteltap import OtelTapHttpProtobufReceiver, OtelTapHttpProtobufReceiverSettings

from agent_hedge.testing.postgres import free_port

LOST_S = 120.0
"""What has not arrived by then, after everything was sent, never will."""


class Received:
    """What has arrived. Every run says how many steps it had and every step how many attempts: so it can be whole."""

    def __init__(self) -> None:
        self.runs: list[Any] = []
        self.steps: list[Any] = []
        self.attempts: list[Any] = []
        self.metrics: set[str] = set()
        self._missing = 0

    def keep_span(self, span: Any) -> None:
        self._missing -= 1
        if span.name == "agent_hedge.run":
            self.runs.append(span)
            self._missing += 1 + said(span, "run.steps")
        elif span.name.startswith("agent_hedge.step "):
            self.steps.append(span)
            self._missing += said(span, "attempts")
        else:
            self.attempts.append(span)

    def steps_of(self, run: Any) -> list[Any]:
        return _children(self.steps, run)

    def attempts_of(self, step: Any) -> list[Any]:
        return _children(self.attempts, step)

    def is_whole(self, runs: int, metrics: Set[str]) -> bool:
        return len(self.runs) >= runs and not self._missing and self.metrics >= metrics


def _children(spans: list[Any], parent: Any) -> list[Any]:
    """Return those of a parent in the order of their start."""
    found = [span for span in spans if span.parent_span_id == parent.span_id]
    return sorted(found, key=lambda span: span.start_time_unix_nano)


def said(span: Any, name: str) -> Any:
    """Return an attribute of a received span (without our prefix), None where it has none."""
    for pair in span.attributes:
        if pair.key in (name, f"agent_hedge.{name}"):
            return getattr(pair.value, pair.value.WhichOneof("value"))
    return None


async def tapped(work: Callable[[str], Awaitable[object]], *, runs: int, metrics: Set[str]) -> Received:
    """Do `work(url of the receiver)`, which sends everything, and return it when it has arrived whole.

    Raises:
        TimeoutError: something did not arrive.
    """
    port, received, whole = free_port(), Received(), asyncio.Event()

    async def listen(stream: AsyncIterator[Any], keep: Callable[[Any], object]) -> None:
        async for one in stream:
            keep(one)
            if received.is_whole(runs, metrics):
                whole.set()

    async with OtelTapHttpProtobufReceiver(OtelTapHttpProtobufReceiverSettings(http_port=port)) as tap:
        listening = [
            asyncio.create_task(listen(tap.stream_traces(), received.keep_span)),
            asyncio.create_task(listen(tap.stream_metrics(), lambda metric: received.metrics.add(metric.name))),
        ]
        await work(f"http://127.0.0.1:{port}")
        async with asyncio.timeout(LOST_S):
            await whole.wait()
    await asyncio.gather(*listening)  # the receiver is closed, and with it its streams
    return received
