"""Where a call stands: the graphs around it, read through private names of LangGraph. When one of these fails after an
upgrade, `adapters/langgraph/site.py` no longer finds the way up: keys then lack the parent chain, and more calls end in
doubt than need be."""

from __future__ import annotations

import asyncio
import time
import uuid
import warnings
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import RetryPolicy

from agent_hedge import Hedger
from agent_hedge.adapters.langgraph import site as sites
from agent_hedge.core.step import Effect
from agent_hedge.errors import EffectInDoubt
from agent_hedge.tools.effect import tool_effect
from agent_hedge.tools.site import Site

GIVEN: Any = {"messages": [HumanMessage("Go.")]}
THREAD: RunnableConfig = {"configurable": {"thread_id": "t"}}
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["invoke", "ainvoke"])


def run(graph: Any, given: Any, asynchronous: bool, **settings: Any) -> Any:
    if asynchronous:
        return asyncio.run(graph.ainvoke(given, THREAD, **settings))
    return graph.invoke(given, THREAD, **settings)


def nested(seen: list[Site], *, fails: int = 0, timeout: float | None = None) -> Any:
    @tool
    def look() -> str:
        """Look around."""
        seen.append(sites.here("c1"))
        if len(seen) <= fails:
            raise ConnectionError
        return "seen"

    inner: Any = StateGraph(MessagesState)
    inner.add_node(
        "model", lambda _: {"messages": [AIMessage("", tool_calls=[{"name": "look", "args": {}, "id": "c1"}])]}
    )
    inner.add_node("tools", ToolNode([look], handle_tool_errors=False), timeout=timeout)
    inner.add_edge(START, "model")
    inner.add_edge("model", "tools")
    outer: Any = StateGraph(MessagesState)
    outer.add_node("before", lambda _: {})
    retry = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False)
    outer.add_node("agent", inner.compile(), retry_policy=retry, timeout=timeout)
    outer.add_edge(START, "before")
    outer.add_edge("before", "agent")
    return outer.compile(checkpointer=InMemorySaver())


@both
def test_the_chain_of_graphs_is_read(asynchronous: bool) -> None:
    seen: list[Site] = []
    graph = nested(seen)
    for _ in range(2):
        run(graph, GIVEN, asynchronous, durability="sync")
    first, second = seen
    assert [frame.place[:2] for frame in first.frames] == [("agent", 2), ("tools", 2)]
    assert (first.thread, first.durability, first.persistent) == ("t", "sync", True)
    assert (first.history, first.siblings) == ({"c1": 1}, frozenset({"c1"}))
    assert abs(first.born - time.time()) < 60
    assert first.frames[0].step < second.frames[0].step  # the thread's steps go on
    assert not {frame.execution for frame in first.frames} & {frame.execution for frame in second.frames}
    assert second.history["c1"] == 2


def test_the_chain_of_graphs_is_read_from_nodes_with_a_time_out() -> None:
    plain: list[Site] = []
    timed: list[Site] = []
    run(nested(plain), GIVEN, True)
    run(nested(timed, timeout=60.0), GIVEN, True)
    assert [frame.place for frame in timed[0].frames] == [frame.place for frame in plain[0].frames]
    assert len(timed[0].frames) == 2


@both
def test_retries_are_seen_at_every_depth(asynchronous: bool) -> None:
    seen: list[Site] = []
    run(nested(seen, fails=2), GIVEN, asynchronous)
    assert [site.frames[0].attempt for site in seen] == [1, 2, 3]
    assert len({site.frames[0].execution for site in seen}) == 1
    assert len({site.frames[0].task for site in seen}) == 1
    assert len({site.places for site in seen}) == 1  # the key stays


def test_outside_any_graph_there_is_nothing() -> None:
    assert sites.here() == Site()
    assert not sites.in_a_node()


# --- functions that no message names, over a restart


def notifying(hedger: Hedger, sent: list[str], saver: InMemorySaver) -> Any:
    @hedger.once
    def notify() -> str:
        sent.append("sent")
        return "sent"

    @hedger.once
    async def anotify() -> str:
        sent.append("sent")
        return "sent"

    async def anode(_: Any) -> Any:
        await anotify()
        return {"messages": [AIMessage("told")]}

    def node(_: Any) -> Any:
        notify()
        return {"messages": [AIMessage("told")]}

    from langgraph._internal._runnable import RunnableCallable

    builder: Any = StateGraph(MessagesState)
    builder.add_node("node", RunnableCallable(node, anode, name="node", trace=False))
    builder.add_edge(START, "node")
    return builder.compile(checkpointer=saver)


@both
def test_r11_a_step_that_the_checkpointer_has_kept_is_confirmed_after_a_restart(
    asynchronous: bool, tmp_path: Path
) -> None:
    saver, sent = InMemorySaver(), list[str]()
    for turn in range(3):  # each time another process, as far as the ledger can see
        hedger = Hedger(f"sqlite:///{tmp_path / 'ledger.db'}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run(notifying(hedger, sent, saver), GIVEN, asynchronous)
        hedger.close()
        assert len(sent) == turn + 1


@both
def test_r11_a_step_that_the_checkpointer_has_lost_is_not(asynchronous: bool, tmp_path: Path) -> None:
    sent = list[str]()
    for saver in (InMemorySaver(), InMemorySaver()):  # the second remembers nothing
        hedger = Hedger(f"sqlite:///{tmp_path / 'ledger.db'}")
        graph = notifying(hedger, sent, saver)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if not sent:
                run(graph, GIVEN, asynchronous)
                hedger.close()
                continue
            run(graph, {"messages": []}, asynchronous)  # the same place: the stored result
            assert len(sent) == 1
            with pytest.raises(EffectInDoubt):  # another place, and the first is not behind it
                run(graph, {"messages": []}, asynchronous)
        hedger.close()
    assert len(sent) == 1


# --- several calls in doubt in one step


@both
def test_r11_parallel_calls_in_doubt_are_answered_by_their_keys(asynchronous: bool) -> None:
    from langgraph.types import Command

    hedger, paid = Hedger(on_in_doubt="interrupt"), list[int]()

    @tool_effect(Effect.ONCE)
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        if len(paid) <= 2:
            raise ConnectionError
        return f"paid {amount}"

    asked = [{"name": "pay", "args": {"amount": n}, "id": f"call-{uuid.uuid4()}"} for n in (1, 2)]
    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", lambda _: {"messages": [AIMessage("", tool_calls=asked)]})
    builder.add_node("tools", hedger.tool_node([pay]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    graph = builder.compile(checkpointer=InMemorySaver())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(EffectInDoubt):
            run(graph, GIVEN, asynchronous)
        given: Any = None
        for _ in range(8):
            state = run(graph, given, asynchronous)
            if not (questions := state.get("__interrupt__")):
                break
            (key,) = questions[0].value["answers"]
            given = Command(resume={"key": key, "answer": "happened"})
        else:
            pytest.fail("it never ends")
    assert sorted(paid) == [1, 2]
    assert all("carried out before" in str(message.content) for message in state["messages"][-2:])
    hedger.close()
