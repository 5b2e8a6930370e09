"""Build 5 by a real Prometheus: all queries over two hours of our exporter's output, promtool on the alert rules.

Mark ``prometheus``, off by default (README.md). The two hours are simulated and loaded as blocks, so nothing waits.
"""

from __future__ import annotations

import json
import math
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from prometheus_client import start_http_server

from agent_hedge.testing.postgres import free_port
from tests.servers import serving

from .artefacts import ALERTS, QUERIES, RULES, filled
from .exporter import MINUTES, Exporter

pytestmark = pytest.mark.prometheus

SCRAPED_S = 60.0
WINDOW = "1h"
NAMES = [alert["alert"] for alert in ALERTS]


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server over the exporter's two hours, and what really happened in the last one."""

    url: str
    end: float
    happened: Counter[Any]
    exporter: Exporter

    def query(self, expression: str, at: float | None = None) -> list[tuple[dict[str, str], float]]:
        """Return labels and value of every series at an instant, by default the end of the two hours."""
        asked = urlencode({"query": expression, "time": self.end if at is None else at})
        with urlopen(f"{self.url}/api/v1/query?{asked}", timeout=30) as answer:
            found = json.load(answer)["data"]["result"]
        return [(one["metric"], float(one["value"][1])) for one in found]

    def shown(self, name: str) -> list[tuple[dict[str, str], float]]:
        """Return what a panel or an alert shows."""
        return self.query(filled(QUERIES[name], window=WINDOW))


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    folder = tmp_path_factory.mktemp("prometheus")
    exporter, end = Exporter(), time.time() // 60 * 60 - 600
    before: Counter[Any] = Counter()
    with (folder / "samples").open("w") as file:
        for minute in range(MINUTES + 1):
            if minute == MINUTES - 60:
                before = exporter.log.counts.copy()
            _write(exporter, end - 60 * (MINUTES - minute), file)
            if minute < MINUTES:
                exporter.minute(60.0 * minute)
        file.write("# EOF\n")
    promtool("tsdb", "create-blocks-from", "openmetrics", str(folder / "samples"), str(folder / "data"))
    exposed, thread = start_http_server(0, "127.0.0.1", exporter.registry)
    try:
        with _server(folder, exposed.server_port) as url:
            yield Prometheus(url, end, exporter.log.counts - before, exporter)
    finally:
        exposed.shutdown()
        exposed.server_close()
        thread.join()


def _write(exporter: Exporter, at: float, file: TextIO) -> None:
    """Write a scrape as OpenMetrics with its instant."""
    for family in exporter.families():
        for sample in family.samples:
            labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
            file.write(f"{sample.name}{{{labels}}} {sample.value} {at:.0f}\n")


@contextmanager
def _server(folder: Path, exposed: int) -> Iterator[str]:
    """Run Prometheus over the blocks in `folder`; it scrapes the exporter too."""
    port = free_port()
    targets = {"job_name": "agent", "static_configs": [{"targets": [f"127.0.0.1:{exposed}"]}]}
    config = {"global": {"scrape_interval": "1s"}, "rule_files": [str(RULES)], "scrape_configs": [targets]}
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    command = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with serving(command, ready=f"http://127.0.0.1:{port}/-/ready", folder=folder):
        yield f"http://127.0.0.1:{port}"


def promtool(*arguments: str) -> None:
    done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", [name for name in QUERIES if name not in NAMES])
def test_a_panel_has_data(name: str, prometheus: Prometheus) -> None:
    shown = prometheus.shown(name)
    assert shown
    assert not any(math.isnan(value) for _, value in shown)


def test_the_panels_agree_with_the_event_log(prometheus: Prometheus) -> None:
    """The five figures, from the counts of the last hour's events."""
    happened = prometheus.happened
    hedges, steps = happened["dispatched", "hedge"], happened["steps"]
    refused = happened["refused", "fleet_budget"]
    assert hedges > 30
    expected = {
        "Dispatch rate A": hedges / steps,
        "Win rate, with the trigger rate A": happened["hedge", "won"] / hedges,
        "Win rate, with the trigger rate B": (hedges + refused) / steps,
    }
    for name, value in expected.items():
        ((_, shown),) = prometheus.shown(name)
        assert shown == pytest.approx(value, rel=0.03), name
    wasted = prometheus.query('sum(increase(agent_hedge_tokens_wasted_total{kind="completion",basis="computed"}[1h]))')
    assert wasted[0][1] == pytest.approx(happened["wasted"], rel=0.03)
    released = prometheus.query("sum(increase(agent_hedge_cancel_release_duration_seconds_count[1h]))")
    assert released[0][1] == pytest.approx(happened["released"], rel=0.03)
    views = {labels["view"]: value for labels, value in prometheus.shown(P99) if labels["node"] == "plan"}
    assert (views["seen"], views["primary_alone"]) == prometheus.exporter.log.metrics.p99("plan", "m")


P99 = "First token, p99: seen, and by primaries alone A"


def test_alerts_can_be_evaluated_and_a_node_misses_its_deadline(prometheus: Prometheus) -> None:
    firing = {name: [labels.get("node") for labels, _ in prometheus.shown(name)] for name in NAMES}
    assert firing["AgentHedgeDeadlineMisses"] == ["write"]
    assert firing["AgentHedgeSlowRelease"] == firing["AgentHedgeStoreLost"] == firing["AgentHedgeNotOn"] == []


def test_it_scrapes_the_exporter_itself(prometheus: Prometheus) -> None:
    until = time.monotonic() + SCRAPED_S
    while not (found := prometheus.query("sum(agent_hedge_steps_started_total)", at=time.time())):
        assert time.monotonic() < until
        time.sleep(0.2)  # its next scrape
    assert found[0][1] == prometheus.exporter.log.counts["steps"]
    with urlopen(f"{prometheus.url}/api/v1/rules", timeout=30) as answer:
        groups = json.load(answer)["data"]["groups"]
    assert [rule["name"] for group in groups for rule in group["rules"]] == NAMES


def test_alerts_fire_where_they_should() -> None:
    promtool("check", "rules", str(RULES))
    promtool("test", "rules", str(Path(__file__).parent / "alerts_test.yml"))
