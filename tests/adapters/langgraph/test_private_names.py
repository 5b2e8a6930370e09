"""Canaries: each private name we use still is what we take it for. Their messages say what to do when it is not."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, before_model, wrap_model_call
from langchain.chat_models import init_chat_model
from langchain_core.callbacks import BaseCallbackHandler, CallbackManager
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tracers.context import collect_runs
from langchain_core.tracers.event_stream import _AstreamEventsCallbackHandler
from langchain_core.tracers.langchain import LangChainTracer
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import task
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.pregel._messages import StreamMessagesHandler
from langgraph.pregel.protocol import StreamProtocol
from langgraph.runtime import Runtime
from langgraph.types import RetryPolicy

from agent_hedge.adapters.langgraph import private
from agent_hedge.adapters.langgraph.attempt import COUNTERS
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph import sample_graphs as samples


def test_runnable_callable_still_holds_the_users_function() -> None:
    runnable = samples.one(samples.n_plain).nodes["n"].runnable
    advice = "look at langgraph add_node: find where the user's function went, and change runnables.take_apart"
    assert isinstance(runnable, private.RunnableCallable), advice
    assert runnable.func is samples.n_plain, advice


def test_runnable_seq_still_has_steps() -> None:
    advice = "look at langgraph's sequence of Runnables, and change runnables.take_apart"
    steps = private.RunnableSeq(samples.prompt, samples.model).steps
    assert steps == [samples.prompt, samples.model], advice


def test_a_task_is_still_told_by_its_class() -> None:
    @task
    def work(x: int) -> int:
        return x

    advice = "look at what langgraph.func.task returns: without its class, tasks are not seen (R9 bars them)"
    assert isinstance(work, private.TaskFunction), advice
    assert callable(work.func), advice


def test_all_edges_still_hold_joins() -> None:
    builder = StateGraph(samples.State)
    for name in "abc":
        builder.add_node(name, samples.n_plain)
    builder.add_edge(START, "a")
    builder.add_edge(["a", "b"], "c")
    advice = "look at StateGraph: edges and waiting_edges must both be in private.all_edges"
    assert set(private.all_edges(builder)) == {(START, "a"), ("a", "c"), ("b", "c")}, advice


def test_the_default_error_handler_can_still_be_read() -> None:
    builder = samples.one(samples.n_plain)
    advice = "look at StateGraph.set_node_defaults: an uncompiled builder would hide its error handler"
    assert private.default_error_handler(builder) is None, advice
    builder.set_node_defaults(error_handler=samples.n_direct)
    assert private.default_error_handler(builder) is samples.n_direct, advice
    assert "__default_error_handler__" in builder.compile().builder.nodes, advice


def test_tool_call_wrappers_can_still_be_read() -> None:
    def sync(request: Any, execute: Any) -> Any:
        return execute(request)

    async def other(request: Any, execute: Any) -> Any:
        return await execute(request)

    node = ToolNode([samples.lookup], wrap_tool_call=sync, awrap_tool_call=other)
    advice = "look at ToolNode.__init__: explain and doctor could no longer report a one-sided wrapper"
    assert private.tool_call_wrappers(node) == (sync, other), advice


def test_the_model_node_of_an_agent_is_still_told_by_its_closure() -> None:
    @wrap_model_call
    def outer(request: Any, handler: Any) -> Any:
        return handler(request)

    agent = create_agent(samples.model, [samples.lookup], middleware=[outer])
    runnable = agent.builder.nodes["model"].runnable
    assert isinstance(runnable, private.RunnableCallable)
    advice = "look at langchain's create_agent: walk.Walker reads model, tools and wrappers out of this closure"
    for function, cell in zip((runnable.func, runnable.afunc), private.AGENT_MODEL_WRAPPERS, strict=True):
        assert function is not None
        assert function.__module__ == private.AGENT_MODULE, advice
        assert function.__qualname__ in private.AGENT_MODEL_NODES, advice
        assert {"model", "default_tools", cell} <= set(function.__code__.co_freevars), advice


def test_middleware_is_still_told_by_its_base_class() -> None:
    @before_model
    def hook(state: Any, runtime: Any) -> Any:
        return None

    advice = "look at langchain.agents.middleware: hooks made by decorators would no longer be read"
    assert private.middleware_class() is AgentMiddleware, advice
    assert isinstance(hook, AgentMiddleware), advice
    assert type(hook).before_model.__globals__["__name__"] == private.MIDDLEWARE_MODULE, advice


def test_a_configurable_model_is_still_told_by_its_class_name() -> None:
    advice = "look at init_chat_model: the reason would read 'runnable' instead of 'configurable'; it stays barred"
    assert type(init_chat_model(configurable_fields="any")).__name__ == private.CONFIGURABLE_MODEL, advice


def test_a_nodes_configuration_still_holds_what_a_race_replaces() -> None:
    seen: dict[str, Any] = {}

    def look(state: Any, config: RunnableConfig) -> None:
        seen.update(config["configurable"])

    builder = StateGraph(samples.State)
    builder.add_node("look", look)
    builder.add_edge(START, "look")
    stream = builder.compile(checkpointer=InMemorySaver()).stream(
        {}, {"configurable": {"thread_id": "t"}}, subgraphs=True, durability="sync"
    )
    list(stream)
    advice = "look at langgraph's _TimedAttemptScope, which replaces the same keys, and change attempt.GatedAttempt"
    assert callable(seen[private.SEND]), advice
    assert callable(seen[private.CALL]), advice
    assert isinstance(seen[private.STREAM], StreamProtocol), advice
    assert isinstance(seen[private.RUNTIME], Runtime), advice
    assert isinstance(seen[private.CHECKPOINTER], BaseCheckpointSaver), advice
    assert seen[private.DURABILITY] == "sync", "StepContext.durability would be a guess: see context.read_context"
    scratchpad = seen[private.SCRATCHPAD]
    for counter in COUNTERS:
        assert getattr(scratchpad, counter)() == 0, advice
    advice = "resumed tasks must not be hedged: look at how interrupt() finds its answers, and change context.py"
    assert scratchpad.resume == [], advice
    assert scratchpad.get_null_resume(False) is None, advice


def test_the_loop_around_a_node_can_still_be_found() -> None:
    """Two graphs, one in the other: each node's loop runs its own graph, and knows where that graph runs."""
    seen: dict[str, Any] = {}

    def look(state: Any, config: RunnableConfig) -> None:
        loop: Any = private.loop_of(config["configurable"][private.CALL])
        seen[config["metadata"]["langgraph_node"]] = (loop, config["configurable"][private.TASK_ID])

    inner = StateGraph(samples.State)
    inner.add_node("deep", look)
    inner.add_edge(START, "deep")
    graph = inner.compile()

    def call(state: Any, config: RunnableConfig) -> None:
        look(state, config)
        graph.invoke({})

    builder = StateGraph(samples.State)
    builder.add_node("call", call)
    builder.add_edge(START, "call")
    builder.compile().invoke({})
    advice = "look at pregel/_retry.py and _runner.py: what schedules a @task must lead to its loop; see site._frames"
    (above, task), (loop, inner_task) = seen["call"], seen["deep"]
    assert type(loop).__name__ == type(above).__name__ == "SyncPregelLoop", advice
    assert loop is not above, advice
    around = loop.config["configurable"]
    assert around[private.TASK_ID] == task != inner_task, advice
    assert private.loop_of(around[private.CALL]) is above, advice


@pytest.mark.parametrize("timeout", [None, 9.0])
def test_the_task_around_a_node_can_still_be_found(timeout: float | None) -> None:
    """Also behind the guard of a time-out; what the retry of a node adds is not in the task."""
    seen: list[Any] = []

    async def look(state: Any, config: RunnableConfig) -> Any:
        conf = config["configurable"]
        task: Any = private.task_of(conf[private.CALL])
        loop: Any = private.loop_of(conf[private.CALL])
        assert loop.tasks[conf[private.TASK_ID]] is task
        limit = private.run_timeout(task)
        seen.append((task.config["configurable"].get(private.RESUMING), conf.get(private.RESUMING), limit))
        if len(seen) < 2:
            raise ConnectionError
        return {}

    builder = StateGraph(samples.State)
    policy = RetryPolicy(initial_interval=0.1, jitter=False)
    builder.add_node("look", look, timeout=timeout, retry_policy=policy)
    builder.add_edge(START, "look")
    run_virtual(lambda: builder.compile().ainvoke({"messages": []}))
    advice = "look at pregel/_retry.py and _runner._acall: retries would count as resumed, time-outs would not be seen"
    assert seen == [(None, None, timeout), (None, True, timeout)], advice


def test_handlers_of_context_variables_can_still_be_read() -> None:
    advice = "look at langchain_core CallbackManager.configure: what adds such handlers must find a raced node's own"
    with collect_runs() as collected:
        assert [each.get() for each in private.handler_variables() if each.get() is not None] == [collected], advice


def test_langsmiths_tracer_is_still_copied_by_a_method() -> None:
    tracer = LangChainTracer(client=object())  # type: ignore[arg-type]
    manager = CallbackManager.configure(inheritable_callbacks=[tracer], langsmith_inheritable_metadata={"a": "b"})
    advice = "look at CallbackManager.configure: the copy must stay behind the gate of a raced node's attempt"
    assert manager.handlers[0] is not tracer, advice
    assert callable(getattr(tracer, private.COPIED_TRACER)), advice


def test_the_tasks_of_a_superstep_still_tell_which_have_ended() -> None:
    seen: list[list[str]] = []

    async def quick(state: Any) -> Any:
        return {}

    async def slow(state: Any, config: RunnableConfig) -> Any:
        loop: Any = private.loop_of(config["configurable"][private.CALL])
        seen.append(sorted(private.unfinished(loop)))
        await asyncio.sleep(1.0)
        seen.append(sorted(private.unfinished(loop)))
        return {}

    builder = StateGraph(samples.State)
    for node in (quick, slow):
        builder.add_node(node)
        builder.add_edge(START, node.__name__)
    run_virtual(lambda: builder.compile().ainvoke({"messages": []}))
    advice = "look at pregel/_loop.py: `tasks` and their `writes`; a branch beside a longer one was told by them"
    assert seen == [["quick", "slow"], ["slow"]], advice


def test_the_state_can_still_be_read_as_a_tool_node_reads_it() -> None:
    seen: list[Any] = []

    def look(state: Any, config: RunnableConfig) -> None:
        read = config["configurable"][private.READ]
        seen.append(read(private.channels_of(read)))

    builder = StateGraph(samples.State)
    builder.add_node("look", look)
    builder.add_edge(START, "look")
    builder.compile().invoke({"messages": ["hi"]})
    advice = "look at how ToolNode reads the state for a Send: the ledger could no longer see the history (R11)"
    assert seen[0]["messages"] == ["hi"], advice


def test_the_checkpoints_around_a_node_are_still_named() -> None:
    saver, seen = InMemorySaver(), []

    def look(state: Any, config: RunnableConfig) -> None:
        seen.append(config["configurable"][private.CHECKPOINT_MAP][""])

    builder = StateGraph(samples.State)
    builder.add_node("look", look)
    builder.add_edge(START, "look")
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    builder.compile(checkpointer=saver).invoke({}, config, durability="sync")
    advice = "look at prepare_single_task: site.root_checkpoint and site._born read the root graph's checkpoint there"
    ids = [str(each.checkpoint["id"]) for each in saver.list(config)]
    assert seen[0] in ids, advice
    assert UUID(seen[0]).version == 6, "site._born reads the time out of the checkpoint's id"


def test_a_resumed_superstep_is_still_marked() -> None:
    seen: list[Any] = []

    def look(state: Any, config: RunnableConfig) -> None:
        seen.append(config["configurable"].get(private.RESUMING))

    builder = StateGraph(samples.State)
    builder.add_node("look", look)
    builder.add_edge(START, "look")
    graph = builder.compile(checkpointer=InMemorySaver(), interrupt_before=["look"])
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    graph.invoke({}, config)
    graph.invoke(None, config)
    assert seen == [True], "resumed tasks must not be hedged: look at pregel/_loop, and change context.read_context"


def test_a_loop_still_knows_what_its_graph_was_called_with() -> None:
    seen: list[Any] = []

    def look(state: Any, config: RunnableConfig) -> None:
        seen.append(private.input_of(private.loop_of(config["configurable"][private.CALL])))

    builder = StateGraph(samples.State)
    builder.add_sequence([("first", look), ("second", look)])
    builder.add_edge(START, "first")
    graph = builder.compile(checkpointer=InMemorySaver(), interrupt_before=["first"])
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    graph.invoke({"messages": []}, config)
    graph.invoke(None, config)
    builder.compile().invoke({"messages": []})
    advice = "look at pregel/_loop: a resume would start the next generation of its run; see context.goes_on"
    assert seen == [None, None, {"messages": []}, {"messages": []}], advice


def test_the_tool_handler_still_streams_by_an_attribute() -> None:
    stream: Any = samples.n_plain
    handler = private.StreamToolCallHandler(stream, False)
    advice = "look at langgraph.pregel._tools, and change gated_callbacks.gated_handler"
    assert handler.stream is stream, advice
    assert handler._run_to_call == {}, advice


def test_langgraphs_own_stream_handlers_are_still_told_by_their_module() -> None:
    advice = "look at gated_callbacks.ungateable: it would refuse every stream, or let astream_events v2 leak"
    assert issubclass(StreamMessagesHandler, private.StreamingHandler), advice
    assert StreamMessagesHandler.__module__.startswith("langgraph."), advice
    assert issubclass(_AstreamEventsCallbackHandler, private.StreamingHandler), advice
    assert not _AstreamEventsCallbackHandler.__module__.startswith("langgraph."), advice


def test_what_supports_a_timeout_is_still_told() -> None:
    async def other(x: int) -> int:
        return x

    def sync(x: int) -> int:
        return x

    advice = "look at langgraph's validate_timeout_supported, and change node.SurroundedRunnable"
    assert private.runs_async(RunnableLambda(other)), advice
    assert not private.runs_async(RunnableLambda(sync)), advice


def test_an_idle_timeout_still_comes_with_a_handler() -> None:
    advice = "look at langgraph's _TimedAttemptScope: held-back output would let idle time-outs pass; see attempt.py"
    assert issubclass(private.IdleProgressHandler, BaseCallbackHandler), advice
    assert private.IdleProgressHandler.__module__ == "langgraph.pregel._retry", advice


PRIVATE = re.compile(r"(?:from|import) +(?:langchain|langgraph)\w*(?:\.\w+)*?(?:\._\w+|[\w.]* import .*\b_\w)")
"""An import of a private module, or of a private name, of either framework."""


def test_private_names_stand_in_one_file() -> None:
    folder = Path(private.__file__).parent
    users = [file.name for file in sorted(folder.glob("*.py")) if PRIVATE.search(file.read_text(encoding="utf-8"))]
    assert users == ["private.py"], "import it there, with a canary here that says what to do when it breaks"
