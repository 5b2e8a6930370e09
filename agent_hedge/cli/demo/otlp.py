"""``--otlp``: the clients' spans and metrics to an OTLP/HTTP endpoint, by the SDK, as any application would (R19)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from agent_hedge.errors import ConfigurationError

SERVICE = "agent-hedge-demo"
ANSWER_S = 3.0
"""An endpoint that is there answers an empty message in this time."""
BATCH_MS = 1000.0
"""A client makes some 250 spans a second; the processor's queue holds 2,048."""


def check(url: str) -> None:
    """Send an empty message, before anything is run for the one who waits for it.

    Raises:
        ConfigurationError: no URL of an OTLP/HTTP endpoint, or nothing there takes spans.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(f"--otlp is an OTLP/HTTP endpoint's URL, such as http://127.0.0.1:4318, not {url!r}")
    logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # it is said below, in one line
    exporter: SpanExporter = OTLPSpanExporter(_signal(url, "traces"), timeout=ANSWER_S)
    try:
        if exporter.export([]) is not SpanExportResult.SUCCESS:
            raise ConfigurationError(f"nothing at {url} takes spans by OTLP/HTTP")
    finally:
        exporter.shutdown()


@contextmanager
def exported(url: str, policy: str) -> Iterator[None]:
    """Send what this process does until the block is left, and all of it by then. `policy` names the instance."""
    resource = Resource.create({"service.name": SERVICE, "service.instance.id": policy})
    tracers = TracerProvider(resource=resource)
    tracers.add_span_processor(
        BatchSpanProcessor(OTLPSpanExporter(_signal(url, "traces")), schedule_delay_millis=BATCH_MS)
    )
    meters = MeterProvider([PeriodicExportingMetricReader(OTLPMetricExporter(_signal(url, "metrics")))], resource)
    trace.set_tracer_provider(tracers)
    metrics.set_meter_provider(meters)
    try:
        yield
    finally:
        tracers.shutdown()
        meters.shutdown()


def _signal(url: str, signal: str) -> str:
    return f"{url.rstrip('/')}/v1/{signal}"
