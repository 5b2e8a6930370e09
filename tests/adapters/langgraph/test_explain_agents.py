"""`create_agent`, tool nodes, middleware and subgraphs."""

from __future__ import annotations

from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    HumanInTheLoopMiddleware,
    ModelFallbackMiddleware,
    before_model,
    wrap_model_call,
    wrap_tool_call,
)
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode

from agent_hedge.adapters.langgraph.explain import explain
from agent_hedge.adapters.langgraph.report import Explanation
from agent_hedge.core.step import Effect
from tests.adapters.langgraph import sample_graphs as samples
from tests.adapters.langgraph.knowledge import USUAL, Known


def agent(*middleware: Any, tools: Any = (samples.lookup, samples.send_email), **kwargs: Any) -> Any:
    return create_agent(samples.hedged, list(tools), middleware=middleware, name="agent", **kwargs)


def look(graph: Any) -> Explanation:
    return explain(graph, effects=USUAL)


def test_r09_an_agents_model_offers_its_tools_and_its_tool_node_runs_them() -> None:
    found = look(agent())
    model, tools = found["model"], found["tools"]
    assert model.offered == ("lookup", "send_email")
    assert not model.tools
    assert model.hedged
    assert model.verdicts["node"].hedgeable
    assert {used.name: used.barred for used in tools.tools} == {"lookup": False, "send_email": True}
    assert not tools.verdicts["node"].hedgeable


@pytest.mark.parametrize(("kind", "hedgeable"), [("web_search", True), ("code_interpreter", False)])
def test_r09_server_side_tools_of_an_agent_belong_to_its_model(kind: str, hedgeable: bool) -> None:
    found = look(agent(tools=[samples.lookup, {"type": kind}]))
    assert found["model"].verdicts["model"].hedgeable is hedgeable
    assert not found["tools"].server_side


def test_r09_human_in_the_loop_may_interrupt() -> None:
    found = look(agent(HumanInTheLoopMiddleware(interrupt_on={"send_email": True}), tools=[samples.lookup]))
    report = found["HumanInTheLoopMiddleware.after_model"]
    assert report.interrupts
    assert not report.verdicts["node"].hedgeable
    outer = samples.one(agent(HumanInTheLoopMiddleware(interrupt_on={"lookup": True}), tools=[samples.lookup]))
    assert any("may interrupt" in reason for reason in look(outer)["n"].verdicts["node"].reasons)


@wrap_model_call
def picks_tools(request: Any, handler: Any) -> Any:
    return handler(request.override(tools=[samples.send_email]))


def test_r09_tools_that_a_middleware_adds_cannot_be_seen() -> None:
    found = look(agent(picks_tools, tools=[samples.lookup]))
    assert "middleware" in {spot.kind for spot in found["model"].cannot_see}
    assert not found["model"].verdicts["node"].hedgeable
    assert found["model"].verdicts["model"].hedgeable


def test_a_middleware_with_one_side_only_is_reported() -> None:
    (note,) = [note for note in look(agent(picks_tools))["model"].notes if "picks_tools" in note]
    assert "wrap_model_call without awrap_model_call" in note


@wrap_tool_call
def watches(request: Any, handler: Any) -> Any:
    return handler(request)


def test_r09_a_tool_call_wrapper_cannot_be_seen_through() -> None:
    found = look(agent(watches, tools=[samples.lookup]))
    assert "wrapper" in {spot.kind for spot in found["tools"].cannot_see}
    assert not found["model"].cannot_see


@before_model
def counts(state: Any, runtime: Any) -> Any:
    return None


@before_model
def pays(state: Any, runtime: Any) -> Any:
    return {"messages": [samples.send_email.invoke({"to": "a"})]}


def test_r09_the_users_own_hooks_are_read() -> None:
    found = look(agent(counts, pays))
    assert found["counts.before_model"].verdicts["node"].hedgeable
    assert {used.name for used in found["pays.before_model"].tools} == {"send_email"}


def test_the_models_of_a_middleware_are_seen() -> None:
    found = look(agent(ModelFallbackMiddleware(samples.model)))
    assert {model.name: model.hedged for model in found["model"].models} == {"HedgedChat": True, "Chat": False}


# --- ToolNode


def wrap(request: Any, execute: Any) -> Any:
    return execute(request)


async def awrap(request: Any, execute: Any) -> Any:
    return await execute(request)


@pytest.mark.parametrize(
    ("wrappers", "note"),
    [
        ({"wrap_tool_call": wrap}, "only wrap_tool_call"),
        ({"awrap_tool_call": awrap}, "only awrap_tool_call"),
        ({"wrap_tool_call": wrap, "awrap_tool_call": awrap}, ""),
    ],
)
def test_a_tool_node_wrapped_on_one_side_is_reported(wrappers: Any, note: str) -> None:
    notes = look(samples.one(ToolNode([samples.lookup], **wrappers)))["n"].notes
    assert [each for each in notes if each.startswith("only")] == [each for each in notes if note and note in each]
    assert bool(note) == any(note in each for each in notes if note)


def test_r09_a_tools_body_is_looked_into_for_what_its_effect_does_not_cover() -> None:
    from langchain_core.tools import tool

    @tool
    def delegate(q: str) -> Any:
        """Ask, and let another agent work."""
        samples.asks()
        return agent().invoke({"messages": [q]})

    report = explain(samples.one(ToolNode([delegate])), effects=Known({"delegate": Effect.READ_ONLY}))["n"]
    assert report.interrupts
    assert not report.cannot_see  # its declared effect stands for what cannot be seen in it

    worker = agent(picks_tools)

    @tool
    def ask_worker(q: str) -> Any:
        """Let another agent work."""
        return worker.invoke({"messages": [q]})

    report = explain(samples.one(ToolNode([ask_worker])), effects=Known({"ask_worker": Effect.READ_ONLY}))["n"]
    assert {used.name for used in report.tools} == {"ask_worker", "lookup", "send_email"}
    assert not report.cannot_see
    assert not report.verdicts["node"].hedgeable


# --- subgraphs

plain_agent = agent()


def calls_agent(state: samples.State) -> Any:
    return plain_agent.invoke(state)


@pytest.mark.parametrize(
    "action",
    [plain_agent, calls_agent, plain_agent.with_retry(), plain_agent.with_fallbacks([plain_agent])],
    ids=["itself", "called", "with_retry", "with_fallbacks"],
)
def test_r09_an_agent_inside_a_node_is_found(action: Any) -> None:
    found = look(samples.one(action))
    assert {used.name for used in found["n"].tools} == {"lookup", "send_email"}
    assert not found["n"].verdicts["node"].hedgeable
    assert found["n|model"].offered == ("lookup", "send_email")
    assert found.verdict("model", "node", parent=("n",)) is None
    assert found.verdict("tools", "node", parent=("n",)) is not None


safe_agent = agent(tools=[samples.lookup])


def calls_both(state: samples.State) -> Any:
    return [plain_agent.invoke(state), safe_agent.invoke(state)]


def calls_both_the_other_way(state: samples.State) -> Any:
    return [safe_agent.invoke(state), plain_agent.invoke(state)]


@pytest.mark.parametrize("action", [calls_both, calls_both_the_other_way])
def test_r09_of_nodes_that_cannot_be_told_apart_the_barred_one_counts(action: Any) -> None:
    found = look(samples.one(action))
    assert found.verdict("tools", "node", parent=("n",)) is not None
    lines = found.mermaid().splitlines()
    (ours,) = [line.split("[")[0].strip() for line in lines if '["tools' in line]
    (barred,) = [line.split()[1].split(",") for line in lines if line.endswith(" barred") and "class " in line]
    assert ours in barred


def test_r09_persistent_subgraph_memory_bars() -> None:
    remembering = agent(tools=[samples.lookup], checkpointer=True)
    found = look(samples.one(remembering))
    assert found["n"].memory
    assert not found["n"].verdicts["node"].hedgeable
    deeper = look(samples.one(samples.one(remembering).compile()))
    assert not deeper["n"].verdicts["node"].hedgeable
    assert not look(samples.one(agent(tools=[samples.lookup], checkpointer=False)))["n"].memory


def test_r09_a_graph_that_runs_itself_ends() -> None:
    loop: dict[str, Any] = {}
    builder = StateGraph(samples.State)

    def again(state: samples.State) -> Any:
        return loop["graph"].invoke(state)

    builder.add_node("again", again)
    builder.add_edge(START, "again")
    loop["graph"] = builder.compile()
    assert {spot.kind for spot in look(loop["graph"])["again"].cannot_see} == {"container", "recursion"}
