"""Streams: with hedging on, the caller sees exactly what an unhedged run shows (issue 5, D1)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import StreamWriter

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, checkpoints, everything, thread


def asking(kit: Kit, name: str = "llm") -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        get_stream_writer()({"before": name})
        answer = await model.ainvoke(state["messages"])
        get_stream_writer()({"after": answer.content})
        return {"messages": [answer], "log": [name]}

    ask.__name__ = name
    return kit.node(ask)


def chain(kit: Kit, *names: str) -> StateGraph[Any, Any, Any, Any]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_sequence([(name, asking(kit, name)) for name in names])
    builder.add_edge(START, names[0])
    return builder


def hi(text: str = "hi") -> State:
    return {"messages": [HumanMessage(text, id="q")], "log": []}


async def every_mode(kit: Kit) -> Any:
    graph = chain(kit, "one", "two").compile(checkpointer=InMemorySaver())
    return [await everything(graph, hi(), thread()), await checkpoints(graph, thread())]


async def tokens_of_astream(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        parts = [part.content async for part in model.astream(state["messages"])]
        return {"log": parts}

    builder = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    return await everything(builder.compile(), hi())


async def subgraph_as_node(kit: Kit) -> Any:
    inner = plain_inner(kit)
    builder = StateGraph(State)
    builder.add_node("sub", kit.node(inner))
    builder.add_node("end", asking(kit, "end"))
    builder.add_edge(START, "sub")
    builder.add_edge("sub", "end")
    graph = builder.compile(checkpointer=InMemorySaver())
    return [await everything(graph, hi(), thread()), await checkpoints(graph, thread())]


async def wrapped_nodes_in_a_subgraph(kit: Kit) -> Any:
    inner = chain(kit, "inner_one", "inner_two").compile()
    builder = StateGraph(State)
    builder.add_node("sub", inner)
    builder.add_node("end", asking(kit, "end"))
    builder.add_edge(START, "sub")
    builder.add_edge("sub", "end")
    graph = builder.compile(checkpointer=InMemorySaver())
    return [await everything(graph, hi(), thread()), await checkpoints(graph, thread())]


def plain_inner(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        get_stream_writer()({"inner": True})
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(State)
    builder.add_node("inner_one", ask)
    builder.add_edge(START, "inner_one")
    return builder.compile()


async def subgraph_called(kit: Kit) -> Any:
    inner = plain_inner(kit)

    async def call(state: State) -> State:
        found = await inner.ainvoke({"messages": state["messages"]})
        again = await inner.ainvoke({"messages": found["messages"]})
        return {"messages": again["messages"]}

    builder = StateGraph(State)
    builder.add_node("call", kit.node(call))
    builder.add_edge(START, "call")
    graph = builder.compile(checkpointer=InMemorySaver())
    return [await everything(graph, hi(), thread()), await checkpoints(graph, thread())]


async def subgraph_in_the_branch_after_the_node(kit: Kit) -> Any:
    inner, saver = plain_inner(kit), InMemorySaver()

    async def call(state: State) -> State:
        return {"messages": (await inner.ainvoke({"messages": state["messages"]}))["messages"]}

    async def onwards(state: State) -> str:
        await inner.ainvoke({"messages": state["messages"]})
        return "end"

    builder = StateGraph(State)
    builder.add_node("call", kit.node(call))
    builder.add_node("end", lambda _: {"log": ["end"]})
    builder.add_edge(START, "call")
    builder.add_conditional_edges("call", onwards, ["end"])
    result = await builder.compile(checkpointer=saver).ainvoke(hi(), thread())
    return [result, [each.config["configurable"]["checkpoint_ns"] for each in saver.list(thread())]]


async def runnable_as_node(kit: Kit) -> Any:
    prompt = ChatPromptTemplate.from_messages([("system", "be brief"), ("placeholder", "{messages}")])
    steps = prompt | kit.chat() | RunnableLambda(lambda answer: {"messages": [answer]})
    builder = StateGraph(State)
    builder.add_node("chain", kit.node(steps))
    builder.add_edge(START, "chain")
    return await everything(builder.compile(), hi())


async def injected_writer_and_runtime(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State, runtime: Runtime[Any], *, writer: StreamWriter) -> State:
        writer({"writer": 1})
        runtime.stream_writer({"runtime": 2})
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    return await everything(builder.compile(), hi())


async def parallel_branches(kit: Kit) -> Any:
    builder = StateGraph(State)
    for name in ("left", "right"):
        builder.add_node(name, asking(kit, name))
        builder.add_edge(START, name)
    parts = await everything(builder.compile(), hi())
    return by_content(parts)


def by_content(parts: list[Any]) -> list[Any]:
    """Return what does not depend on which of two parallel branches is faster, in a fixed order."""
    whole = [part[2] for part in parts if part[1] in ("updates", "values")]
    said = [part[2] for part in parts if part[1] == "custom"]
    tokens = sorted(part[2][0].content for part in parts if part[1] == "messages")
    return [sorted(whole, key=sorted), sorted(said, key=str), tokens]


async def events_v2(kit: Kit) -> Any:
    graph = chain(kit, "one", "two").compile()
    return [event async for event in graph.astream_events(hi(), version="v2")]


async def events_v3(kit: Kit) -> Any:
    graph: Any = chain(kit, "one", "two").compile()
    stream = await graph.astream_events(hi(), version="v3")
    return [{key: event[key] for key in ("method", "params")} async for event in stream]


async def no_stream_at_all(kit: Kit) -> Any:
    return await chain(kit, "one", "two").compile().ainvoke(hi())


async def several_tasks_inside(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        answers = await asyncio.gather(model.ainvoke("a"), model.ainvoke("b"))
        return {"messages": list(answers)}

    builder = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    parts = await everything(builder.compile(), hi())
    return [part for part in parts if part[1] != "messages"]


@pytest.mark.parametrize(
    "scenario",
    [
        every_mode,
        tokens_of_astream,
        subgraph_as_node,
        subgraph_called,
        wrapped_nodes_in_a_subgraph,
        subgraph_in_the_branch_after_the_node,
        runnable_as_node,
        injected_writer_and_runtime,
        parallel_branches,
        events_v3,
        no_stream_at_all,
        several_tasks_inside,
    ],
)
def test_r05_streams(scenario: Any) -> None:
    conforms(scenario)


def test_r05_astream_events_v2() -> None:
    """At the node they cannot be held back, so that a raced node runs alone; a hedged model is clean."""
    conforms(events_v2, hedges_at_node=False)
