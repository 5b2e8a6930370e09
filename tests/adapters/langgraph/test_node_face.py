"""What LangGraph finds on a wrapped node: the table of facts/langgraph_surface.md 1.2 (issue 5, D2)."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, cast

import pytest
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, StreamWriter
from typing_extensions import TypedDict

from agent_hedge import Effect, Hedger
from agent_hedge.errors import ConfigurationError

pytestmark = pytest.mark.filterwarnings("ignore:the wrapped node")

HEDGER = Hedger()


class In(TypedDict):
    x: int


class State(TypedDict, total=False):
    x: int
    y: int


Wrap = Callable[[Any], Any]


def by_model(action: Any) -> Any:
    return HEDGER.node(action)


def by_node(action: Any) -> Any:
    return HEDGER.node(action, unit="node", effect=Effect.READ_ONLY, trigger="total", cancellable=True)


WRAPS = pytest.mark.parametrize("wrap", [by_model, by_node], ids=["model", "node"])


async def full(
    state: In, config: RunnableConfig, *, runtime: Runtime[Any], store: BaseStore, writer: StreamWriter
) -> Command[Literal["z"]]:
    writer({"from": runtime.execution_info.task_id is not None})  # type: ignore[union-attr]
    assert config["metadata"]["langgraph_node"] == "full"
    assert store.get(("a",), "b") is None
    return Command(goto="z", update={"y": state["x"]})


class Caller:
    """An object to call, with attributes of its own."""

    def __init__(self) -> None:
        self.calls = 0

    async def __call__(self, state: In, config: RunnableConfig) -> Command[Literal["z"]]:
        self.calls += 1
        return Command(goto="z", update={"y": state["x"]})

    async def method(self, state: In, runtime: Runtime[Any]) -> Command[Literal["z"]]:
        return Command(goto="z", update={"y": state["x"]})


def decorated(function: Any) -> Any:
    @functools.wraps(function)
    async def inner(*args: Any, **kwargs: Any) -> Any:
        return await function(*args, **kwargs)

    return inner


def with_extra(state: In, config: RunnableConfig, *, extra: int) -> Command[Literal["z"]]:
    return Command(goto="z", update={"y": state["x"] + extra})


def plain(state: In) -> Command[Literal["z"]]:
    return Command(goto="z", update={"y": state["x"]})


def seen(action: Any) -> dict[str, Any]:
    """Return what LangGraph finds on a node."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node(action)
    ((name, spec),) = builder.nodes.items()
    runnable: Any = spec.runnable
    return {
        "name": name,
        "accepts": sorted(runnable.func_accepts),
        "input": spec.input_schema,
        "ends": spec.ends,
        "sync": runnable.func is not None,
    }


ACTIONS = {
    "function": full,
    "decorated": decorated(full),
    "object": Caller(),
    "method": Caller().method,
    "partial": functools.partial(with_extra, extra=1),
    "sync": plain,
}


@WRAPS
@pytest.mark.parametrize("name", ACTIONS)
def test_it_finds_what_it_finds_on_the_plain_node(name: str, wrap: Wrap) -> None:
    assert seen(wrap(ACTIONS[name])) == seen(ACTIONS[name])


@pytest.mark.parametrize("name", ["function", "object", "sync"])
def test_the_table_itself(name: str) -> None:
    """The rows say OK: nothing is lost on a plain node of these kinds, so nothing may be lost on a wrapped one."""
    found = seen(by_model(ACTIONS[name]))
    assert found["input"] is In
    assert found["ends"] == ("z",)


@WRAPS
@pytest.mark.parametrize("name", ACTIONS)
@pytest.mark.asyncio
async def test_it_runs_with_all_that_is_injected(name: str, wrap: Wrap) -> None:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("full", wrap(ACTIONS[name]), destinations=("z",))
    builder.add_node("z", lambda state: {"x": 0})
    builder.add_edge(START, "full")
    result = await builder.compile(store=InMemoryStore()).ainvoke({"x": 5})
    assert result == {"x": 0, "y": 6 if name == "partial" else 5}


@WRAPS
def test_wrapping_twice_is_wrapping_once(wrap: Wrap) -> None:
    wrapped = wrap(full)
    assert wrap(wrapped) is wrapped
    assert by_model(decorated(wrapped)).__wrapped__ is not None
    graph = inner_graph()
    assert wrap(wrap(graph)) is not graph
    once = wrap(graph)
    assert wrap(once) is once


def test_as_a_decorator() -> None:
    @HEDGER.node
    async def first(state: In) -> State:
        """Say it."""
        return {"y": 1}

    @HEDGER.node(unit="node", effect=Effect.READ_ONLY)
    async def second(state: In) -> State:
        return {"y": 2}

    assert first.__name__ == "first"
    assert first.__doc__ == "Say it."
    assert second.__name__ == "second"


@WRAPS
def test_timeouts_are_supported_where_the_plain_node_supports_them(wrap: Wrap) -> None:
    for action, supported in (
        (full, True),
        (plain, False),
        (RunnableLambda(by_global), True),
        (RunnableLambda(plain), False),
    ):
        if wrap is by_node and isinstance(action, RunnableLambda):
            continue  # a raced Runnable is awaited, whatever it does inside
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
        builder.add_node("full", wrap(action), timeout=1.0, destinations=("z",))
        builder.add_node("z", plain)
        builder.add_edge(START, "full")
        if supported:
            builder.compile()
        else:
            with pytest.raises(ValueError, match="timeout"):
                builder.compile()


# --- subgraphs ----------------------------------------------------------------------------------------------------


def inner_graph() -> Any:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("deep", lambda state: {"y": 1})
    builder.add_edge(START, "deep")
    return builder.compile()


INNER = inner_graph()


async def by_global(state: State) -> Any:
    return await INNER.ainvoke(state)


def by_closure() -> Any:
    graph = inner_graph()

    async def call(state: State) -> Any:
        return await graph.ainvoke(state)

    return call


class Holder:
    def __init__(self) -> None:
        self.graph = inner_graph()

    async def __call__(self, state: State) -> Any:
        return await self.graph.ainvoke(state)


SUBGRAPHS: dict[str, tuple[Any, bool]] = {
    "itself": (inner_graph(), True),
    "by_global": (by_global, True),
    "by_closure": (by_closure(), True),
    "decorated": (decorated(by_closure()), True),
    "with_config": (inner_graph().with_config(tags=["t"]), True),
    "lambda": (RunnableLambda(by_global), True),
    "sequence": (inner_graph() | RunnableLambda(lambda x: x), True),
    "attribute": (Holder(), False),
    "with_retry": (inner_graph().with_retry(), False),
}
"""What is found on a plain node. By design of LangGraph the last two are not; see docs/adapters.md."""


@WRAPS
@pytest.mark.parametrize("name", SUBGRAPHS)
def test_subgraphs_are_found_where_they_are_found_on_the_plain_node(name: str, wrap: Wrap) -> None:
    action, found = SUBGRAPHS[name]

    def names(node: Any) -> list[str]:
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
        builder.add_node("outer", node)
        builder.add_edge(START, "outer")
        return [each for each, _ in builder.compile().get_subgraphs(recurse=True)]

    assert names(action) == (["outer"] if found else [])
    assert names(wrap(action)) == names(action)


@WRAPS
@pytest.mark.asyncio
async def test_the_state_of_a_subgraph_is_found(wrap: Wrap) -> None:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    inner: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    inner.add_node("deep", lambda state: {"y": 1})
    inner.add_edge(START, "deep")
    builder.add_node("outer", wrap(inner.compile(interrupt_before=["deep"])))
    builder.add_edge(START, "outer")
    graph = builder.compile(checkpointer=InMemorySaver())
    config: RunnableConfig = {"configurable": {"thread_id": "t"}}
    await graph.ainvoke({"x": 1}, config)
    state = await graph.aget_state(config, subgraphs=True)
    assert cast("Any", state.tasks[0].state).next == ("deep",)


# --- generators, errors -----------------------------------------------------------------------------------------------


async def agenerates(state: State) -> AsyncIterator[Any]:
    yield {"y": 1}


def generates(state: State) -> Iterator[Any]:
    yield {"y": 1}


@pytest.mark.parametrize("action", [agenerates, generates])
@pytest.mark.asyncio
async def test_generators_are_kept(action: Any) -> None:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("n", HEDGER.node(action))
    builder.add_edge(START, "n")
    assert (await builder.compile().ainvoke({"x": 1}))["y"] == 1


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"unit": "graph"}, "unit must be"),
        ({"targets": ["a"]}, "only unit='node' knows targets"),
        ({"bar": "sideways"}, "bar must be"),
        ({"unit": "node", "effect": "maybe"}, "effect must be"),
        ({"unit": "node", "trigger": "last"}, "trigger must be"),
        ({"unit": "node", "accept": 3}, "accept must be"),
        ({"unit": "node", "targets": ["a", "a"]}, "two targets"),
        ({"unit": "node", "timeout": -1}, "timeout must be"),
        ({"unit": "node", "cancellable": 1}, "cancellable must be"),
        ({"unit": "node", "colour": "red"}, "does not know colour"),
        ({"unit": "node", "policy": 5}, "policy must be"),
    ],
)
def test_r20_bad_settings_are_named(settings: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        HEDGER.node(full, **settings)


def test_r20_bad_actions_are_named() -> None:
    with pytest.raises(ConfigurationError, match="takes a function or a Runnable"):
        HEDGER.node(3)
    with pytest.raises(ConfigurationError, match="takes a function or a Runnable"):
        HEDGER.node(3, unit="node", effect=Effect.READ_ONLY, cancellable=True)
    with pytest.raises(ConfigurationError, match="is a generator"):
        HEDGER.node(agenerates, unit="node", effect=Effect.READ_ONLY, cancellable=True)
