"""Every provider's way to write a tool."""

from __future__ import annotations

from typing import Any

import pytest

from agent_hedge.adapters.langgraph.explain import explain
from agent_hedge.core.step import Effect
from agent_hedge.hedger import Hedger
from agent_hedge.targets import Target
from agent_hedge.tools.bound import BoundTool, effect_of_call, read_call, read_tools
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
    assert effect_of_call({"tools": [written]}) is Effect.READ_ONLY


SERVER_SIDE: list[tuple[Any, BoundTool]] = [
    ({"type": "web_search"}, BoundTool("web_search", "provider", True, Effect.READ_ONLY)),
    ({"type": "web_search_20250305", "name": "w"}, BoundTool("web_search", "provider", True, Effect.READ_ONLY)),
    ({"type": "web_search_preview_2025_03_11"}, BoundTool("web_search_preview", "provider", True, Effect.READ_ONLY)),
    ({"google_search": {}}, BoundTool("google_search", "provider", True, Effect.READ_ONLY)),
    ({"googleSearch": {}}, BoundTool("googleSearch", "provider", True, Effect.READ_ONLY)),
    ({"type": "retrieval"}, BoundTool("retrieval", "provider", True, Effect.READ_ONLY)),
    ({"codeExecution": {}}, BoundTool("codeExecution", "provider", True)),
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
    barred = read.effect is not Effect.READ_ONLY
    assert effect_of_call({"tools": [*OFFERED, written]}) is (Effect.ONCE if barred else Effect.READ_ONLY)


def test_no_tools() -> None:
    assert read_tools(None) == read_tools([]) == read_tools(()) == read_call({}) == []
    assert read_tools([{"cachePoint": {"type": "default"}}]) == [], "a mark for the provider's cache is no tool"
    assert effect_of_call({}) is effect_of_call({"tools": None}) is Effect.READ_ONLY


@pytest.mark.parametrize(
    ("written", "names"),
    [
        ({"type": "url", "url": "https://x", "name": "crm"}, ["*"]),
        ({"name": "crm", "tool_configuration": {"enabled": True, "allowed_tools": ["find"]}}, ["find"]),
        ("something else", ["*"]),
    ],
)
def test_r09_anthropics_remote_servers(written: Any, names: list[str]) -> None:
    found = read_call({"mcp_servers": [written]})
    assert [tool.name for tool in found] == names
    assert all(tool.server_side for tool in found)
    assert effect_of_call({"mcp_servers": [written]}) is Effect.ONCE


def test_r09_explain_sees_the_remote_servers_of_plain_and_bound_models() -> None:
    servers = [{"name": "crm", "type": "url", "url": "https://x"}]

    class Remote(Chat):
        mcp_servers: Any = None

    places = [Target(name, Remote(mcp_servers=servers), provider="fake", region=name) for name in ("here", "there")]
    for model in (Chat().bind(mcp_servers=servers), Remote(mcp_servers=servers), Hedger().chat_model(*places)):
        report = explain(one(model), effects=Known())["n"]
        assert not report.verdicts["model"].hedgeable
        assert [str(tool) for tool in report.server_side] == ["crm/* (unknown)"]


def test_r09_tools_bound_to_the_members_of_a_hedged_model_bar_it() -> None:
    def hedged(**bound: Any) -> Any:
        places = [Target(name, Chat().bind(**bound), provider="fake", region=name) for name in ("here", "there")]
        return Hedger().chat_model(*places)

    model = hedged(tools=[{"type": "code_interpreter"}])
    report = explain(one(model), effects=Known())["n"]
    assert [entry.hedged for entry in report.models] == [True]
    assert not report.verdicts["model"].hedgeable
    assert explain(one(hedged(stop=["x"])), effects=Known())["n"].verdicts["model"].hedgeable
