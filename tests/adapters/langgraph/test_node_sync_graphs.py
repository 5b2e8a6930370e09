"""Sync graphs, unhedged and hedged with each attempt winning in turn: the caller sees the same (issue 5, D1 and 7).

At the model losers are tasks of the background loop; at the node they are threads that look whether they are wanted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Literal

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.errors import NodeError
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy, Send, interrupt

from agent_hedge.core.scope import Forced, forced
from tests.adapters.langgraph.conforming import first_difference
from tests.adapters.langgraph.graph_kit import MODES, Chat, Kit, State, Unit, echo, everything, make_kit, normal, thread

pytestmark = pytest.mark.filterwarnings("ignore:the node")
Builder = StateGraph[Any, Any, Any, Any]


def hi(**more: Any) -> Any:
    return {"messages": [HumanMessage("hi", id="q")], "log": [], **more}


def node(kit: Kit, action: Any) -> Any:
    return kit.node(action, cancellable=True) if kit.unit == "node" else kit.node(action)


def one(kit: Kit, action: Any, **settings: Any) -> Builder:
    builder: Builder = StateGraph(State)
    builder.add_node("ask", node(kit, action), **settings)
    builder.add_edge(START, "ask")
    return builder


def quick(kit: Kit, answer: Any = echo) -> Any:
    """Return a model that answers soon: the time is real here."""
    return kit.chat(answer, ttft=0.01)


def shown(graph: Any, given: Any, config: RunnableConfig | None = None, **settings: Any) -> list[Any]:
    """Return every stream part of a run, subgraphs included; an error comes last."""
    parts: list[Any] = []
    try:
        for part in graph.stream(given, config, stream_mode=MODES, subgraphs=True, **settings):
            parts.append(part)  # noqa: PERF402 - what came before an error counts
    except Exception as error:
        parts.append(error)
    return parts


def kept(graph: Any) -> list[Any]:
    return [graph.get_state(thread(), subgraphs=True), list(graph.get_state_history(thread()))]


def asks(kit: Kit, answer: Any = echo) -> Any:
    model = quick(kit, answer)

    def ask(state: State) -> State:
        get_stream_writer()({"asks": 1})
        return {"messages": [model.invoke(state["messages"])]}

    return ask


def every_mode(kit: Kit) -> Any:
    graph = one(kit, asks(kit)).compile(checkpointer=InMemorySaver())
    return [shown(graph, hi(), thread()), kept(graph)]


def tokens_of_stream(kit: Kit) -> Any:
    model = quick(kit)

    def ask(state: State) -> State:
        return {"log": [chunk.content for chunk in model.stream(state["messages"])]}

    return shown(one(kit, ask).compile(), hi())


def events_v3(kit: Kit) -> Any:
    graph: Any = one(kit, asks(kit)).compile()
    return [{key: event[key] for key in ("method", "params")} for event in graph.stream_events(hi(), version="v3")]


def command(kit: Kit) -> Any:
    model = quick(kit)

    def ask(state: State) -> Command[Literal["after"]]:
        return Command(goto="after", update={"messages": [model.invoke(state["messages"])]})

    builder = one(kit, ask)
    builder.add_node("after", lambda _: {"log": ["after"]})
    return shown(builder.compile(), hi())


def parent_command(kit: Kit) -> Any:
    model = quick(kit)

    def ask(state: State) -> Any:
        said = model.invoke(state["messages"]).content
        return Command(graph=Command.PARENT, goto="after", update={"log": [said]})

    builder: Builder = StateGraph(State)
    builder.add_node("sub", one(kit, ask).compile(), destinations=("after",))
    builder.add_node("after", lambda _: {"log": ["after"]})
    builder.add_edge(START, "sub")
    return shown(builder.compile(), hi())


def map_reduce(kit: Kit) -> Any:
    model = quick(kit)

    def work(state: State) -> State:
        return {"log": [model.invoke(f"part {state['n']}").content]}

    builder: Builder = StateGraph(State)
    builder.add_node("work", node(kit, work))
    builder.add_node("reduce", lambda state: {"n": len(state["log"])}, defer=True)
    builder.add_conditional_edges(START, lambda _: [Send("work", {"n": n}) for n in range(8)], ["work"])
    builder.add_edge("work", "reduce")
    return builder.compile().invoke(hi())


def a_retry(kit: Kit) -> Any:
    model = quick(kit)

    def ask(state: State, runtime: Runtime[Any]) -> State:
        answer = model.invoke(state["messages"])
        if runtime.execution_info.node_attempt < 2:  # type: ignore[union-attr]
            raise ConnectionError
        return {"messages": [answer]}

    policy = RetryPolicy(initial_interval=0.01, jitter=False)
    return shown(one(kit, ask, retry_policy=policy).compile(), hi())


def a_failure(kit: Kit) -> Any:
    graph = one(kit, asks(kit, lambda _: ValueError("no"))).compile(checkpointer=InMemorySaver())
    return [shown(graph, hi(), thread()), kept(graph)]


def an_error_handler(kit: Kit) -> Any:
    def handle(state: State, error: NodeError) -> State:
        return {"log": [type(error.error).__name__]}

    return shown(one(kit, asks(kit, lambda _: ValueError("no")), error_handler=handle).compile(), hi())


def the_recursion_limit(kit: Kit) -> Any:
    builder = one(kit, asks(kit))
    builder.add_edge("ask", "ask")
    return shown(builder.compile(), hi(), {"recursion_limit": 3})


def a_wrapped_node_of_a_subgraph(kit: Kit) -> Any:
    builder: Builder = StateGraph(State)
    builder.add_node("sub", one(kit, asks(kit)).compile())
    builder.add_edge(START, "sub")
    graph = builder.compile(checkpointer=InMemorySaver())
    return [shown(graph, hi(), thread()), kept(graph)]


def a_wrapped_subgraph(kit: Kit) -> Any:
    inner: Builder = StateGraph(State)
    inner.add_node("ask", asks(kit))
    inner.add_edge(START, "ask")
    graph = one(kit, inner.compile()).compile(checkpointer=InMemorySaver())
    return [shown(graph, hi(), thread()), kept(graph)]


def a_runnable(kit: Kit) -> Any:
    steps = RunnableLambda(lambda state: state["messages"]) | quick(kit) | (lambda answer: {"messages": [answer]})
    return shown(one(kit, steps).compile(), hi())


def in_an_async_graph(kit: Kit) -> Any:
    return asyncio.run(everything(one(kit, asks(kit)).compile(checkpointer=InMemorySaver()), hi(), thread()))


EVERYWHERE: list[Callable[[Kit], Any]] = [
    every_mode,
    tokens_of_stream,
    events_v3,
    command,
    parent_command,
    map_reduce,
    a_retry,
    a_failure,
    an_error_handler,
    the_recursion_limit,
    a_wrapped_node_of_a_subgraph,
    a_wrapped_subgraph,
    a_runnable,
    in_an_async_graph,
]


def an_interrupt(kit: Kit) -> Any:
    model = quick(kit)

    def ask(state: State) -> State:
        return {"log": [interrupt(model.invoke(state["messages"]).content)]}

    graph = one(kit, ask).compile(checkpointer=InMemorySaver())
    return [shown(graph, hi(), thread()), shown(graph, Command(resume=1), thread()), kept(graph)]


@tool
def look(q: str) -> str:
    """Look something up."""
    return f"found {q}"


def looks(messages: list[BaseMessage]) -> AIMessage:
    if isinstance(messages[-1], ToolMessage):
        return AIMessage(f"it says {messages[-1].content}")
    return AIMessage("", tool_calls=[{"name": "look", "args": {"q": "x"}, "id": "call"}])


def an_agent(kit: Kit) -> Any:
    human = HumanInTheLoopMiddleware(interrupt_on={"look": True})
    agent: Any = create_agent(quick(kit, looks), [look], middleware=[human], checkpointer=InMemorySaver())
    approved: Any = Command(resume={"decisions": [{"type": "approve"}]})
    return [shown(agent, hi(), thread()), shown(agent, approved, thread()), kept(agent)]


def an_agent_with_the_middleware(kit: Kit) -> Any:
    second = Chat(answer=looks, ttft=0.01)
    hedging = [] if kit.unit == "plain" else [kit.hedger.middleware(second, family="scripted")]
    agent: Any = create_agent(Chat(answer=looks, ttft=0.01), [look], middleware=hedging, checkpointer=InMemorySaver())
    return [shown(agent, hi(), thread(), durability="sync"), kept(agent)]


def a_workflow(kit: Kit) -> Any:
    model = quick(kit)

    def body(function: Any) -> Any:
        return kit.hedger.task(function) if kit.unit == "model" else function

    def ask(text: str) -> str:
        return str(model.invoke(text).content)

    asking: Any = task(body(ask))

    def flow(text: str, *, previous: Any) -> Any:
        first = asking(text).result()
        answer = interrupt(first)
        return entrypoint.final(value=[first, answer, asking("after").result(), previous], save=first)

    workflow: Any = entrypoint(checkpointer=InMemorySaver())(body(flow))
    return [shown(workflow, "one", thread()), shown(workflow, Command(resume=1), thread()), kept(workflow)]


AT_THE_MODEL: list[Callable[[Kit], Any]] = [an_interrupt, an_agent, an_agent_with_the_middleware, a_workflow]
"""At the node they may interrupt, or have no node of ours."""


def play(scenario: Callable[[Kit], Any], unit: Unit, winner: int | None = None) -> tuple[Any, Kit]:
    kit = make_kit(unit)
    token = forced.set(None if winner is None else Forced(hedge=True, winner=winner))
    try:
        return normal(scenario(kit)), kit
    finally:
        forced.reset(token)
        kit.hedger.close()


@pytest.mark.parametrize(
    ("scenario", "unit"),
    [(each, unit) for each in EVERYWHERE for unit in ("model", "node")] + [(each, "model") for each in AT_THE_MODEL],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_r05_sync_graphs(scenario: Callable[[Kit], Any], unit: Unit) -> None:
    expected, _ = play(scenario, "plain")
    for winner in (None, 0, 1):
        seen, kit = play(scenario, unit, winner)
        assert seen == expected, f"winner={winner}: {first_difference(seen, expected)}"
        assert kit.unended == 0
        assert (kit.hedges > 0) == (winner is not None)
