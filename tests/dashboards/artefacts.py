"""The dashboard and the alert rules as data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "dashboards"
RULES = FOLDER / "alerts.yml"
DASHBOARD: dict[str, Any] = json.loads((FOLDER / "agent-hedge.json").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]
ALERTS: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"] for rule in group["rules"]
]


def filled(expression: str, *, window: str) -> str:
    """Return a panel's expression as Grafana would send it, for all nodes and with this rate interval."""
    return expression.replace("$__rate_interval", window).replace("$node", ".*")


QUERIES: dict[str, str] = {
    f"{panel['title']} {target['refId']}": target["expr"] for panel in PANELS for target in panel["targets"]
} | {alert["alert"]: alert["expr"] for alert in ALERTS}
