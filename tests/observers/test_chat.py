"""Chat models over the wire: tokens against the engine's own count (G5), trace headers, and the canary (G7)."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import UsageMetadataCallbackHandler
from langchain_openai import ChatOpenAI
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from pydantic import SecretStr
from typer.testing import CliRunner

from agent_hedge import Effect, Fixed, FleetBudget, Hedger, Target
from agent_hedge.cli.__main__ import app
from agent_hedge.core.events import Event, FirstToken
from agent_hedge.engine.loops import Loops
from agent_hedge.latency import Sketch
from agent_hedge.observers.accounting import Accounting
from agent_hedge.observers.logging import Logging
from agent_hedge.observers.otel import OpenTelemetry
from agent_hedge.observers.recorder import Recorder
from agent_hedge.stores.memory import MemorySteps
from agent_hedge.testing.engine import FakeEngine, Hardware
from tests.conftest import HUNG_S

from .kit import IdlePortal
from .spans import Backend, events, said

CANARY = "canary-4d1f"
HARDWARE = Hardware(speedup=20.0)
PLENTY = FleetBudget(1.0, floor=10_000, burst=10_000)


def member(engine: FakeEngine, **settings: Any) -> ChatOpenAI:
    return ChatOpenAI(model="gpt-4o-mini", base_url=engine.base_url, api_key=SecretStr(f"sk-{CANARY}"), **settings)


@pytest.fixture
def engines() -> Iterator[tuple[FakeEngine, FakeEngine]]:
    with (
        FakeEngine.in_thread("lognormal:0.6,0.8", hardware=HARDWARE, seed=1) as one,
        FakeEngine.in_thread("lognormal:0.6,0.8", hardware=HARDWARE, seed=2) as two,
    ):
        yield one, two


def hedged(hedger: Hedger, engines: tuple[FakeEngine, FakeEngine]) -> Any:
    return hedger.chat_model(*(Target(f"replica-{n}", member(engine)) for n, engine in enumerate(engines)))


first_token: ContextVar[asyncio.Event] = ContextVar("first_token")


class Ear:
    """Tells a call that one of its attempts has its first token."""

    def on_event(self, event: Event) -> None:
        if isinstance(event, FirstToken):
            first_token.get().set()


def by_id(rows: list[Any], engines: tuple[FakeEngine, FakeEngine]) -> Iterator[tuple[Any, Any]]:
    """Pair each attempt's row with what the engine says it did for it."""
    records = {record.id: record for engine in engines for record in engine.records}
    for row in rows:
        yield row, records.get(row["attempt_id"])


def test_r18_tokens_agree_with_what_the_engines_computed(engines: tuple[FakeEngine, FakeEngine]) -> None:
    store = MemorySteps()
    accounting = Accounting(Recorder(lambda: store, IdlePortal()))
    rng = random.Random(3)

    async def one(model: Any, leaves: str) -> None:
        """Ask, and leave after some time, with the first token, or not at all: on a slow machine some still answer."""
        token = asyncio.Event()
        first_token.set(token)
        task = asyncio.ensure_future(model.ainvoke("hello " * 20))
        if leaves == "soon":
            await asyncio.wait([task], timeout=rng.uniform(0.01, 0.3))
        elif leaves == "in the middle":
            await asyncio.wait([task, asyncio.ensure_future(token.wait())], return_when=asyncio.FIRST_COMPLETED)
        if leaves != "never":
            task.cancel()
        await asyncio.wait([task])
        token.set()

    async def main() -> list[Any]:
        observers: list[Any] = [accounting, Ear()]
        async with Hedger(observers=observers, policy=Fixed(0.03, attempts=2), budget=PLENTY) as hedger:
            model = hedged(hedger, engines)
            for _ in range(50):
                sorts = ["soon"] * 6 + ["in the middle"] * 2 + ["never"] * 2
                await asyncio.gather(*(one(model, leaves) for leaves in sorts))
        for engine in engines:
            await engine.wait_idle()
        await accounting.flush()
        return list(await store.attempts_of(""))

    rows = asyncio.run(main())
    told: dict[str, int] = {}
    computed: dict[str, int] = {}
    for row, record in by_id(rows, engines):
        if record is None:  # cancelled before it was sent
            assert row["computed_certainty"] == "unknown"
            continue
        certainty = row["computed_certainty"]
        told[certainty] = told.get(certainty, 0) + (row["tokens_computed"] or 0)
        computed[certainty] = computed.get(certainty, 0) + record.completion_computed
        if certainty == "exact":
            assert row["tokens_computed"] == row["tokens_billed"] == record.completion_computed
            assert row["tokens_input"] == record.prompt_tokens
        elif certainty == "at_least":
            assert 0 < row["tokens_computed"] <= record.completion_computed
            assert row["engine_request_id"] == f"chatcmpl-{record.id}", "of a loser too"
        else:
            assert row["tokens_computed"] is None
    assert told["exact"] == computed["exact"] > 0
    assert 0 < told["at_least"] <= computed["at_least"]
    assert len([row for row in rows if row["outcome"] in ("cancelled", "superseded")]) >= 100
    assert {row["outcome"] for row in rows} <= {"won", "superseded", "cancelled"}


def test_usage_is_counted_once_for_langchain(engines: tuple[FakeEngine, FakeEngine]) -> None:
    async def main() -> tuple[Any, Any, Any]:
        streamed, whole = UsageMetadataCallbackHandler(), UsageMetadataCallbackHandler()
        async with Hedger(policy=Fixed(0.0, attempts=2), budget=PLENTY, accounting="all") as hedger:
            model = hedged(hedger, engines)
            answer = await model.ainvoke("hello", config={"callbacks": [whole]})
            async for _ in model.astream("hello", config={"callbacks": [streamed]}):
                pass
        return answer.usage_metadata, whole.usage_metadata, streamed.usage_metadata

    said_, whole, streamed = asyncio.run(main())
    for counted in (whole, streamed):
        (usage,) = counted.values()
        assert usage["total_tokens"] == said_["total_tokens"]


def test_each_attempt_carries_its_own_trace_header(engines: tuple[FakeEngine, FakeEngine], backend: Backend) -> None:
    async def main(headers: bool) -> None:
        async with Hedger(policy=Fixed(0.0, attempts=2), budget=PLENTY, headers=headers) as hedger:
            model = hedged(hedger, engines)
            await model.ainvoke("hello")
            assert [chunk async for chunk in model.astream("hello")]

    asyncio.run(main(headers=True))
    sent = [received.request.headers.get("traceparent", "") for engine in engines for received in engine.requests]
    spans = {f"00-{s.context.trace_id:032x}-{s.context.span_id:016x}" for s in backend.named("chat gpt-4o-mini")}
    assert len(sent) >= 2
    assert {header[:-3] for header in sent} <= spans, "each names the span of its own attempt"
    assert len(set(sent)) == len(sent)
    before = len(sent)
    asyncio.run(main(headers=False))
    later = [received.request.headers for engine in engines for received in engine.requests]
    assert len(later) > before
    assert sum("traceparent" in headers for headers in later) == before


def test_a_chat_models_span_says_where_it_went(engines: tuple[FakeEngine, FakeEngine], backend: Backend) -> None:
    async def main() -> None:
        async with Hedger(policy=Fixed(9.0)) as hedger:
            await hedged(hedger, engines).ainvoke("hello")

    asyncio.run(main())
    (attempt,) = backend.named("chat")
    port = int(engines[0].url.rpartition(":")[2])
    assert said(attempt, "gen_ai.provider.name", "gen_ai.request.model", "server.address", "server.port") == (
        "openai",
        "gpt-4o-mini",
        "127.0.0.1",
        port,
    )
    assert said(attempt, "usage.certainty") == ("exact",)
    assert said(attempt, "gen_ai.usage.output_tokens")[0] > 0


@pytest.mark.parametrize("call", ["whole", "streamed", "collected"])
def test_a_chat_models_span_says_which_answer_it_was(
    call: str, engines: tuple[FakeEngine, FakeEngine], backend: Backend
) -> None:
    """LangChain says so in its public methods only, and of a stream drops the id."""

    async def main() -> None:
        async with Hedger(policy=Fixed(9.0)) as hedger:
            more = {"n": 2} if call == "whole" else {}
            members = (Target(f"replica-{n}", member(engine, **more)) for n, engine in enumerate(engines))
            model = hedger.chat_model(*members)
            if call == "streamed":
                assert [chunk async for chunk in model.astream("hello")]
            else:
                await model.ainvoke("hello")

    asyncio.run(main())
    (attempt,) = backend.named("chat")
    assert said(attempt, *(f"gen_ai.response.{name}" for name in ("id", "model", "finish_reasons"))) == (
        f"chatcmpl-{engines[0].records[0].id}",
        "gpt-4o-mini",
        ("stop",),
    )


def test_a_chat_models_span_says_when_its_request_was_where(
    engines: tuple[FakeEngine, FakeEngine], backend: Backend
) -> None:
    async def main() -> None:
        async with Hedger(policy=Fixed(9.0)) as hedger:
            model = hedged(hedger, engines)
            await model.ainvoke("hello")
            assert [chunk async for chunk in model.astream("hello " * 50)]

    asyncio.run(main())
    first, second = backend.named("chat")
    connect, *rest = said(first, *PHASES)
    assert 0 < connect < rest[0] <= rest[1] < connect + sum(rest[1:3]), "connected, then headers, then a token"
    assert said(second, "time.connect") == (None,), "the connection was there"
    assert all(seconds is not None for seconds in said(second, *PHASES[1:]))
    assert said(first, "receipt.phase") == ("decode",)


PHASES = ("time.connect", "time.headers", "time.first_token", "time.decode")


def test_r18_a_release_is_measured_where_the_engine_is_asked(
    engines: tuple[FakeEngine, FakeEngine], backend: Backend
) -> None:
    reader = InMemoryMetricReader()
    otel = OpenTelemetry(Sketch, tracer_provider=backend.provider, meter_provider=MeterProvider([reader]))

    async def main() -> None:
        async with Hedger(policy=Fixed(0.0, attempts=2), budget=PLENTY, observers=[otel], telemetry=False) as hedger:
            hedger._loops = Loops(grace=HUNG_S)
            targets = [Target(f"replica-{n}", member(engine), cancel=engine) for n, engine in enumerate(engines)]
            await hedger.chat_model(*targets).ainvoke("hello")

    asyncio.run(main())
    (loser,) = (span for span in backend.named("chat") if said(span, "outcome") == ("superseded",))
    attempt_id, took = said(loser, "attempt.id", "time.cancel_to_release")
    (record,) = (record for engine in engines for record in engine.records if record.id == attempt_id)
    assert record.released is not None
    assert events(loser) == ["cancel_sent", "released"]
    assert took > 0
    data: Any = reader.get_metrics_data()
    metrics = {metric.name: metric.data for metric in data.resource_metrics[0].scope_metrics[0].metrics}
    (point,) = metrics["agent_hedge.cancel.release.duration"].data_points
    assert (point.count, point.sum) == (1, pytest.approx(took))


@pytest.mark.parametrize("captured", [False, True])
def test_r18_the_canary_is_seen_nowhere_but_on_spans_that_show_content(
    captured: bool,
    engines: tuple[FakeEngine, FakeEngine],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from agent_hedge.stores.sql import migrate

    monkeypatch.setenv("AGENT_HEDGE_SPOOL", str(tmp_path / "spool"))
    caplog.set_level(logging.DEBUG, logger="agent_hedge")
    url = f"sqlite:///{tmp_path / 'store.db'}"
    migrate.upgrade(url)
    backend, reader = Backend(), InMemoryMetricReader()
    otel = OpenTelemetry(
        Sketch, tracer_provider=backend.provider, meter_provider=MeterProvider([reader]), content=captured
    )
    spooled: list[bytes] = []

    async def broken(secret: str) -> str:
        raise ConnectionError(secret)

    async def pay(account: str) -> str:
        return "paid"  # a result is content, and kept unless results=False

    def by_password(engine: FakeEngine) -> ChatOpenAI:
        url = engine.base_url.replace("://", f"://user:{CANARY}@")
        return ChatOpenAI(model="gpt-4o-mini", base_url=url, api_key=SecretStr(f"sk-{CANARY}"))

    async def main() -> None:
        hedger = Hedger(
            url,
            policy=Fixed(0.0, attempts=2),
            budget=PLENTY,
            observers=[otel, Logging()],
            capture_content=captured,
        )
        async with hedger, hedger.run(key="run-1"):
            model = hedger.chat_model(*(Target(f"replica-{n}", by_password(one)) for n, one in enumerate(engines)))
            await model.ainvoke([("system", CANARY), ("user", CANARY)], stop=[CANARY])
            [chunk async for chunk in model.astream(CANARY, user=CANARY)]
            failing = hedger.wrap(broken, key="broken", effect=Effect.READ_ONLY, targets=["a", "b"])
            with pytest.raises(ConnectionError):
                await failing(CANARY)
            await hedger.once(pay, key="account", scope="run")(CANARY)
            spooled.extend(path.read_bytes() for path in (tmp_path / "spool").rglob("*.jsonl"))

    asyncio.run(main())
    page, commands = tmp_path / "report.html", CliRunner()
    asked = (["report"], ["report", "--json"], ["report", "--html", str(page)], ["runs", "explain", "run-1"])
    printed = [commands.invoke(app, [*command, "--store", url], catch_exceptions=False).output for command in asked]
    data: Any = reader.get_metrics_data()
    seen = {
        "spans": "".join(span.to_json() for span in backend.spans).encode(),
        "metrics": data.to_json().encode(),
        "OTLP": encode_spans(backend.spans).SerializeToString() + encode_metrics(data).SerializeToString(),
        "commands": "".join(printed).encode(),
        "HTML": page.read_bytes(),
        "logs": "\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records).encode(),
        "spool": b"".join(spooled),
        "tables": b"".join(path.read_bytes() for path in tmp_path.glob("store.db*")),
    }
    for where, written in seen.items():
        assert len(written) > 200, f"nothing was written to {where}: the test would see nothing"
        assert (CANARY.encode() in written) == (captured and where in ("spans", "OTLP")), where
