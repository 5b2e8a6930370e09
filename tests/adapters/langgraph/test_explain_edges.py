"""What can be reached after a node, and the strict reading of the bar."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command

from agent_hedge.adapters.langgraph.explain import explain
from agent_hedge.adapters.langgraph.report import Explanation
from agent_hedge.core.events import Reason
from tests.adapters.langgraph import sample_graphs as samples
from tests.adapters.langgraph.knowledge import USUAL


def builder(**nodes: Any) -> Any:
    """Return a graph with a plan, a report and a tool node that sends mail."""
    graph = StateGraph(samples.State)
    standard: dict[str, Any] = {
        "plan": samples.n_hedged,
        "report": samples.n_hedged,
        "tools": ToolNode([samples.send_email]),
    }
    for name, action in (standard | nodes).items():
        graph.add_node(name, action)
    graph.add_edge(START, "plan")
    return graph


def strict(graph: Any) -> Explanation:
    return explain(graph, effects=USUAL, bar="downstream")


def barred(found: Explanation) -> set[str]:
    return {node.name for node in found.nodes if found.verdict(node.name) is not None}


def test_r09_downstream_bars_what_leads_to_the_tool_and_nothing_after_it() -> None:
    graph = builder()
    graph.add_edge("plan", "tools")
    graph.add_edge("tools", "report")
    assert barred(strict(graph)) == {"plan", "tools"}
    assert barred(explain(graph, effects=USUAL)) == set()


def test_r09_downstream_names_the_way() -> None:
    graph = builder(middle=samples.n_plain)
    graph.add_edge("plan", "middle")
    graph.add_edge("middle", "tools")
    refused = strict(graph).verdict("plan")
    assert refused is not None
    assert (refused.reason, refused.detail) == (
        Reason.BARRED,
        "send_email is once, reached by plan -> middle -> tools",
    )


def test_r09_downstream_follows_loops() -> None:
    graph = builder()
    graph.add_edge("plan", "tools")
    graph.add_conditional_edges("tools", samples.route_literal, {"tools": "report", "__end__": END})
    graph.add_edge("report", "plan")
    assert barred(strict(graph)) == {"plan", "tools", "report"}


def test_r09_downstream_follows_joins() -> None:
    graph = builder(side=samples.n_plain)
    graph.add_edge(START, "side")
    graph.add_edge(["plan", "side"], "tools")
    assert {"plan", "side", "tools"} == barred(strict(graph))


BRANCHES = {
    "no path map": ((samples.route,), True),
    "Send without a path map": ((samples.route_send,), True),
    "a literal": ((samples.route_literal,), True),
    "a path map elsewhere": ((samples.route, ["report"]), False),
    "a path map there": ((samples.route_send, ["tools"]), True),
}


@pytest.mark.parametrize("case", BRANCHES)
def test_r09_a_branch_leads_to_what_its_path_map_says_or_anywhere(case: str) -> None:
    path, reaches = BRANCHES[case]
    graph = builder()
    graph.add_conditional_edges("plan", *path)
    found = strict(graph)
    assert ("plan" in barred(found)) is reaches
    assert bool(found["plan"].exits.anywhere) is case.endswith(("no path map", "without a path map"))


def goes_by_variable(state: samples.State):  # type: ignore[no-untyped-def]
    return Command(goto=state["log"][0])


def goes_up(state: samples.State):  # type: ignore[no-untyped-def]
    return Command(goto="tools", graph=Command.PARENT)


def goes_nowhere(state: samples.State):  # type: ignore[no-untyped-def]
    return Command(update={"log": []})


@pytest.mark.parametrize(
    ("action", "anywhere", "reaches"),
    [
        (samples.n_command, False, True),
        (samples.n_command_bare, True, True),
        (goes_by_variable, True, True),
        (goes_nowhere, False, False),
    ],
)
def test_r09_a_command_leads_where_its_annotation_says_or_anywhere(action: Any, anywhere: bool, reaches: bool) -> None:
    found = strict(builder(plan=action))
    assert bool(found["plan"].exits.anywhere) is anywhere
    assert ("plan" in barred(found)) is reaches


def goes_further(state: samples.State) -> Command[Literal["report"]]:
    return Command(goto="tools")  # type: ignore[arg-type]


def test_r09_a_constant_goto_counts_beside_the_annotation() -> None:
    assert strict(builder(plan=goes_further))["plan"].exits.nodes == ("report", "tools")


def test_r09_declared_destinations_are_believed() -> None:
    graph = builder()
    graph.add_node("go", goes_by_variable, destinations=("report",))
    graph.add_edge("plan", "go")
    found = strict(graph)
    assert found["go"].exits.nodes == ("report",)
    assert barred(found) == {"tools"}


def test_r09_a_command_for_the_parent_leads_anywhere_in_it() -> None:
    inner = samples.one(goes_up).compile()
    graph = builder(sub=inner)
    graph.add_edge("plan", "sub")
    assert {"plan", "sub", "sub|n"} <= barred(strict(graph))


def test_r09_downstream_leaves_a_subgraph_at_its_end() -> None:
    inner = samples.one(samples.n_hedged).compile()
    graph = builder(sub=inner)
    graph.add_edge("plan", "sub")
    assert barred(strict(graph)) == {"tools"}
    graph.add_edge("sub", "tools")
    assert {"sub", "sub|n"} <= barred(strict(graph))


def test_r09_downstream_counts_the_code_around_a_subgraph() -> None:
    inner = samples.one(samples.n_hedged).compile()

    def calls(state: samples.State) -> Any:
        result = inner.invoke(state)
        return {"log": [samples.send_email.invoke({"to": "a"}), result]}

    assert {"calls", "calls|n"} <= barred(strict(builder(calls=calls)))


def test_r09_downstream_in_an_agent() -> None:
    safe = create_agent(samples.hedged, [samples.lookup])
    unsafe = create_agent(samples.hedged, [samples.send_email])
    assert barred(strict(safe)) == set()
    assert barred(strict(unsafe)) == {"model", "tools"}


def test_r09_downstream_counts_blind_spots() -> None:
    graph = builder(blind=samples.b_from_state)
    graph.add_edge("plan", "blind")
    assert {"plan", "blind"} <= barred(strict(graph))


def pays_in_route(state: samples.State) -> str:
    samples.send_email.invoke({"to": "a"})
    return "report"


def test_r09_a_branch_that_calls_a_tool_bars_downstream_but_not_the_node_before_it() -> None:
    graph = builder()
    graph.add_conditional_edges("plan", pays_in_route, ["report"])
    assert barred(strict(graph)) == {"plan", "tools"}
    assert explain(graph, effects=USUAL).verdict("plan", "node") is None  # it runs once, after the race


@pytest.mark.parametrize("compiled", [False, True])
def test_r09_error_handlers_come_after_what_they_handle(compiled: bool) -> None:
    def handler(state: samples.State) -> Any:
        return {"log": [samples.send_email.invoke({"to": "a"})]}

    graph = builder()
    graph.set_node_defaults(error_handler=handler)
    found = strict(graph.compile() if compiled else graph)
    assert barred(found) == {"plan", "report", "tools", "__default_error_handler__"}
    graph = StateGraph(samples.State)
    graph.add_node("plan", samples.n_hedged, error_handler=handler)
    graph.add_edge(START, "plan")
    assert "plan" in barred(strict(graph))


def test_r09_a_node_that_was_never_seen() -> None:
    found = explain(builder(), effects=USUAL)
    assert found.verdict("other") is None
    refused = found.verdict("other", "node")
    assert refused is not None
    assert refused.reason is Reason.GRAPH_UNSEEN
    refused = strict(builder()).verdict("other")
    assert refused is not None
    assert refused.reason is Reason.GRAPH_UNSEEN
