"""Fail closed: however a node reaches its tool, the node is barred; and a node that reaches none is not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_hedge.adapters.langgraph.explain import explain
from tests.adapters.langgraph import hiding_places as places
from tests.adapters.langgraph import sample_graphs as samples
from tests.adapters.langgraph.knowledge import USUAL


@pytest.mark.parametrize("place", places.HIDING)
def test_r09_no_way_to_a_tool_escapes_the_bar(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    tool: Any = samples.send_email
    action = places.HIDING[place]
    report = explain(samples.one(action), effects=USUAL)["n"]
    monkeypatch.setattr(tool, "func", lambda to: sent.append(to))
    asyncio.run(samples.one(action).compile().ainvoke({"log": [], "messages": []}))
    assert sent, "this place hides nothing"
    assert not report.verdicts["node"].hedgeable
    assert report.cannot_see or [used.name for used in report.tools] == ["send_email"]


@pytest.mark.parametrize("place", places.HARMLESS)
def test_r09_a_node_without_tools_is_not_barred(place: str) -> None:
    report = explain(samples.one(places.HARMLESS[place]), effects=USUAL)["n"]
    assert report.verdicts["node"].reasons == ()
