"""The pages say what is: every metric with its unit, every snippet runs, every event and reason has its word."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from agent_hedge.latency import Sketch
from agent_hedge.observers.otel import Metrics, names

DOCS = Path(__file__).parents[2] / "docs"
TELEMETRY = (DOCS / "telemetry.md").read_text(encoding="utf-8")
SNIPPET = re.compile(r"```python\n(.*?)```", re.DOTALL)


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
    for event in ("TRIGGER_ARMED", "TRIGGER_LATE", "HEDGE_DUE", "REFUSED", "COMMIT", "CANCEL_SENT", "RELEASED"):
        assert getattr(names, event).removeprefix("agent_hedge") in TELEMETRY


@pytest.mark.parametrize("page", [DOCS / "index.md", DOCS / "telemetry.md"], ids=lambda page: page.name)
def test_every_snippet_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from opentelemetry import metrics, trace

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AGENT_HEDGE_SPOOL", str(tmp_path))
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: None)
    monkeypatch.setattr(metrics, "set_meter_provider", lambda provider: None)
    scope: dict[str, Any] = {}
    for snippet in SNIPPET.findall(page.read_text(encoding="utf-8")):
        exec(compile(snippet, page.name, "exec"), scope)
