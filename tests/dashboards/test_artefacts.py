"""Build 5 without a Prometheus: dashboard and alerts read what our exporter emits, and every alert has its page."""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest

from agent_hedge.core.events import Reason
from agent_hedge.core.step import Certainty, Role, Verdict
from agent_hedge.gates.mode import Mode

from .artefacts import ALERTS, DASHBOARD, DOCS, FOLDER, PANELS, QUERIES, filled
from .exporter import Exporter
from .promql import WORDS, groupings, selectors

VALUES: dict[str, set[str]] = {
    "role": {*Role},
    "reason": {*Reason},
    "mode": {*Mode},
    "certainty": {*Certainty},
    "outcome": {*Verdict, "answered", "deadline", "late", "failed", "cancelled", "broken"},
    "view": {"seen", "primary_alone"},
    "node": {".*"},
}
SCRAPED = {"instance", "job"}
"""Labels that Prometheus itself adds."""


@pytest.fixture(scope="module")
def emitted() -> dict[str, set[str]]:
    exporter = Exporter()
    for minute in range(5):
        exporter.minute(60.0 * minute)
    return exporter.emitted()


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_reads_what_the_exporter_emits(name: str, emitted: dict[str, set[str]]) -> None:
    query = filled(QUERIES[name], window="5m")
    read = selectors(query)
    assert read
    labels: set[str] = set()
    for metric, matchers in read:
        assert metric in emitted, f"{metric} is not emitted"
        assert matchers.keys() <= emitted[metric]
        for label, pattern in matchers.items():
            assert {value for value in pattern.split("|") if value != ".*"} <= VALUES[label], f"{label}={pattern}"
        labels |= emitted[metric]
    assert groupings(query) <= labels | SCRAPED


def test_the_reader_of_queries_lets_nothing_slip_through() -> None:
    query = 'sum by (le, engine) (rate(vllm:prompt_tokens_total{model="m",x=~"a|b"}[5m])) / 2 and foo or 0 * bar{}'
    assert selectors(query) == [("vllm:prompt_tokens_total", {"model": "m", "x": "a|b"}), ("foo", {}), ("bar", {})]
    assert groupings(query) == {"le", "engine"}
    assert "irate" not in WORDS, "an unknown function is taken for a metric that nobody emits"


WANTED: dict[str, set[str]] = {
    "Dispatch rate": {"agent_hedge_dispatches_total", "agent_hedge_steps_started_total"},
    "Win rate, with the trigger rate": {"agent_hedge_attempts_total", "agent_hedge_refusals_total"},
    "First token, p99: seen, and by primaries alone": {"agent_hedge_ttft_p99_seconds"},
    "Wasted tokens": {"agent_hedge_tokens_wasted_total", "agent_hedge_attempts_uncounted_total"},
    "Cancel to release": {"agent_hedge_cancel_release_duration_seconds_bucket"},
    "Refusals by reason": {"agent_hedge_refusals_total"},
    "Budget left": {"agent_hedge_budget_left"},
    "Deadline misses": {"agent_hedge_steps_total"},
    "Hedges left at the end of a run": {"agent_hedge_run_hedges_left_bucket"},
    "Side effects in doubt": {"agent_hedge_effects_in_doubt"},
}


@pytest.mark.parametrize("title", WANTED)
def test_there_is_a_panel_for_each_of_the_figures(title: str) -> None:
    (panel,) = (panel for panel in PANELS if panel["title"] == title)
    assert {one.name for target in panel["targets"] for one in selectors(target["expr"])} >= WANTED[title]


def test_waste_comes_from_no_engine() -> None:
    """R18: an engine counts a prompt at its first output, so what was cancelled before it would look free."""
    wasted = [query for name, query in QUERIES.items() if name.startswith("Wasted tokens")]
    assert {one.name for query in wasted for one in selectors(query)} == WANTED["Wasted tokens"]


def test_the_dashboard_is_well_formed() -> None:
    every: list[dict[str, Any]] = DASHBOARD["panels"]
    assert len({panel["id"] for panel in every}) == len(every)
    for one, other in combinations((panel["gridPos"] for panel in every), 2):
        apart = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        assert apart or one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"], (one, other)
    for panel in PANELS:
        assert panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24
        assert panel["description"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [target["refId"] for target in panel["targets"]] == list("ABCDEF"[: len(panel["targets"])])
        assert {target["datasource"]["uid"] for target in (panel, *panel["targets"])} == {"${datasource}"}
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    used = {name for query in QUERIES.values() for name in re.findall(r"\$(\w+)", query)}
    assert used <= {*variables, "__rate_interval"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_an_alert_has_its_page(alert: dict[str, Any]) -> None:
    assert alert["labels"]["severity"] in {"page", "ticket", "info"}
    assert alert["annotations"].keys() == {"summary", "description", "runbook"}
    page = (DOCS / alert["annotations"]["runbook"]).read_text(encoding="utf-8")
    assert page.startswith(f"# {alert['alert']}\n")
    assert "**Look**" in page
    assert "**Do**" in page
    assert f"[{alert['alert']}]({page_of(alert)})" in (FOLDER / "index.md").read_text(encoding="utf-8")


def page_of(alert: dict[str, Any]) -> str:
    return str(alert["annotations"]["runbook"]).removeprefix("dashboards/")


def test_a_page_has_its_alert() -> None:
    assert {f"runbooks/{page.name}" for page in (FOLDER / "runbooks").iterdir()} == {page_of(one) for one in ALERTS}
