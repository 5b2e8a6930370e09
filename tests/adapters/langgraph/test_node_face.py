"""What LangGraph finds on a wrapped node: the table of facts/langgraph_surface.md 1.2 (issue 5, D2)."""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Literal, Optional, cast

import pytest
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import InvalidUpdateError
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, StreamWriter
from typing_extensions import TypedDict

from agent_hedge import Effect, Hedger, Never
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


async def config_bare(state: In, config: RunnableConfig) -> State:
    return {"y": len(config)}


async def config_optional(state: In, config: Optional[RunnableConfig] = None) -> State:  # noqa: UP045
    return {"y": len(config or {})}


async def config_unannotated(state: In, config) -> State:  # type: ignore[no-untyped-def]
    return {"y": len(config)}


async def config_or_none(state: In, config: RunnableConfig | None = None) -> State:
    return {"y": len(config or {})}


async def store_or_none(state: In, *, store: BaseStore | None = None) -> State:
    return {"y": int(store is not None)}


async def runtime_by_another_name(state: In, rt: Runtime[Any] | None = None) -> State:
    return {"y": int(rt is not None)}


async def keywords_only(state: In, **kwargs: Any) -> State:
    return {"y": len(kwargs)}


INJECTED: dict[Any, list[str]] = {
    config_bare: ["config"],
    config_optional: ["config"],
    config_unannotated: ["config"],
    config_or_none: [],
    store_or_none: [],
    runtime_by_another_name: [],
    keywords_only: [],
}
"""What LangGraph injects by annotation: these are strings here, and it does not know all of them (facts 0.10)."""


@WRAPS
@pytest.mark.parametrize("action", INJECTED, ids=lambda action: str(action.__name__))
@pytest.mark.filterwarnings("ignore:The 'config' parameter")
@pytest.mark.asyncio
async def test_what_is_injected_by_annotation_is_what_a_plain_node_is_given(action: Any, wrap: Wrap) -> None:
    assert seen(wrap(action)) == seen(action)
    assert seen(action)["accepts"] == INJECTED[action]
    found = []
    for node in (action, wrap(action)):
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
        builder.add_node("n", node)
        builder.add_edge(START, "n")
        found.append((await builder.compile(store=InMemoryStore()).ainvoke({"x": 5}))["y"] > 0)
    assert found == [bool(INJECTED[action])] * 2


@WRAPS
def test_wrapping_twice_is_wrapping_once(wrap: Wrap) -> None:
    wrapped = wrap(full)
    assert wrap(wrapped) is wrapped
    assert by_model(decorated(wrapped)).__wrapped__ is not None
    graph = inner_graph()
    assert wrap(wrap(graph)) is not graph
    once = wrap(graph)
    assert wrap(once) is once


@WRAPS
@pytest.mark.asyncio
async def test_a_graph_of_wrapped_nodes_can_be_copied(wrap: Wrap) -> None:
    """Whether it was wrapped node by node or as a whole; the hedger is not copied with it."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    for name, action in {"graph": inner_graph(), "runnable": RunnableLambda(by_global), "function": by_global}.items():
        builder.add_node(name, wrap(action))
        builder.add_node(f"plain {name}", action)
        builder.add_edge(START, name)
        builder.add_edge(START, f"plain {name}")
    HEDGER.wrap_graph(builder)
    for graph in (copy.deepcopy(builder).compile(), copy.deepcopy(builder.compile())):
        with pytest.raises(InvalidUpdateError):  # they all run, and write one key
            await graph.ainvoke({"x": 1})


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


def by_dict() -> Any:
    graphs = {"one": inner_graph()}

    async def call(state: State) -> Any:
        return await graphs["one"].ainvoke(state)

    return call


class Custom(Runnable[Any, Any]):
    def __init__(self) -> None:
        self.graph = inner_graph()

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
        return self.graph.invoke(input, config)


def subgraphs_of(node: Any) -> list[str]:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("outer", node)
    builder.add_edge(START, "outer")
    return [each for each, _ in builder.compile().get_subgraphs(recurse=True)]


SUBGRAPHS: dict[str, tuple[Any, bool]] = {
    "itself": (inner_graph(), True),
    "by_global": (by_global, True),
    "by_closure": (by_closure(), True),
    "decorated": (decorated(by_closure()), True),
    "with_config": (inner_graph().with_config(tags=["t"]), True),
    "lambda": (RunnableLambda(by_global), True),
    "sequence": (inner_graph() | RunnableLambda(lambda x: x), True),
    "attribute": (Holder(), False),
    "in_a_dict": (by_dict(), False),
    "custom_runnable": (Custom(), False),
    "with_retry": (inner_graph().with_retry(), False),
    "with_fallbacks": (inner_graph().with_fallbacks([RunnableLambda(lambda x: x)]), False),
}
"""What is found on a plain node. By design of LangGraph the last five are not; see docs/adapters.md."""


@WRAPS
@pytest.mark.parametrize("name", SUBGRAPHS)
def test_subgraphs_are_found_where_they_are_found_on_the_plain_node(name: str, wrap: Wrap) -> None:
    action, found = SUBGRAPHS[name]
    assert subgraphs_of(action) == (["outer"] if found else [])
    assert subgraphs_of(wrap(action)) == subgraphs_of(action)


@WRAPS
def test_a_subgraph_behind_two_decorators_is_found_on_a_wrapped_node_alone(wrap: Wrap) -> None:
    twice = decorated(decorated(by_closure()))
    assert subgraphs_of(twice) == []
    assert subgraphs_of(wrap(twice)) == ["outer"]


@pytest.mark.parametrize("xray", [False, True])
@pytest.mark.parametrize("name", [name for name in SUBGRAPHS if name != "decorated"])
def test_a_drawn_graph_is_the_same(name: str, xray: bool) -> None:
    def drawn(node: Any) -> Any:
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
        builder.add_node("outer", node)
        builder.add_edge(START, "outer")
        graph = builder.compile().get_graph(xray=xray)
        return graph.draw_mermaid(), graph.to_json()

    action, _ = SUBGRAPHS[name]
    assert drawn(by_model(action)) == drawn(action)


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


@WRAPS
@pytest.mark.asyncio
async def test_a_mapping_of_runnables_is_a_node_too(wrap: Wrap) -> None:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("n", wrap({"y": RunnableLambda(lambda state: state["x"] + 1)}))
    builder.add_edge(START, "n")
    assert await builder.compile().ainvoke({"x": 1}) == {"x": 1, "y": 2}


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
        ({"policy": 5}, "policy must be"),
        ({"policy": Never}, "policy must be"),
        ({"key": ""}, "key"),
        ({"key": 3}, "key"),
        ({"unit": "node", "key": ""}, "key"),
        ({"unit": "node", "accept": full}, "accept must be"),
        ({"unit": "node", "first": Caller()}, "first must be"),
    ],
)
def test_r20_bad_settings_are_named(settings: Any, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        HEDGER.node(full, **settings)


@pytest.mark.parametrize("settings", [{"unit": "graph"}, {"bar": "sideways"}, {"colour": "red"}, {"targets": ["a"]}])
def test_r20_bad_settings_are_named_on_what_is_wrapped_already(settings: Any) -> None:
    with pytest.raises(ConfigurationError):
        HEDGER.node(by_model(full), **settings)
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("full", by_model(full), metadata={"agent_hedge": settings}, destinations=("full",))
    builder.add_edge(START, "full")
    with pytest.raises(ConfigurationError, match=r"^node 'full': "):
        HEDGER.wrap_graph(builder)


def test_wrapping_at_the_node_what_is_wrapped_at_the_model_says_that_it_changes_nothing() -> None:
    wrapped = by_model(full)
    with pytest.warns(UserWarning, match="the node 'full' is wrapped already: unit='node' changes nothing"):
        assert by_node(wrapped) is wrapped
    raced = by_node(full)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert by_node(raced) is by_model(raced) is raced


def test_r20_bad_actions_are_named() -> None:
    with pytest.raises(ConfigurationError, match="takes a function or a Runnable, got None"):
        HEDGER.node(None)
    with pytest.raises(ConfigurationError, match="takes a function or a Runnable"):
        HEDGER.node(3)
    with pytest.raises(ConfigurationError, match="takes a function or a Runnable"):
        HEDGER.node(3, unit="node", effect=Effect.READ_ONLY, cancellable=True)
    with pytest.raises(ConfigurationError, match="is a generator"):
        HEDGER.node(agenerates, unit="node", effect=Effect.READ_ONLY, cancellable=True)
