"""What one node shows of itself: what resolves, what cannot be seen, and what bars it (C6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from langchain.chat_models import init_chat_model
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tools import tool
from langgraph.func import entrypoint
from langgraph.pregel.remote import RemoteGraph

from agent_hedge.adapters.langgraph.explain import explain
from agent_hedge.adapters.langgraph.report import Bar, NodeReport
from agent_hedge.core.events import Reason
from agent_hedge.core.step import Effect
from agent_hedge.errors import ConfigurationError
from agent_hedge.hedger import Hedger
from agent_hedge.tools.effect import effect_spec, tool_effect
from tests.adapters.langgraph import sample_graphs as samples
from tests.adapters.langgraph.knowledge import USUAL, Known
from tests.adapters.langgraph.sample_tools import pay

BARS: tuple[Bar, ...] = ("unit", "downstream")


def node(action: Any, bar: Bar = "unit") -> NodeReport:
    return explain(samples.one(action), effects=USUAL, bar=bar)["n"]


def names(report: NodeReport) -> set[str]:
    return {used.name for used in report.tools}


RESOLVED: dict[str, tuple[Any, set[str], set[str]]] = {
    "a bound model in a global": (samples.n_bound_global, set(), {"lookup"}),
    "a tool called directly": (samples.n_direct, {"send_email"}, set()),
    "a helper function": (samples.n_helper, {"send_email"}, set()),
    "a closure": (samples.n_closure(samples.lookup), {"lookup"}, set()),
    "a sequence": (samples.RESOLVED_RUNNABLES["sequence"], set(), {"lookup"}),
    "parallel": (samples.RESOLVED_RUNNABLES["parallel"], {"send_email", "lookup"}, set()),
    "with_fallbacks": (samples.RESOLVED_RUNNABLES["fallbacks"], set(), {"lookup", "send_email"}),
    "with_retry": (samples.RESOLVED_RUNNABLES["retry"], set(), {"lookup"}),
    "branch": (samples.RESOLVED_RUNNABLES["branch"], {"send_email", "lookup"}, set()),
    "a chain made in the body": (samples.n_async, set(), set()),
    "nothing but data": (samples.n_plain, set(), set()),
}


@pytest.mark.parametrize("case", RESOLVED)
def test_r09_resolves_the_tools_of_a_node(case: str) -> None:
    action, run, offered = RESOLVED[case]
    report = node(action)
    assert names(report) == run
    assert set(report.offered) == offered
    assert not report.cannot_see
    assert report.verdicts["model"].hedgeable
    assert report.verdicts["node"].hedgeable == ("send_email" not in run)


class Started(BaseCallbackHandler):
    """Hears which tools really start."""

    run_inline = True

    def __init__(self) -> None:
        self.names: set[str] = set()

    def on_tool_start(self, serialized: dict[str, Any], input_str: str, **kwargs: Any) -> None:
        self.names.add(serialized["name"])


RUNS = [
    samples.n_direct,
    samples.n_helper,
    samples.n_closure(samples.lookup),
    samples.b_registry,
    samples.b_registry_get,
    samples.b_loop,
    samples.b_import,
    samples.b_service,
    samples.b_new_object,
    samples.CallableObject(),
    samples.Service().run,
]


@pytest.mark.parametrize("action", RUNS)
def test_r09_what_really_runs_was_seen_or_called_a_blind_spot(action: Callable[..., Any]) -> None:
    heard = Started()
    samples.one(action).compile().invoke({"log": ["send"], "messages": []}, {"callbacks": [heard]})
    report = node(action)
    assert heard.names
    assert heard.names <= names(report)
    assert report.cannot_see or heard.names == names(report)


@pytest.mark.parametrize("bar", BARS)
@pytest.mark.parametrize("action", samples.BLIND_FUNCTIONS, ids=lambda each: each.__name__)
def test_r09_a_blind_spot_is_named_and_bars_the_whole_node(action: Callable[..., Any], bar: Bar) -> None:
    found = explain(samples.one(action), effects=USUAL, bar=bar)
    assert found["n"].cannot_see
    assert "cannot see" in str(found)
    refused = found.verdict("n", "node")
    assert refused is not None
    assert refused.reason is Reason.BARRED
    assert (found.verdict("n", "model") is None) == (bar == "unit")  # the model call alone shows its tools


BLIND_OBJECTS: dict[str, tuple[Any, str]] = {
    "attribute of a callable object": (samples.CallableObject(), "attribute"),
    "attribute behind a bound method": (samples.Service().run, "attribute"),
    "configurable model": (samples.configurable, "configurable"),
    "model chosen at run time": (init_chat_model(configurable_fields="any"), "configurable"),
    "remote graph": (RemoteGraph("there", url="http://localhost:1"), "remote"),
}


@pytest.mark.parametrize("case", BLIND_OBJECTS)
def test_r09_an_opaque_object_bars_the_whole_node(case: str) -> None:
    action, kind = BLIND_OBJECTS[case]
    report = node(action)
    assert kind in {spot.kind for spot in report.cannot_see}
    assert not report.verdicts["node"].hedgeable


def test_r09_a_blind_spot_says_where_it_is() -> None:
    (spot,) = node(samples.b_from_state).cannot_see
    assert str(spot) == "call: `.execute` of a value made at run time (in b_from_state)"


def test_r09_a_function_without_its_source_is_a_blind_spot() -> None:
    space: dict[str, Any] = {"send_email": samples.send_email}
    exec("def made(state):\n    return {'log': [send_email.invoke({'to': 'a'})]}", space)
    report = node(space["made"])
    assert [spot.kind for spot in report.cannot_see] == ["source"]
    assert names(report) == {"send_email"}  # its names are still looked at


def test_r09_source_that_changed_since_the_import_is_not_believed(tmp_path: Any) -> None:
    file = tmp_path / "edited.py"
    file.write_text("def act(state):\n    return send_email.invoke('x')\n")
    space: dict[str, Any] = {"send_email": samples.send_email}
    exec(compile(file.read_text(), str(file), "exec"), space)
    file.write_text("def act(state):\n    return {}\n")
    assert [spot.kind for spot in node(space["act"]).cannot_see] == ["source"]


# --- server-side tools: they run inside the model call


def test_r09_a_server_side_search_does_not_bar() -> None:
    report = node(samples.n_searching)
    assert [str(used) for used in report.server_side] == ["provider/web_search (read_only)"]
    assert report.verdicts["model"].hedgeable


@pytest.mark.parametrize("action", [samples.n_executing, samples.n_remote_tools])
def test_r09_server_side_tools_with_effects_bar_the_model_call_too(action: Callable[..., Any]) -> None:
    report = node(action)
    assert not report.verdicts["model"].hedgeable
    assert not report.verdicts["node"].hedgeable


def test_r09_the_registry_has_the_last_word_on_server_side_tools() -> None:
    effects = Known({"crm/find": Effect.READ_ONLY, "crm/drop": Effect.READ_ONLY})
    report = explain(samples.one(samples.n_remote_tools), effects=effects)["n"]
    assert report.verdicts["model"].hedgeable
    effects = Known({"crm/find": Effect.READ_ONLY, "crm/drop": Effect.IDEMPOTENT})
    report = explain(samples.one(samples.n_remote_tools), effects=effects)["n"]
    assert not report.verdicts["model"].hedgeable, "two attempts may hold different arguments, and no fence is there"
    report = explain(samples.one(samples.n_searching), effects=Known({"provider/web_search": Effect.ONCE}))["n"]
    assert not report.verdicts["model"].hedgeable


# --- interrupts, memory, tasks, store


def test_r09_an_interrupt_in_a_helper_bars_the_node() -> None:
    report = node(samples.n_interrupt)
    assert report.interrupts
    assert not report.verdicts["node"].hedgeable
    assert report.verdicts["model"].hedgeable


def test_r09_tasks_bar_the_node() -> None:
    report = node(samples.n_task)
    assert report.tasks == ("`remember`",)
    assert not report.verdicts["node"].hedgeable


def test_r09_store_writes_bar_the_node_and_reads_do_not() -> None:
    writes, reads = node(samples.n_store_write), node(samples.n_store_read)
    assert (writes.store, writes.verdicts["node"].hedgeable) == ("writes", False)
    assert (reads.store, reads.verdicts["node"].hedgeable) == ("reads", True)


# --- models


def test_models_are_hedged_or_plain() -> None:
    assert [model.hedged for model in node(samples.n_hedged).models] == [True]
    plain = node(samples.n_bound_global)
    assert [model.hedged for model in plain.models] == [False]
    assert "plain, not hedged" in str(plain)


# --- where effects come from


@tool_effect(Effect.READ_ONLY)
def peek(q: str) -> str:
    return q


@tool_effect(Effect.ONCE)
@tool
def fire(q: str) -> str:
    """Launch."""
    return q


def uses_annotated(state: samples.State) -> Any:
    return {"log": [peek("x"), fire.invoke({"q": "x"})]}


def test_r09_annotations_count_where_the_registry_knows_nothing() -> None:
    graph = samples.one(uses_annotated)
    report = explain(graph, effects=Known(), spec_of=effect_spec)["n"]
    assert {used.name: used.effect for used in report.tools} == {"peek": Effect.READ_ONLY, "fire": Effect.ONCE}
    report = explain(graph, effects=Known({"fire": Effect.READ_ONLY}), spec_of=effect_spec)["n"]
    assert report.verdicts["node"].hedgeable
    report = explain(graph, effects=Known())["n"]
    assert {used.effect for used in report.tools} == {Effect.UNKNOWN}


def test_r09_a_tool_with_another_schema_than_the_operator_judged_is_stale_at_the_first_look() -> None:
    @tool("peek")
    def before(q: str) -> str:
        """Look."""
        return q

    hedger = Hedger()
    hedger.registry.declare([before])
    hedger.registry.annotate("peek", Effect.READ_ONLY)

    @tool_effect(Effect.READ_ONLY)
    @tool("peek")
    def after(q: str, *, send: bool) -> str:
        """Look, and more."""
        return q

    def action(state: samples.State) -> Any:
        return {"log": [after.invoke({"q": "x", "send": True})]}

    builder = samples.one(action)
    builder.add_node("before", samples.n_plain)
    builder.add_edge("before", "n")
    report = hedger.explain(builder, bar="downstream")
    assert [report[name].verdicts["node"].hedgeable for name in ("before", "n")] == [False, False]


def test_r09_what_the_operator_forbids_to_repeat_bars() -> None:
    def action(state: samples.State) -> Any:
        return {"log": [samples.lookup.invoke("x")]}

    for allowed in (True, False):
        hedger = Hedger()
        hedger.registry.annotate("lookup", Effect.READ_ONLY, repeat_allowed=allowed)
        assert hedger.explain(samples.one(action))["n"].verdicts["node"].hedgeable is allowed


def test_r09_a_tool_that_may_not_be_repeated_bars_whatever_its_effect() -> None:
    @tool_effect(Effect.READ_ONLY, repeat_allowed=False)
    def audited(q: str) -> str:
        return q

    def action(state: samples.State) -> Any:
        return {"log": [audited("x")]}

    assert not explain(samples.one(action), effects=Known(), spec_of=effect_spec)["n"].verdicts["node"].hedgeable
    known = Known({"audited": Effect.READ_ONLY})
    assert not explain(samples.one(action), effects=known, spec_of=effect_spec)["n"].verdicts["node"].hedgeable


def test_r09_where_arguments_decide_the_worst_case_counts() -> None:
    @tool_effect(Effect.READ_ONLY, rules={"method": {"POST": Effect.ONCE}})
    def request(method: str) -> str:
        return method

    def action(state: samples.State) -> Any:
        return {"log": [request("GET")]}

    (used,) = explain(samples.one(action), effects=Known(), spec_of=effect_spec)["n"].tools
    assert used.effect is Effect.ONCE


def test_r09_a_name_in_another_namespace_is_another_tool() -> None:
    effects = Known({"crm/pay": Effect.READ_ONLY})
    graph = samples.one(samples.n_closure(pay))
    assert explain(graph, effects=effects)["n"].tools[0].effect is Effect.UNKNOWN
    found = explain(graph, effects=effects, namespace_of=lambda tool: "crm")["n"]
    assert (found.tools[0].full_name, found.tools[0].effect) == ("crm/pay", Effect.READ_ONLY)


# --- all of it at once


def everything() -> Any:
    builder = samples.one(samples.n_plain)
    actions = {
        **{case: each[0] for case, each in RESOLVED.items()},
        **{each.__name__: each for each in samples.BLIND_FUNCTIONS},
        **{case: each[0] for case, each in BLIND_OBJECTS.items()},
    }
    for name, action in actions.items():
        builder.add_node(name, action)
        builder.add_edge("n", name)
    return builder.compile()


@pytest.mark.parametrize("bar", BARS)
def test_explaining_is_stable_and_plain_data(bar: Bar) -> None:
    graph = everything()
    found = explain(graph, effects=USUAL, bar=bar)
    assert json.dumps(found.to_dict()) == json.dumps(explain(graph, effects=USUAL, bar=bar).to_dict())
    assert len(found.nodes) == len(graph.builder.nodes)


def test_a_builder_and_its_compiled_graph_are_explained_alike() -> None:
    builder = samples.one(samples.n_direct)
    before = explain(builder, effects=USUAL).to_dict()["nodes"]
    assert before == explain(builder.compile(), effects=USUAL).to_dict()["nodes"]


def test_r09_a_workflow_of_the_functional_api() -> None:
    @entrypoint()
    def flow(x: int) -> Any:
        return samples.remember(x).result()

    report = explain(flow, effects=USUAL)["flow"]
    assert report.tasks == ("`remember`",)
    assert not report.verdicts["node"].hedgeable


@pytest.mark.parametrize("thing", [None, 1, samples.n_plain, samples.model])
def test_r20_what_is_not_a_graph_is_refused(thing: Any) -> None:
    with pytest.raises(ConfigurationError, match="not a graph"):
        explain(thing, effects=USUAL)


def test_r20_a_reading_of_the_bar_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="downstream"):
        explain(samples.one(samples.n_plain), effects=USUAL, bar="run")  # type: ignore[arg-type]
