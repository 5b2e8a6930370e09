"""How an explanation reads: text, diagram, data."""

from __future__ import annotations

import re
from typing import Any

from langchain.agents import create_agent
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode

from agent_hedge.adapters.langgraph.explain import explain
from tests.adapters.langgraph import sample_graphs as samples
from tests.adapters.langgraph.knowledge import USUAL


def graph() -> Any:
    builder = StateGraph(samples.State)
    builder.add_node("plan", samples.n_hedged)
    builder.add_node('odd "name" <x> #1', samples.b_registry)
    builder.add_node("agent", create_agent(samples.hedged, [samples.lookup]))
    builder.add_node("tools", ToolNode([samples.send_email]))
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", samples.route)
    builder.add_edge("agent", "tools")
    return builder.compile(name="the 'graph'")


def test_str_has_one_block_a_node() -> None:
    text = str(explain(graph(), effects=USUAL))
    head, *blocks = text.split("\n\n")
    assert 'bar="unit"' in head
    assert [block.splitlines()[0] for block in blocks] == [
        "plan",
        'odd "name" <x> #1',
        "agent",
        "agent|model",
        "agent|tools",
        "tools",
    ]
    assert blocks[-1].splitlines()[1:3] == [
        '  unit="model"  hedgeable',
        '  unit="node"   barred: send_email is once',
    ]


_ID = r"[a-z][a-z0-9]*"
_LABEL = r'"[^"<>\n]*(?:<br/>[^"<>\n]*)*"'
MERMAID = [
    rf"{_ID}(?:\(\[{_LABEL}\]\)|\[{_LABEL}\]|\{{\{{{_LABEL}\}}\}})",  # a node
    rf"{_ID} (?:-->|-\.->) {_ID}",  # an arrow
    rf"subgraph {_ID}\[{_LABEL}\]",
    r"end",
    r"classDef [a-z]+ (?:[a-z]+:#[0-9a-f]{6},?)+",
    rf"class {_ID}(?:,{_ID})* [a-z]+",
]


def test_mermaid_is_a_well_formed_flowchart_coloured_by_verdict() -> None:
    text = explain(graph(), effects=USUAL).mermaid()
    opening, title, closing, kind, *lines = text.rstrip("\n").split("\n")
    assert (opening, closing, kind) == ("---", "---", "flowchart TD")
    assert re.fullmatch(r'title: "[^"]*"', title)
    stripped = [line.strip() for line in lines]
    for line in stripped:
        assert any(re.fullmatch(form, line) for form in MERMAID), line
    assert stripped.count("end") == sum(line.startswith("subgraph") for line in stripped)
    assert 'n1["odd #quot;name#quot; #lt;x#gt; #35;1<br/>send_email (once)"]' in stripped
    declared = {found[1] for line in stripped if (found := re.match(rf"(?:subgraph )?({_ID})[\[({{]", line))}
    used = {each for line in stripped if (found := re.fullmatch(MERMAID[1], line)) for each in line.split()[::2]}
    coloured = {
        each: line.split()[-1] for line in stripped if line.startswith("class ") for each in line.split()[1].split(",")
    }
    assert used | set(coloured) <= declared
    assert coloured == {
        "start": "terminal",
        "finish": "terminal",
        "n0": "hedgeable",
        "n1": "barred",
        "n2": "hedgeable",
        "n3": "hedgeable",
        "n4": "hedgeable",
        "n5": "barred",
    }


def test_mermaid_knows_a_node_of_which_only_the_model_call_may_be_raced() -> None:
    text = explain(samples.one(samples.b_bind_tools), effects=USUAL).mermaid()
    assert "class n0 model" in text


def test_data_has_the_same_keys_for_every_node() -> None:
    data = explain(graph(), effects=USUAL).to_dict()
    assert list(data) == ["graph", "bar", "entry", "unknown_tools", "nodes"]
    assert data["entry"] == ["plan"]
    assert len({tuple(node) for node in data["nodes"]}) == 1


def test_unknown_tools_are_listed_once() -> None:
    builder = samples.one(ToolNode([samples.lookup, samples.send_email]))
    builder.add_node("m", samples.n_direct)
    assert explain(builder, effects=USUAL).unknown == ()
    from tests.adapters.langgraph.knowledge import Known

    assert explain(builder, effects=Known()).unknown == ("lookup", "send_email")
