"""Control flow: interrupts, commands, fan-out, retries, timeouts, caches, drains, time travel (issue 5, D1)."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.cache.memory import InMemoryCache
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError, NodeError
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import RunControl, Runtime
from langgraph.types import CachePolicy, Command, RetryPolicy, Send, interrupt

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, Unit, checkpoints, everything, play, thread

Builder = StateGraph[Any, Any, Any, Any]


def hi(**more: Any) -> Any:
    return {"messages": [HumanMessage("hi", id="q")], "log": [], **more}


def one(kit: Kit, action: Any, **settings: Any) -> Builder:
    """Return a builder with this one node, wrapped as the kit says."""
    builder: Builder = StateGraph(State)
    builder.add_node("ask", kit.node(action), **settings)
    builder.add_edge(START, "ask")
    return builder


# --- interrupts -----------------------------------------------------------------------------------


async def interrupt_and_resume(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        draft = await model.ainvoke(state["messages"])
        first = interrupt({"approve": draft.content})
        second = interrupt("really?")
        return {"messages": [draft], "log": [first, second]}

    graph = one(kit, ask).compile(checkpointer=InMemorySaver())
    seen = [await everything(graph, hi(), thread())]
    for answer in ("yes", "sure"):
        seen += [await checkpoints(graph, thread()), await everything(graph, Command(resume=answer), thread())]
    return [*seen, await checkpoints(graph, thread())]


async def interrupts_of_parallel_branches(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        await model.ainvoke("x")
        return {"log": [(state["n"], interrupt(f"number {state['n']}"))]}

    builder: Builder = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_conditional_edges(START, lambda _: [Send("ask", {"n": n}) for n in range(3)], ["ask"])
    graph = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke(hi(), thread())
    asked = (await graph.aget_state(thread())).interrupts
    answers = {each.id: f"answer to {each.value}" for each in asked}
    result = await graph.ainvoke(Command(resume=answers), thread())
    return [sorted(each.value for each in asked), sorted(result["log"])]


async def interrupt_before_the_node(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    graph = one(kit, ask).compile(checkpointer=InMemorySaver(), interrupt_before=["ask"])
    return [
        await everything(graph, hi(), thread()),
        await everything(graph, None, thread()),
        await checkpoints(graph, thread()),
    ]


async def interrupt_after_the_node(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = one(kit, ask)
    builder.add_node("after", lambda _: {"log": ["after"]})
    builder.add_edge("ask", "after")
    graph = builder.compile(checkpointer=InMemorySaver(), interrupt_after=["ask"])
    seen = [await everything(graph, hi(), thread()), await checkpoints(graph, thread())]
    return [*seen, await everything(graph, None, thread()), await checkpoints(graph, thread())]


def asks_a_person(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        answer = await model.ainvoke(state["messages"])
        return {"messages": [answer], "log": [interrupt(answer.content)]}

    return ask


async def interrupt_in_a_wrapped_subgraph(kit: Kit) -> Any:
    inner: Builder = StateGraph(State)
    inner.add_node("ask", asks_a_person(kit))
    inner.add_edge(START, "ask")
    graph = one(kit, inner.compile()).compile(checkpointer=InMemorySaver())
    seen = [await everything(graph, hi(), thread()), await checkpoints(graph, thread())]
    return [*seen, await everything(graph, Command(resume="ok"), thread()), await checkpoints(graph, thread())]


async def interrupt_in_a_wrapped_node_of_a_subgraph(kit: Kit) -> Any:
    """The state of the paused subgraph is written, the graph resumed, and run again from before it."""
    model = kit.chat()

    async def draft(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    inner: Builder = StateGraph(State)
    inner.add_sequence([("draft", kit.node(draft)), ("ask", kit.node(asks_a_person(kit)))])
    inner.add_edge(START, "draft")
    builder: Builder = StateGraph(State)
    builder.add_node("sub", inner.compile())
    builder.add_edge(START, "sub")
    graph = builder.compile(checkpointer=InMemorySaver())
    seen = [await everything(graph, hi(), thread())]
    paused: Any = (await graph.aget_state(thread(), subgraphs=True)).tasks[0].state
    await graph.aupdate_state(paused.config, {"log": ["written"]})
    seen += [await checkpoints(graph, thread()), await everything(graph, Command(resume="ok"), thread())]
    forks = [each.config async for each in graph.aget_state_history(thread()) if each.next == ("sub",)]
    return [*seen, await everything(graph, None, forks[0])]


async def resume_with_an_update_and_a_goto(kit: Kit) -> Any:
    builder = one(kit, asks_a_person(kit))
    builder.add_node("after", lambda _: {"log": ["after"]})
    graph = builder.compile(checkpointer=InMemorySaver())
    seen = [await everything(graph, hi(), thread())]
    seen.append(await everything(graph, Command(resume="ok", update={"log": ["updated"]}), thread()))
    seen.append(await everything(graph, Command(goto="after", update={"log": ["more"]}), thread()))
    return [*seen, await checkpoints(graph, thread())]


def beside(what: Any) -> Any:
    async def slow_beside_another(kit: Kit) -> Any:
        model = kit.chat(ttft=5.0)

        async def slow(state: State) -> State:
            return {"messages": [await model.ainvoke(state["messages"])]}

        async def other(state: State) -> State:
            await asyncio.sleep(1.0)
            return what()  # type: ignore[no-any-return]

        builder = one(kit, slow)
        builder.add_node("other", other)
        builder.add_edge(START, "other")
        graph = builder.compile(checkpointer=InMemorySaver())
        seen = [await everything(graph, hi(), thread()), await checkpoints(graph, thread())]
        if what is question:
            seen += [await everything(graph, Command(resume=1), thread()), await checkpoints(graph, thread())]
        return seen

    slow_beside_another.__name__ = f"beside_a_{what.__name__}"
    return slow_beside_another


def failure() -> State:
    raise ValueError("no")


def question() -> State:
    return {"log": [interrupt("which?")]}


# --- commands and fan-out -----------------------------------------------------------------------------------------


async def goto_and_update(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> Command[Literal["left", "right"]]:
        answer = await model.ainvoke(state["messages"])
        return Command(goto="right" if "hi" in answer.content else "left", update={"messages": [answer]})

    builder = one(kit, ask)
    for name in ("left", "right"):
        builder.add_node(name, lambda _, name=name: {"log": [name]})
    return await everything(builder.compile(), hi())


async def parent_command(kit: Kit) -> Any:
    model = kit.chat()

    async def leave(state: State) -> Any:
        answer = await model.ainvoke(state["messages"])
        return Command(graph=Command.PARENT, goto="after", update={"log": [answer.content]})

    inner: Builder = StateGraph(State)
    inner.add_node("leave", kit.node(leave))
    inner.add_edge(START, "leave")
    builder: Builder = StateGraph(State)
    builder.add_node("sub", inner.compile(), destinations=("after",))
    builder.add_node("after", lambda _: {"log": ["after"]})
    builder.add_edge(START, "sub")
    return await everything(builder.compile(), hi())


async def map_reduce(kit: Kit) -> Any:
    model = kit.chat()

    async def work(state: State) -> State:
        return {"log": [(await model.ainvoke(f"part {state['n']}")).content]}

    builder: Builder = StateGraph(State)
    builder.add_node("work", kit.node(work))
    builder.add_node("reduce", lambda state: {"n": len(state["log"])}, defer=True)
    builder.add_conditional_edges(START, lambda _: [Send("work", {"n": n}) for n in range(20)], ["work"])
    builder.add_edge("work", "reduce")
    return await builder.compile().ainvoke(hi())


async def at_most_two_at_once(kit: Kit) -> Any:
    model, running = kit.chat(), [0]

    async def work(state: State) -> State:
        running.append(running[-1] + 1)
        answer = await model.ainvoke(f"part {state['n']}")
        running.append(running[-1] - 1)
        return {"log": [answer.content]}

    builder: Builder = StateGraph(State)
    builder.add_node("work", kit.node(work))
    builder.add_conditional_edges(START, lambda _: [Send("work", {"n": n}) for n in range(5)], ["work"])
    result = await builder.compile().ainvoke(hi(), {"max_concurrency": 2})
    assert kit.unit == "node" or max(running) == 2, "a raced node is one task for LangGraph"
    return result


async def a_loop_over_a_subgraph(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])], "n": state["n"] + 1}

    builder: Builder = StateGraph(State)
    builder.add_node("sub", one(kit, ask).compile())
    builder.add_edge(START, "sub")
    builder.add_conditional_edges("sub", lambda state: END if state["n"] > 1 else "sub", ["sub", END])
    graph = builder.compile(checkpointer=InMemorySaver())
    return [await everything(graph, hi(n=0), thread()), await checkpoints(graph, thread())]


async def a_subgraph_that_remembers(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])], "log": [len(state["messages"])]}

    builder: Builder = StateGraph(State)
    builder.add_node("sub", one(kit, ask).compile(checkpointer=True))
    builder.add_edge(START, "sub")
    graph = builder.compile(checkpointer=InMemorySaver())
    again: Any = {"messages": [HumanMessage("again", id="q2")]}
    turns = [await everything(graph, given, thread()) for given in (hi(), again)]
    return [*turns, await checkpoints(graph, thread())]


async def send_from_a_raced_node(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> Any:
        answer = await model.ainvoke(state["messages"])
        return Command(goto=[Send("work", {"n": n}) for n in range(2)], update={"log": [answer.content]})

    builder = one(kit, ask, destinations=("work",))
    builder.add_node("work", lambda state: {"log": [state["n"]]})
    return await builder.compile().ainvoke(hi())


async def loop_until_the_limit(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"n": state["n"] + 1, "log": [(await model.ainvoke(str(state["n"]))).content]}

    builder = one(kit, ask)
    builder.add_conditional_edges("ask", lambda state: END if state["n"] > 9 else "ask", ["ask", END])
    graph = builder.compile()
    with pytest.raises(GraphRecursionError):
        await graph.ainvoke(hi(n=0), {"recursion_limit": 5})
    return await everything(graph, hi(n=6), {"recursion_limit": 25})


# --- failing -----------------------------------------------------------------------------------


class Refusal(Exception):
    """An error of the user's own."""


def refusing(messages: Any) -> Any:
    return Refusal("no")


async def a_retry_policy_by_type(kit: Kit) -> Any:
    model, tries = kit.chat(refusing), []

    async def ask(state: State, runtime: Runtime[Any]) -> State:
        tries.append(runtime.execution_info.node_attempt)  # type: ignore[union-attr]
        return {"messages": [await model.ainvoke(state["messages"])]}

    policy = RetryPolicy(max_attempts=3, initial_interval=0.1, jitter=False, retry_on=Refusal)
    parts = await everything(one(kit, ask, retry_policy=policy).compile(), hi())
    return [parts, sorted(set(tries))]


async def a_retry_policy_that_helps(kit: Kit) -> Any:
    model, flaky = kit.chat(), kit.chat(refusing)

    async def ask(state: State, runtime: Runtime[Any]) -> State:
        chosen = flaky if runtime.execution_info.node_attempt == 1 else model  # type: ignore[union-attr]
        return {"messages": [await chosen.ainvoke(state["messages"])]}

    policy = RetryPolicy(max_attempts=2, initial_interval=0.1, jitter=False, retry_on=Refusal)
    return await everything(one(kit, ask, retry_policy=policy).compile(), hi())


async def fallbacks_by_type(kit: Kit) -> Any:
    model = kit.chat(refusing).with_fallbacks([kit.chat()], exceptions_to_handle=(Refusal,))

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return await everything(one(kit, ask).compile(), hi())


async def an_error_handler(kit: Kit) -> Any:
    model = kit.chat(refusing)

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    def handle(state: State, error: NodeError) -> State:
        return {"log": [type(error.error).__name__]}

    return await everything(one(kit, ask, error_handler=handle).compile(), hi())


async def a_wrapped_error_handler(kit: Kit) -> Any:
    model = kit.chat()

    async def handle(state: State, error: NodeError) -> State:
        return {"log": [type(error.error).__name__, (await model.ainvoke("why?")).content]}

    async def ask(state: State) -> State:
        raise Refusal

    builder: Builder = StateGraph(State)
    builder.add_node("ask", ask, error_handler=kit.node(handle))
    builder.add_edge(START, "ask")
    return await everything(builder.compile(), hi())


async def a_node_timeout(kit: Kit) -> Any:
    model = kit.chat(ttft=9.0)

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder = one(kit, ask, timeout=0.5, retry_policy=RetryPolicy(max_attempts=2, initial_interval=0.1, jitter=False))
    parts = await everything(builder.compile(), hi())
    await asyncio.sleep(0)
    return parts


async def a_timeout_of_a_send(kit: Kit) -> Any:
    model = kit.chat(ttft=9.0)

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    builder: Builder = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_conditional_edges(START, lambda _: [Send("ask", {"n": 1}, timeout=0.5)], ["ask"])
    parts = await everything(builder.compile(), hi())
    await asyncio.sleep(0)
    return parts


async def a_timeout_of_the_superstep(kit: Kit) -> Any:
    model = kit.chat(ttft=9.0)

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke("x")]}

    graph = one(kit, ask).compile()
    graph.step_timeout = 0.5
    return await everything(graph, hi())


async def a_timeout_that_is_kept(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return await everything(one(kit, ask, timeout=5.0).compile(), hi())


# --- caches, drains, durability, time travel ----------------------------------------------------------------------


async def a_cache_policy(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"log": [(await model.ainvoke(str(state["n"]))).content]}

    graph = one(kit, ask, cache_policy=CachePolicy(key_func=lambda given: str(given["n"]))).compile(
        cache=InMemoryCache()
    )
    first = await everything(graph, hi(n=1))
    called = sum(len(each.calls) for each in kit.models)
    again = await everything(graph, hi(n=1))
    assert sum(len(each.calls) for each in kit.models) == called, "a cached node runs no model"
    return [first, again]


async def a_drain(kit: Kit) -> Any:
    model, control = kit.chat(), RunControl()

    async def first(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def second(state: State) -> State:
        control.request_drain()
        return {"log": ["drained"]}

    builder: Builder = StateGraph(State)
    builder.add_node("first", kit.node(first))
    builder.add_node("second", second)
    builder.add_node("third", lambda _: {"log": ["never"]})
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", "third")
    graph = builder.compile(checkpointer=InMemorySaver())
    return [await everything(graph, hi(), thread(), control=control), await checkpoints(graph, thread())]


def durably(mode: str) -> Any:
    async def durability(kit: Kit) -> Any:
        model = kit.chat()

        async def ask(state: State) -> State:
            return {"messages": [await model.ainvoke(state["messages"])]}

        graph = one(kit, ask).compile(checkpointer=InMemorySaver())
        return [await everything(graph, hi(), thread(), durability=mode), await checkpoints(graph, thread())]

    durability.__name__ = f"durability_{mode}"
    return durability


async def time_travel(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: State) -> State:
        return {"n": state["n"] + 1, "messages": [await model.ainvoke(str(state["n"]))]}

    builder = one(kit, ask)
    builder.add_conditional_edges("ask", lambda state: END if state["n"] > 2 else "ask", ["ask", END])
    graph = builder.compile(checkpointer=InMemorySaver())
    await graph.ainvoke(hi(n=0), thread())
    history = [snapshot async for snapshot in graph.aget_state_history(thread())]
    fork = await graph.aupdate_state(history[2].config, {"n": 1, "log": ["forked"]})
    return [await everything(graph, None, history[2].config), await everything(graph, None, fork)]


async def messages_with_tool_calls(kit: Kit) -> Any:
    call = {"name": "look", "args": {"q": "x"}, "id": "call_1"}
    model = kit.chat(lambda _: AIMessage(content="", tool_calls=[call]))

    async def ask(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return await everything(one(kit, ask).compile(), hi())


@pytest.mark.parametrize(
    "scenario",
    [
        goto_and_update,
        parent_command,
        map_reduce,
        at_most_two_at_once,
        a_loop_over_a_subgraph,
        a_subgraph_that_remembers,
        beside(failure),
        beside(question),
        interrupt_after_the_node,
        send_from_a_raced_node,
        loop_until_the_limit,
        a_retry_policy_by_type,
        a_retry_policy_that_helps,
        fallbacks_by_type,
        an_error_handler,
        a_wrapped_error_handler,
        a_node_timeout,
        a_timeout_of_a_send,
        a_timeout_of_the_superstep,
        a_timeout_that_is_kept,
        a_cache_policy,
        a_drain,
        durably("sync"),
        durably("async"),
        durably("exit"),
        time_travel,
        messages_with_tool_calls,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_r07_control_flow(scenario: Any) -> None:
    conforms(scenario)


@pytest.mark.parametrize(
    "scenario",
    [
        interrupt_and_resume,
        interrupts_of_parallel_branches,
        interrupt_in_a_wrapped_subgraph,
        resume_with_an_update_and_a_goto,
    ],
)
def test_r09_a_node_that_may_interrupt_is_not_raced(scenario: Any) -> None:
    """Its models are hedged all the same; only the node as a whole is barred."""
    conforms(scenario, hedges_at_node=False)


def test_r07_an_interrupt_in_a_wrapped_node_of_a_subgraph() -> None:
    conforms(interrupt_in_a_wrapped_node_of_a_subgraph)


def test_r04_a_resumed_task_is_not_hedged() -> None:
    conforms(interrupt_before_the_node, hedges_at_model=False, hedges_at_node=False)


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("unit", ["model", "node"])
def test_r04_the_retry_of_a_node_is_hedged_as_its_first_try_is(unit: Unit, deep: bool) -> None:
    """LangGraph marks it as resumed, for the subgraphs in it; nobody has resumed it."""

    async def retried(kit: Kit) -> Any:
        model, tries = kit.chat(), []

        async def ask(state: State) -> State:
            answer = await model.ainvoke(state["messages"])
            tries.append(1)
            if len(tries) < 3:
                raise ConnectionError
            return {"messages": [answer]}

        policy = RetryPolicy(initial_interval=0.1, jitter=False)
        builder = one(kit, ask)
        if deep:
            outer: Builder = StateGraph(State)
            outer.add_node("inner", builder.compile(), retry_policy=policy)
            outer.add_edge(START, "inner")
        else:
            outer = one(kit, ask, retry_policy=policy)
        return await everything(outer.compile(), hi())

    seen, kit = play(retried, unit, 0)
    assert seen == play(retried, "plain")[0]
    assert kit.hedges == 3
