"""G2: a run arrives whole at an OTLP receiver, over HTTP: parents, kinds, links, events, metrics."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from agent_hedge import Effect, Fixed, Hedger
from agent_hedge.latency import Sketch
from agent_hedge.observers.otel import OpenTelemetry

exporters = pytest.importorskip("opentelemetry.exporter.otlp.proto.http")


class Receiver(ThreadingHTTPServer):
    """Keeps what is posted to it, as OTLP messages."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.posted: list[tuple[str, bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def spans(self) -> list[Any]:
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        found = [ExportTraceServiceRequest.FromString(body) for path, body in self.posted if path == "/v1/traces"]
        return [
            span
            for request in found
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def metrics(self) -> set[str]:
        from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

        found = [ExportMetricsServiceRequest.FromString(body) for path, body in self.posted if path == "/v1/metrics"]
        return {
            metric.name
            for request in found
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


class _Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.posted.append((self.path, body))
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def receiver() -> Iterator[Receiver]:
    with Receiver() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_run_arrives_whole() -> None:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.proto.trace.v1.trace_pb2 import Span
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    calls = 0

    async def work() -> str:
        nonlocal calls
        calls += 1
        await asyncio.sleep(5.0 if calls == 1 else 0.0)
        return "ok"

    with receiver() as server:
        tracers = TracerProvider()
        tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{server.url}/v1/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{server.url}/v1/metrics"))
        meters = MeterProvider([reader])
        otel = OpenTelemetry(Sketch, tracer_provider=tracers, meter_provider=meters)

        async def main() -> None:
            async with Hedger(observers=[otel], policy=Fixed(0.02), telemetry=False) as hedger:
                call = hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])
                async with hedger.run(key="run-1"):
                    await call()
                    await call()

        asyncio.run(main())
        tracers.shutdown()
        meters.shutdown()
        spans, metrics = server.spans(), server.metrics()

    by_id = {span.span_id: span for span in spans}
    named = [(span.name, by_id[span.parent_span_id].name if span.parent_span_id else "") for span in spans]
    step, attempt = "agent_hedge.step work", "agent_hedge.attempt work"
    assert sorted(named) == sorted(
        [("agent_hedge.run", ""), (step, "agent_hedge.run"), (step, "agent_hedge.run")] + [(attempt, step)] * 3
    )
    assert len({span.trace_id for span in spans}) == 1
    (hedge,) = (span for span in spans if span.links)
    assert by_id[hedge.links[0].span_id].parent_span_id == hedge.parent_span_id, "its primary, of the same step"
    assert hedge.kind == Span.SPAN_KIND_CLIENT
    assert all(span.end_time_unix_nano >= span.start_time_unix_nano for span in spans)
    assert {"agent_hedge.steps.started", "agent_hedge.dispatches", "agent_hedge.step.ttft"} <= metrics
