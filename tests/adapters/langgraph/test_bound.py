"""Every provider's way to write a tool."""

from __future__ import annotations

from typing import Any, cast

import pytest

from agent_hedge.adapters.langgraph.bound import BoundTool, bound_inside, read_tools
from agent_hedge.adapters.langgraph.explain import explain
from agent_hedge.core.step import Effect
from agent_hedge.hedger import Hedger
from agent_hedge.targets import Target
from tests.adapters.langgraph.knowledge import Known
from tests.adapters.langgraph.sample_graphs import Chat, lookup, one

OFFERED: list[Any] = [
    lookup,
    {"type": "function", "function": {"name": "lookup"}},
    {"type": "function", "name": "lookup"},
    {"type": "custom", "name": "lookup"},
    {"name": "lookup", "input_schema": {}},
    {"function_declarations": [{"name": "lookup"}]},
    {"toolSpec": {"name": "lookup"}},
    {"title": "lookup", "type": "object", "properties": {}},
    {"type": "bash_20250124", "name": "lookup"},
]


@pytest.mark.parametrize("written", OFFERED, ids=str)
def test_r09_tools_that_come_back_as_calls(written: Any) -> None:
    assert read_tools([written]) == [BoundTool("lookup")]


SERVER_SIDE: list[tuple[Any, BoundTool]] = [
    ({"type": "web_search"}, BoundTool("web_search", "provider", True, Effect.READ_ONLY)),
    ({"type": "web_search_20250305", "name": "w"}, BoundTool("web_search", "provider", True, Effect.READ_ONLY)),
    ({"type": "web_search_preview_2025_03_11"}, BoundTool("web_search_preview", "provider", True, Effect.READ_ONLY)),
    ({"google_search": {}}, BoundTool("google_search", "provider", True, Effect.READ_ONLY)),
    ({"type": "code_interpreter", "container": {}}, BoundTool("code_interpreter", "provider", True)),
    ({"type": "code_execution_20250522", "name": "c"}, BoundTool("code_execution", "provider", True)),
    ({"type": "never_heard_of"}, BoundTool("never_heard_of", "provider", True)),
    ({"type": "mcp", "server_label": "crm"}, BoundTool("*", "crm", True)),
    ({"type": "mcp", "server_label": "crm", "allowed_tools": ["find"]}, BoundTool("find", "crm", True)),
    ({"type": "mcp", "server_label": "crm", "allowed_tools": {"tool_names": ["find"]}}, BoundTool("find", "crm", True)),
    (object(), BoundTool("object", "provider", True)),
]


@pytest.mark.parametrize(("written", "read"), SERVER_SIDE, ids=str)
def test_r09_tools_that_run_inside_the_model_call(written: Any, read: BoundTool) -> None:
    assert read_tools([written]) == [read]


def test_no_tools() -> None:
    assert read_tools(None) == read_tools([]) == read_tools(()) == []


def test_r09_tools_bound_to_the_members_of_a_hedged_model_bar_it() -> None:
    def hedged(**bound: Any) -> Any:
        places = [Target(name, Chat().bind(**bound), provider="fake", region=name) for name in ("here", "there")]
        return Hedger().chat_model(*places)

    model = hedged(tools=[{"type": "code_interpreter"}])
    assert {"type": "code_interpreter"} in [tool for tools in bound_inside(model) for tool in cast("list[Any]", tools)]
    report = explain(one(model), effects=Known())["n"]
    assert [entry.hedged for entry in report.models] == [True]
    assert not report.verdicts["model"].hedgeable
    assert explain(one(hedged(stop=["x"])), effects=Known())["n"].verdicts["model"].hedgeable
