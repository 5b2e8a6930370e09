"""Where an attempt's request is: connecting, waiting for headers, in the engine's queue. Heard where somebody listens.

Only clients of our own are listened to (those of the private copies): a client that the user passed stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import Any

from agent_hedge.adapters.langchain.usage import Meter
from agent_hedge.core.scope import current_attempt

QUEUE_HEADER = "x-queue-time"
"""Milliseconds in the engine's queue, as Text Generation Inference says them; most engines say nothing."""
_CONNECTING = "connection.connect_tcp.started"
_CONNECTED = ("connection.connect_tcp.complete", "connection.start_tls.complete")


async def _sent(request: Any) -> None:
    """Before a request: have the pool say when it connects. One that is there already says nothing."""
    attempt = current_attempt()
    if attempt is None or not isinstance(meter := attempt.usage, Meter):
        return
    attempt.phase = "connect"
    began = 0.0

    async def heard(name: str, info: Mapping[str, Any]) -> None:
        nonlocal began
        if name == _CONNECTING:
            began = perf_counter()
        elif name in _CONNECTED:
            meter.connect = perf_counter() - began

    request.extensions["trace"] = heard


async def _answered(response: Any) -> None:
    """When the headers are there, and before the body."""
    attempt = current_attempt()
    if attempt is None or not isinstance(meter := attempt.usage, Meter):
        return
    attempt.phase = "headers"
    meter.headers = perf_counter() - meter.began
    if (said := response.headers.get(QUEUE_HEADER)) is not None:
        with suppress(ValueError):
            meter.queue = float(said) / 1000


HOOKS: dict[str, list[Callable[..., Any]]] = {"request": [_sent], "response": [_answered]}
"""``event_hooks`` of an HTTP client."""
