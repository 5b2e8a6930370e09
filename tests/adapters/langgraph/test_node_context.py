"""Where steps stand, what is known of their graphs, and the runs that configuration opens (issue 5, 1, 6, 8)."""

from __future__ import annotations

import asyncio
import warnings
from functools import partial
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.runtime import RunControl
from langgraph.types import Command, Send, interrupt

from agent_hedge import Effect, Fixed, Hedger, Never, Target, current_run
from agent_hedge.core.events import AttemptRefused, AttemptStarted, Reason, StepStarted
from agent_hedge.core.scope import Forced, StepContext, forced, step_scope
from agent_hedge.errors import ConfigurationError, DeadlineExceeded
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat, Recorder, State, make_kit, thread

Builder = StateGraph[Any, Any, Any, Any]


def hi(**more: Any) -> Any:
    return {"messages": [HumanMessage("hi", id="q")], "log": [], **more}


def hedged(hedger: Hedger, **settings: Any) -> Any:
    return hedger.chat_model(Target("a", Chat()), Target("b", Chat()), family="scripted", **settings)


def forcing(main: Any, winner: int = 1) -> Any:
    token = forced.set(Forced(hedge=True, winner=winner))
    try:
        return run_virtual(main)
    finally:
        forced.reset(token)


def single(action: Any, name: str = "ask", **settings: Any) -> Builder:
    builder: Builder = StateGraph(State)
    builder.add_node(name, action, **settings)
    builder.add_edge(START, name)
    return builder


# --- where a step stands ----------------------------------------------------------------------------------------------


def test_a_wrapped_node_says_where_it_stands() -> None:
    hedger, found = Hedger(), []

    @hedger.node
    async def inner(state: State) -> State:
        found.append(step_scope.get())
        return {"log": [1]}

    @hedger.node
    async def outer(state: State) -> Any:
        found.append(step_scope.get())
        return await single(inner, "inner").compile().ainvoke({"log": []})

    builder = single(outer, "outer")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = builder.compile(checkpointer=InMemorySaver())
        run_virtual(lambda: graph.ainvoke(hi(), thread("th"), durability="sync"))
    first, second = found
    assert isinstance(first, StepContext)
    assert isinstance(second, StepContext)
    assert (first.node, first.step, first.path, first.parent) == ("outer", 1, "__pregel_pull/outer", ())
    assert (first.thread, first.durability, first.resumed) == ("th", "sync", False)
    assert second.parent == ("outer#1#__pregel_pull/outer",)
    assert (second.node, second.path) == ("inner", "__pregel_pull/inner")
    assert step_scope.get() is None


def test_parallel_branches_have_paths_of_their_own() -> None:
    hedger, paths = Hedger(), []

    @hedger.node
    async def work(state: State) -> State:
        paths.append(step_scope.get().path)  # type: ignore[union-attr]
        return {"log": [state["n"]]}

    builder: Builder = StateGraph(State)
    builder.add_node("work", work)
    builder.add_conditional_edges(START, lambda _: [Send("work", {"n": n}) for n in range(3)], ["work"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_virtual(lambda: builder.compile().ainvoke(hi()))
    assert len(set(paths)) == 3


def test_a_hedged_model_in_a_plain_node_inside_a_wrapped_one_is_a_step_of_its_own() -> None:
    kit = make_kit("model")
    model = hedged(kit.hedger)

    async def inner(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    graph = single(inner, "inner").compile()

    @kit.hedger.node
    async def outer(state: State) -> Any:
        return await graph.ainvoke(state)

    run_virtual(lambda: single(outer, "outer").compile().ainvoke(hi()))
    assert [event.key.node for event in kit.events if isinstance(event, StepStarted)] == ["inner"]


def test_key_and_policy_of_a_node() -> None:
    recorder = Recorder()
    hedger = Hedger(observers=[recorder], policy=Never())
    model = hedged(hedger)

    @hedger.node(key="planning", policy=Fixed(0.01))
    async def plan(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    run_virtual(lambda: single(plan, "plan").compile().ainvoke(hi()))
    attempts = [event for event in recorder.events if isinstance(event, AttemptStarted)]
    assert [event.key.node for event in attempts] == ["planning", "planning"]


def test_a_wrapped_node_without_a_hedged_model_warns_once() -> None:
    hedger, model = Hedger(), Chat()

    @hedger.node
    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    @hedger.node
    async def count(state: State) -> State:
        return {"n": 1}

    for node, said in ((ask, "its models are plain: Chat"), (count, "it holds no chat model")):
        graph = single(node).compile()
        with pytest.warns(UserWarning, match=said):
            run_virtual(partial(graph.ainvoke, hi()))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            run_virtual(partial(graph.ainvoke, hi()))


def test_outside_a_graph_a_wrapped_function_is_the_function() -> None:
    hedger = Hedger()

    @hedger.node(unit="node", effect=Effect.READ_ONLY, trigger="total")
    async def twice(x: int) -> int:
        return 2 * x

    assert forcing(lambda: twice(3)) == 6


# --- what is known of graphs ------------------------------------------------------------------------------------------


@tool
def pay(amount: int) -> str:
    """Pay."""
    return "paid"


def paying(hedger: Hedger, wrap: bool = False) -> Builder:
    model = hedged(hedger)

    async def plan(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = single(hedger.node(plan) if wrap else plan, "plan")
    builder.add_node("tools", ToolNode([pay]))
    builder.add_conditional_edges("plan", lambda _: "__end__", ["tools", "__end__"])
    return builder


def reasons(kit: Any) -> list[Reason]:
    return [event.reason for event in kit.events if isinstance(event, AttemptRefused)]


@pytest.mark.parametrize("wrap", [False, True])
def test_r09_the_two_readings_of_the_bar(wrap: bool) -> None:
    for bar, shown, expected in (
        ("unit", False, []),
        ("unit", True, []),
        ("downstream", False, [Reason.GRAPH_UNSEEN]),
        ("downstream", True, [Reason.BARRED]),
    ):
        kit = make_kit("model", bar=bar)
        builder = paying(kit.hedger, wrap)
        if shown:
            kit.hedger.explain(builder)
        forcing(lambda builder=builder: builder.compile().ainvoke(hi()))
        assert reasons(kit) == expected, (bar, shown)
        assert kit.hedges == (0 if expected else 1)


def test_r09_the_bar_of_a_single_node() -> None:
    kit = make_kit("model")
    model = hedged(kit.hedger)

    @kit.hedger.node(bar="downstream")
    async def plan(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    builder = single(plan)
    forcing(lambda: builder.compile().ainvoke(hi()))
    assert reasons(kit) == [Reason.GRAPH_UNSEEN]
    kit.hedger.explain(builder)
    forcing(lambda: builder.compile().ainvoke(hi()))
    assert kit.hedges == 1


def test_r09_nodes_that_cannot_be_told_apart_share_the_strictest_verdict() -> None:
    kit = make_kit("model", bar="downstream")
    model = hedged(kit.hedger)

    async def plan(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    harmless = single(plan, "plan")
    kit.hedger.explain(harmless)
    kit.hedger.explain(paying(kit.hedger))
    forcing(lambda: harmless.compile().ainvoke(hi()))
    assert reasons(kit) == [Reason.BARRED]


def test_wrap_graph_wraps_what_is_declared_or_hedged() -> None:
    kit = make_kit("model")
    model, found = hedged(kit.hedger), []

    async def ask(state: State) -> State:
        found.append(("ask", step_scope.get()))
        return {"messages": [await model.ainvoke(state["messages"])]}

    def sync_ask(state: State) -> State:
        found.append(("sync", step_scope.get()))
        return {"log": [model.invoke("s").content]}

    def plain(state: State) -> State:
        found.append(("plain", step_scope.get()))
        return {"log": ["plain"]}

    async def raced(state: State) -> State:
        await asyncio.sleep(1.0)
        return {"log": ["raced"]}

    declared = {"agent_hedge": {"unit": "node", "effect": "read_only", "trigger": "total"}, "mine": 1}
    builder: Builder = StateGraph(State)
    builder.add_sequence([("ask", ask), ("sync", sync_ask), ("plain", plain)])
    builder.add_node("raced", raced, metadata=declared)
    builder.add_edge(START, "ask")
    builder.add_edge("plain", "raced")
    assert kit.hedger.wrap_graph(builder) is builder
    first = {name: spec.runnable for name, spec in builder.nodes.items()}
    kit.hedger.wrap_graph(builder)
    assert {name: spec.runnable for name, spec in builder.nodes.items()} == first, "wrapping twice is wrapping once"
    assert builder.nodes["raced"].metadata == {"mine": 1}
    assert declared["mine"] == 1
    assert "agent_hedge" in declared
    graph = builder.compile()
    result = forcing(lambda: graph.ainvoke(hi()))
    kit.hedger.close()
    assert result["log"] == ["you said s", "plain", "raced"]
    assert [(name, context is not None) for name, context in found] == [
        ("ask", True),
        ("sync", True),
        ("plain", False),
    ]
    nodes = [event.key.node for event in kit.events if isinstance(event, AttemptStarted)]
    assert nodes == ["ask", "ask", "sync", "sync", "raced", "raced"]


def test_wrap_graph_names_what_cannot_be_meant() -> None:
    hedger = Hedger()
    with pytest.raises(ConfigurationError, match="before it is compiled"):
        hedger.wrap_graph(single(lambda state: state).compile())
    with pytest.raises(ConfigurationError, match="must be a mapping"):
        hedger.wrap_graph(single(lambda state: state, metadata={"agent_hedge": 3}))
    with pytest.raises(ConfigurationError, match=r"^node 'ask': node\(\) does not know colour"):
        hedger.wrap_graph(single(lambda state: state, metadata={"agent_hedge": {"unit": "model", "colour": 1}}))
    with pytest.raises(ConfigurationError, match="node 'ask': policy must be"):
        hedger.wrap_graph(single(lambda state: state, metadata={"agent_hedge": {"policy": 0.5}}))


# --- runs opened by configuration -------------------------------------------------------------------------------------


def seeded(hedger: Hedger, runs: list[Any]) -> Any:
    """Return a graph of two nodes and a subgraph that show their runs; one node is plain and asks a hedged model."""
    model = hedged(hedger)

    async def show(state: State) -> State:
        runs.append(current_run())
        await asyncio.sleep(1.0)
        return {"n": state.get("n", 0) + 1}

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    builder: Builder = StateGraph(State)
    inner = single(hedger.node(show), "deep").compile()
    steps: list[Any] = [("first", hedger.node(show)), ("ask", ask), ("sub", inner)]
    builder.add_sequence(steps)
    builder.add_edge(START, "first")
    return builder.compile(checkpointer=InMemorySaver())


@pytest.mark.filterwarnings("ignore:the wrapped node")
@pytest.mark.parametrize("carrier", ["configurable", "metadata"])
def test_r12_a_run_opened_by_configuration(carrier: str) -> None:
    kit = make_kit("model")
    runs: list[Any] = []
    graph = seeded(kit.hedger, runs)
    settings = {"deadline_s": 30, "extra_attempts": 1, "run_key": "k", "tenant": "acme"}

    async def main() -> None:
        config: Any = {"configurable": {"thread_id": "t"}}
        config.setdefault(carrier, {})["agent_hedge"] = settings
        await graph.ainvoke(hi(), config)
        assert current_run() is None

    forcing(main)
    first, deep = runs
    assert first is deep
    assert (first.key, first.tenant, first.extra_attempts) == ("k", "acme", 1)
    assert first.deadline == 30.0
    assert first.steps == 1, "the hedged model in a plain node belongs to it"
    assert {event.run_key for event in kit.events if isinstance(event, StepStarted)} == {"k"}


@pytest.mark.filterwarnings("ignore:the wrapped node")
def test_r12_generations_of_a_run_key() -> None:
    hedger = Hedger()
    runs: list[Any] = []

    async def ask(state: State) -> State:
        run = current_run()
        assert run is not None
        runs.append((run, run.deadline))
        answer = interrupt("?")
        return {"log": [answer]}

    graph = single(hedger.node(ask)).compile(checkpointer=InMemorySaver())

    async def main() -> None:
        config: Any = {"configurable": {"thread_id": "t", "agent_hedge": {"deadline_s": 30, "run_key": "t"}}}
        await graph.ainvoke(hi(), config)
        await asyncio.sleep(1000.0)  # a human thinks
        await graph.ainvoke(Command(resume="yes"), config)
        await graph.ainvoke(hi(), config)

    run_virtual(main)
    (first, at_first), (resumed, at_resume), (fresh, at_fresh) = runs
    assert resumed is first
    assert (at_first, at_resume) == (30.0, 1030.0), "waiting for a human does not count"
    assert fresh is not first
    assert (first.generation, fresh.generation) == (0, 1)
    assert at_fresh == 1030.0


def two_steps(hedger: Hedger, seen: dict[str, list[Any]], *, asks: bool = False) -> Any:
    """Return a graph of two nodes that take a second each and say what is left of their run."""

    async def step(state: State) -> State:
        run = current_run()
        assert run is not None
        seen.setdefault(state["log"][0], []).append((run, run.remaining))
        await asyncio.sleep(1.0)
        return {}

    def ask(state: State) -> State:
        return {"log": [interrupt("?")]} if asks else {}

    builder: Builder = StateGraph(State)
    builder.add_sequence(
        [("before", hedger.node(step)), ("ask", ask), ("one", hedger.node(step)), ("two", hedger.node(step))]
    )
    builder.add_edge(START, "before")
    return builder.compile(checkpointer=InMemorySaver())


@pytest.mark.filterwarnings("ignore:the wrapped node")
def test_r12_invocations_side_by_side_under_one_key_have_a_run_each_and_keep_it() -> None:
    """A user sends twice: the second does not give the first a new deadline at every step."""
    hedger = Hedger()
    seen: dict[str, list[Any]] = {}
    graph = two_steps(hedger, seen)

    async def turn(name: str, after: float) -> None:
        await asyncio.sleep(after)
        seed = {"deadline_s": 30, "run_key": "k"}
        await graph.ainvoke(hi(log=[name]), {"configurable": {"thread_id": name, "agent_hedge": seed}})

    async def main() -> None:
        await asyncio.gather(turn("a", 0.0), turn("b", 0.5))

    run_virtual(main)
    assert [left for _, left in seen["a"]] == [left for _, left in seen["b"]] == [30.0, 29.0, 28.0]
    assert [{run.generation for run, _ in seen[name]} for name in "ab"] == [{0}, {1}]


@pytest.mark.filterwarnings("ignore:the wrapped node")
def test_r12_two_that_resume_one_paused_run_share_it_and_move_its_deadline_once() -> None:
    hedger = Hedger()
    seen: dict[str, list[Any]] = {}
    graph = two_steps(hedger, seen, asks=True)
    seed = {"deadline_s": 30, "run_key": "k"}

    async def main() -> None:
        config: Any = {"configurable": {"thread_id": "t", "agent_hedge": seed}}
        await graph.ainvoke(hi(log=["x"]), config)
        await asyncio.sleep(1000.0)  # a human thinks

        async def resume(after: float) -> None:
            await asyncio.sleep(after)
            await graph.ainvoke(Command(resume="yes"), config)

        await asyncio.gather(resume(0.0), resume(0.5))

    run_virtual(main)
    assert len({id(run) for run, _ in seen["x"]}) == 1
    assert [left for _, left in seen["x"]] == [30.0, 29.0, 28.5, 28.0, 27.5]


@pytest.mark.filterwarnings("ignore:the wrapped node")
def test_r12_without_a_key_every_invocation_has_a_run_of_its_own() -> None:
    hedger = Hedger()
    runs: list[Any] = []
    graph = seeded(hedger, runs)

    async def main() -> None:
        config: Any = {"configurable": {"thread_id": "t", "agent_hedge": {"deadline_s": 30}}}
        await asyncio.gather(graph.ainvoke(hi(), config), graph.ainvoke(hi(), config))

    run_virtual(main)
    assert len({id(run) for run in runs}) == 2


@pytest.mark.filterwarnings("ignore:the wrapped node")
def test_r12_the_deadline_of_configuration_holds() -> None:
    hedger = Hedger()
    model = hedger.chat_model(Target("a", Chat(ttft=9.0)), Target("b", Chat(ttft=9.0)), family="scripted")

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    graph = single(ask).compile()
    with pytest.raises(DeadlineExceeded):
        run_virtual(lambda: graph.ainvoke(hi(), {"configurable": {"agent_hedge": {"deadline_s": 2}}}))


@pytest.mark.filterwarnings("ignore:the wrapped node")
@pytest.mark.parametrize(
    ("seed", "said"),
    [
        (3, r'configurable\["agent_hedge"\] must be a mapping'),
        ({"deadline": 3}, "knows deadline_s"),
        ({"deadline_s": -1}, "deadline must be"),
        ({"deadline_s": "soon"}, "deadline must be"),
        ({"extra_attempts": 1.5}, "extra_attempts must be"),
        ({"run_key": 7}, "key"),
        ({"priority": "high"}, "priority must be"),
        ({"tenant": 5}, "tenant must be a string"),
        ({"principal": ["a"]}, "principal must be a string"),
    ],
)
def test_r20_a_malformed_seed_is_one_error_before_the_first_node(seed: Any, said: str) -> None:
    hedger, ran = Hedger(), []

    @hedger.node
    async def ask(state: State) -> State:
        ran.append(1)
        return {}

    with pytest.raises(ConfigurationError, match=said):
        run_virtual(lambda: single(ask).compile().ainvoke(hi(), {"configurable": {"agent_hedge": seed}}))
    assert not ran


async def _invoke(graph: Any, *given: Any) -> None:
    await graph.ainvoke(*given)


async def _stream(graph: Any, *given: Any) -> None:
    async for _ in graph.astream(*given, stream_mode=["messages", "custom", "updates"], subgraphs=True):
        pass


async def _sync_invoke(graph: Any, *given: Any) -> None:
    graph.invoke(*given)


async def _sync_stream(graph: Any, *given: Any) -> None:
    list(graph.stream(*given, stream_mode="updates"))


def plain_nodes(ran: list[str]) -> dict[str, Any]:
    """Return plain nodes of every form, which can be run sync and async, and say so."""

    def function(state: State) -> State:
        ran.append("function")
        return {}

    class Callable:
        def __call__(self, state: State) -> State:
            ran.append("callable")
            return {}

    return {
        "function": function,
        "callable": Callable(),
        "runnable": RunnableLambda(function),
        "sequence": RunnableLambda(function) | RunnableLambda(function),
        "subgraph": single(function).compile(),
    }


@pytest.mark.parametrize("kind", plain_nodes([]))
@pytest.mark.parametrize("run", [_invoke, _stream, _sync_invoke, _sync_stream])
@pytest.mark.parametrize("carrier", ["configurable", "metadata"])
def test_r20_a_malformed_seed_is_one_error_before_the_plain_nodes_ahead(kind: str, run: Any, carrier: str) -> None:
    hedger, ran = Hedger(), []
    model = hedged(hedger)

    def ask(state: State) -> State:
        ran.append("ask")
        return {"messages": [model.invoke("x")]}

    builder: Builder = StateGraph(State)
    for name in ("left", "right"):  # two at once: no body runs while the other's error is on its way
        builder.add_node(name, plain_nodes(ran)[kind])
        builder.add_edge(START, name)
        builder.add_edge(name, "ask")
    builder.add_node("ask", ask)
    graph = hedger.wrap_graph(builder).compile(checkpointer=InMemorySaver())
    config: Any = {"configurable": {"thread_id": "t"}}
    config.setdefault(carrier, {})["agent_hedge"] = {"deadline_s": -1}
    with pytest.raises(ConfigurationError, match=f'{carrier}\\["agent_hedge"\\]: deadline must be'):
        run_virtual(lambda: run(graph, hi(), config))
    hedger.close()
    assert ran == []


def test_r20_plain_nodes_of_a_wrapped_graph_are_what_they_were() -> None:
    hedger = Hedger()
    ran: list[str] = []
    for kind, node in plain_nodes(ran).items():
        ran.clear()
        builder = single(node, "n")
        before: Any = builder.nodes["n"].runnable
        after: Any = hedger.wrap_graph(builder).nodes["n"].runnable
        if kind in ("function", "callable"):
            assert after.func is before.func is node
            assert repr(after) == repr(before)
        graph = builder.compile()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing is hedged in it, and nobody has asked for that
            run_virtual(partial(graph.ainvoke, hi()))
        assert len(ran) == (2 if kind == "sequence" else 1)


def test_r20_a_tool_node_of_a_wrapped_graph_is_still_one() -> None:
    hedger = Hedger()
    builder = paying(hedger)
    plain: Any = builder.nodes["tools"].runnable
    tools: Any = hedger.wrap_graph(builder).nodes["tools"].runnable
    assert isinstance(tools, ToolNode)
    assert tools is not plain, "one that is used elsewhere as well stays as it is"
    assert tools.tools_by_name == plain.tools_by_name
    assert not hedger.explain(builder)["tools"].verdicts["node"].hedgeable
    call = {"name": "pay", "args": {"amount": 1}, "id": "call_1"}
    graph = hedger.wrap_graph(single(ToolNode([pay]), "tools")).compile()
    for config, error in (({}, None), ({"configurable": {"agent_hedge": {"deadline_s": -1}}}, "deadline must be")):
        given = {"messages": [AIMessage("", tool_calls=[call])]}
        if error is None:
            result = run_virtual(partial(graph.ainvoke, given, config))
            assert result["messages"][-1].content == "paid"
        else:
            with pytest.raises(ConfigurationError, match=error):
                run_virtual(partial(graph.ainvoke, given, config))


def test_r12_the_clock_of_a_wrapped_graph_starts_at_its_first_node_plain_or_not() -> None:
    hedger = Hedger()
    runs: list[Any] = []
    model = hedged(hedger)

    async def prepare(state: State) -> State:
        runs.append(current_run())
        await asyncio.sleep(1.0)
        return {}

    async def ask(state: State) -> State:
        runs.append(current_run())
        return {"messages": [await model.ainvoke("x")]}

    builder: Builder = StateGraph(State)
    builder.add_sequence([("prepare", prepare), ("ask", ask)])
    builder.add_edge(START, "prepare")
    graph = hedger.wrap_graph(builder).compile()
    config: Any = {"configurable": {"agent_hedge": {"deadline_s": 30}}}
    run_virtual(lambda: graph.ainvoke(hi(), config))
    first, second = runs
    assert first is second
    assert first.deadline == 30.0


def asking_after_a_pause(hedger: Hedger, runs: list[Any], *, by: str) -> Any:
    """Return a wrapped graph that stops between a plain node and one that asks a model."""
    model = hedged(hedger)

    async def prepare(state: State) -> State:
        await asyncio.sleep(1.0)
        runs.append((current_run(), current_run().deadline))  # type: ignore[union-attr]
        if by == "interrupt":
            interrupt("?")
        return {}

    async def ask(state: State) -> State:
        runs.append((current_run(), current_run().deadline))  # type: ignore[union-attr]
        return {"messages": [await model.ainvoke("x")]}

    builder: Builder = StateGraph(State)
    builder.add_sequence([("prepare", prepare), ("ask", ask)])
    builder.add_edge(START, "prepare")
    before = ["ask"] if by == "interrupt_before" else []
    return hedger.wrap_graph(builder).compile(checkpointer=InMemorySaver(), interrupt_before=before)


@pytest.mark.parametrize("by", ["interrupt_before", "interrupt"])
def test_r12_waiting_for_a_human_does_not_count_however_the_graph_was_stopped(by: str) -> None:
    hedger = Hedger()
    runs: list[Any] = []
    graph = asking_after_a_pause(hedger, runs, by=by)
    config: Any = {"configurable": {"thread_id": "t", "agent_hedge": {"deadline_s": 30, "run_key": "t"}}}

    async def main() -> None:
        await graph.ainvoke(hi(), config)
        await asyncio.sleep(1000.0)  # a human thinks
        await graph.ainvoke(Command(resume="yes") if by == "interrupt" else None, config)

    run_virtual(main)
    (first, at_first), *_, (resumed, at_resume) = runs
    assert resumed is first
    assert (at_first, at_resume) == (30.0, 1030.0)


@pytest.mark.filterwarnings("ignore:the wrapped node")
def test_an_open_scope_comes_before_configuration() -> None:
    hedger = Hedger()
    runs: list[Any] = []
    graph = seeded(hedger, runs)

    async def main() -> None:
        async with hedger.run(key="outer") as run:
            config: Any = {"configurable": {"thread_id": "t", "agent_hedge": {"deadline_s": 30}}}
            await graph.ainvoke(hi(), config)
            assert set(runs) == {run}

    run_virtual(main)


# --- draining ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrap", [False, True])
def test_r04_no_hedge_while_the_graph_drains(wrap: bool) -> None:
    kit = make_kit("model", policy=Fixed(0.02))
    model, control = hedged(kit.hedger), RunControl()

    async def ask(state: State) -> State:
        asyncio.get_running_loop().call_later(0.01, control.request_drain)
        return {"messages": [await model.ainvoke("x")]}

    graph = single(kit.hedger.node(ask) if wrap else ask).compile()
    run_virtual(lambda: graph.ainvoke(hi(), control=control))
    assert reasons(kit) == [Reason.DRAINING]
    assert kit.hedges == 0
