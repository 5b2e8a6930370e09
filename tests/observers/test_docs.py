"""The page of telemetry says what is: every metric with its unit, every event has its word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from agent_hedge.latency import Sketch
from agent_hedge.observers.otel import Metrics, names

DOCS = Path(__file__).parents[2] / "docs"
TELEMETRY = (DOCS / "telemetry.md").read_text(encoding="utf-8")


class Named:
    """A meter that remembers what is made."""

    def __init__(self) -> None:
        self.made: dict[str, tuple[str, str]] = {}

    def get_meter(self, *_: Any, **__: Any) -> Named:
        return self

    def create_counter(self, name: str, unit: str, description: str) -> None:
        self.made[name] = ("counter", unit)

    def create_histogram(self, name: str, unit: str, description: str, **_: Any) -> None:
        self.made[name] = ("histogram", unit)

    def create_observable_gauge(self, name: str, callbacks: Any, unit: str, description: str) -> None:
        self.made[name] = ("gauge", unit)


def test_the_table_of_metrics_is_complete_and_right() -> None:
    meter = Named()
    Metrics(Sketch, meter)  # type: ignore[arg-type]
    rows = re.findall(r"^\| `(agent_hedge\.[a-z0-9_.]+)` \| (\w+) \| ([^ ]+) \|", TELEMETRY, re.MULTILINE)
    assert {name: (kind, unit) for name, kind, unit in rows} == meter.made


def test_every_event_of_a_span_is_named() -> None:
    events = ("TRIGGER_ARMED", "TRIGGER_LATE", "HEDGE_DUE", "REFUSED", "COMMIT", "CANCEL_SENT", "RELEASED")
    for event in (*events, "FENCE", "CLAIM"):
        assert f"`{getattr(names, event).removeprefix('agent_hedge')}`" in TELEMETRY.replace("`agent_hedge.", "`.")


def test_the_table_of_times_is_complete() -> None:
    times = {name for name in vars(names).values() if str(name).startswith("agent_hedge.time.")}
    (table,) = re.findall(r"^\| `agent_hedge\.time\.` .*?\n\n", TELEMETRY, re.MULTILINE | re.DOTALL)
    assert {f"agent_hedge.time.{name}" for name in re.findall(r"^\| `([a-z_]+)` ", table, re.MULTILINE)} == times
