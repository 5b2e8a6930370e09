"""Plugins of the whole suite: `pytester`, and ours where it is not installed as an entry point."""

from __future__ import annotations

from importlib.metadata import entry_points

pytest_plugins = ["pytester"]

if "agent_hedge" not in entry_points(group="pytest11").names:
    pytest_plugins.append("agent_hedge.testing.pytest_plugin")
