"""A hedger and the observers it makes for itself, over real loops and a real database."""

from __future__ import annotations

import asyncio
import gc
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from agent_hedge import Effect, Fixed, Hedger
from agent_hedge.core.stores import Switch
from agent_hedge.errors import ConfigurationError, EffectInDoubt
from agent_hedge.stores.sql import migrate


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AGENT_HEDGE_SPOOL", str(tmp_path / "spool"))
    url = f"sqlite:///{tmp_path / 'store.db'}"
    migrate.upgrade(url)
    return url


def rows(store: str, what: str) -> list[Any]:
    with sqlite3.connect(store.removeprefix("sqlite:///")) as database:
        return database.execute(what).fetchall()


async def straggle(calls: list[int]) -> str:
    calls.append(1)
    await asyncio.sleep(0.0 if len(calls) > 1 else 600.0)
    return "ok"


async def answer(calls: list[int]) -> str:
    await asyncio.sleep(0.02)
    return "ok"


async def two_steps(hedger: Hedger, work: Any = straggle) -> None:
    calls: list[int] = []
    call = hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])
    async with hedger, hedger.run(key="run-1", tenant="acme"):
        await call(calls)
        await call(calls)


def test_with_a_store_every_step_is_recorded(store: str, tmp_path: Path) -> None:
    asyncio.run(two_steps(Hedger(store, policy=Fixed(0.02))))
    found = rows(store, "select run_key, tenant, node, outcome, decision, winner from steps order by started_at")
    assert found == [
        ("run-1", "acme", "work", "answered", "hedged", "b"),
        ("run-1", "acme", "work", "answered", "not_due", "b"),
    ]
    assert rows(store, "select outcome from attempts order by started_at") == [("superseded",), ("won",), ("won",)]
    assert list((tmp_path / "spool").rglob("*.jsonl")) == []


@pytest.mark.parametrize(("accounting", "count"), [("all", 2), ("hedged", 1), ("off", 0)])
def test_accounting_says_which_steps(store: str, accounting: Any, count: int) -> None:
    asyncio.run(two_steps(Hedger(store, policy=Fixed(0.02), accounting=accounting)))
    assert rows(store, "select count(*) from steps") == [(count,)]


def test_without_a_store_nothing_is_recorded_unless_asked() -> None:
    assert Hedger()._observing.books is None
    assert Hedger(accounting="all")._observing.books is not None


def test_r20_an_unknown_accounting_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="accounting"):
        Hedger(accounting="some")  # type: ignore[arg-type]


def test_a_store_that_is_gone_never_stops_a_call_and_nothing_is_lost(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Path(store.removeprefix("sqlite:///"))
    kept = database.read_bytes()
    database.write_bytes(b"not a database" * 1000)
    with monkeypatch.context() as impatient:
        impatient.setattr("agent_hedge.engine.runbook.PATIENCE_S", 0.0)  # it never answers, and nothing is hedged
        asyncio.run(two_steps(Hedger(store, policy=Fixed(0.02)), answer))
    (left,) = (tmp_path / "spool").rglob("*.jsonl")
    lines = [json.loads(line) for line in left.read_text().splitlines()]
    assert len({row["attempt_id"] for line in lines for table, row in line if table == "attempts"}) == 2
    for path in database.parent.glob("store.db*"):
        path.unlink()
    database.write_bytes(kept)
    asyncio.run(two_steps(Hedger(store, policy=Fixed(0.02))))
    assert rows(store, "select count(*) from steps where outcome = 'answered'") == [(4,)]


class Ear:
    """Hears only while it is not idle."""

    def __init__(self, idle: bool) -> None:
        self.idle = idle
        self.events: list[Any] = []

    def on_event(self, event: Any) -> None:
        self.events.append(event)


@pytest.mark.parametrize("idle", [True, False])
def test_r19_while_every_observer_is_idle_no_event_is_made(idle: bool) -> None:
    ear = Ear(idle)
    asyncio.run(two_steps(Hedger(observers=[ear], policy=Fixed(0.02))))
    assert bool(ear.events) != idle


def test_r19_without_an_sdk_telemetry_is_idle_and_wakes_up_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_hedge.observers import otel

    from .spans import Backend

    telemetry = Hedger()._observing.telemetry
    assert telemetry is not None
    assert telemetry.idle
    backend = Backend()
    monkeypatch.setattr(otel, "get_tracer_provider", lambda: backend.provider)
    assert telemetry.idle, "it has just looked"
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    assert not telemetry.idle


def test_r19_an_sdk_that_is_set_up_after_the_hedger_sees_its_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    from agent_hedge.observers import otel

    from .spans import Backend

    hedger, backend = Hedger(policy=Fixed(0.02)), Backend()
    monkeypatch.setattr(otel, "get_tracer_provider", lambda: backend.provider)
    asyncio.run(two_steps(hedger))
    assert len(backend.named("agent_hedge.step")) == 2


@pytest.fixture
def reader(monkeypatch: pytest.MonkeyPatch) -> InMemoryMetricReader:
    """The application's SDK."""
    from agent_hedge.observers import otel

    reader = InMemoryMetricReader()
    meters = MeterProvider([reader])
    monkeypatch.setattr(otel, "get_meter_provider", lambda: meters)
    return reader


def exported(reader: InMemoryMetricReader) -> dict[str, list[Any]]:
    data = json.loads(reader.get_metrics_data().to_json())  # type: ignore[union-attr]
    metrics = data["resource_metrics"][0]["scope_metrics"][0]["metrics"]
    return {metric["name"]: metric["data"]["data_points"] for metric in metrics}


def test_hedgers_of_one_process_are_shown_together(
    reader: InMemoryMetricReader, caplog: pytest.LogCaptureFixture
) -> None:
    """An SDK takes each name once: of a second gauge of the same name it never asks the callback."""
    hedgers = [Hedger(policy=Fixed(9.0)), Hedger(policy=Fixed(9.0), mode="off")]
    for hedger in hedgers:
        asyncio.run(hedger.wrap(asyncio.sleep, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])(0.0))
    points = exported(reader)
    assert [point["value"] for point in points["agent_hedge.steps.started"]] == [2]
    assert [point["value"] for point in points["agent_hedge.fleet.requests"]] == [2]
    assert {point["attributes"]["mode"] for point in points["agent_hedge.mode"]} == {"on", "off"}
    assert [point["attributes"]["target"] for point in points["agent_hedge.learning"]] == ["a", "b"]
    assert [point["attributes"]["view"] for point in points["agent_hedge.ttft.p99"]] == ["seen", "primary_alone"]
    assert caplog.records == []
    del hedger, hedgers[1]
    gc.collect()
    assert {point["attributes"]["mode"] for point in exported(reader)["agent_hedge.mode"]} == {"on"}, "it is gone"


def test_gauges_show_the_hedgers_state(store: str, reader: InMemoryMetricReader) -> None:
    hedger = Hedger(store, policy=Fixed(0.0), mode="shadow")
    asyncio.run(two_steps(hedger, answer))
    points = {name: found[0] for name, found in exported(reader).items()}
    assert points["agent_hedge.mode"]["attributes"]["mode"] == "shadow"
    assert points["agent_hedge.fleet.requests"]["value"] == 2
    assert points["agent_hedge.learning"]["attributes"]["node"] == "work"
    assert points["agent_hedge.records.dropped"]["value"] == 0
    assert points["agent_hedge.refusals"]["attributes"]["reason"] == "shadow"


def test_a_gauge_counts_what_ended_in_doubt() -> None:
    async def main() -> None:
        async with Hedger() as hedger:

            async def pay(order: str) -> str:
                raise ConnectionError

            for _ in range(2):  # it breaks; and then nobody knows
                with pytest.raises((ConnectionError, EffectInDoubt)):
                    await hedger.once(pay, key="order", scope="global")("17")
            assert ("agent_hedge.effects.in_doubt", 2.0, {}) in list(hedger._observing.readings())

    asyncio.run(main())


def test_the_mode_has_few_labels_whatever_a_switch_says() -> None:
    hedger = Hedger()
    hedger.modes.set_switches([Switch(scope_kind="fleet", scope="*", mode="off", reason="ticket 4711")])
    assert ("agent_hedge.mode", 1.0, {"mode": "off", "by": "switch"}) in list(hedger._observing.readings())


def test_r19_without_the_api_there_is_no_telemetry(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "agent_hedge.observers.otel", None)
    assert Hedger()._observing.telemetry is None
