"""What a node may be given and may return: every kind of state, injected values, private channels (issue 5, D1)."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from langchain_core.messages import AnyMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_config, get_store
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.runtime import Runtime, get_runtime
from langgraph.store.base import BaseStore
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, Overwrite
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Kit, State, checkpoints, everything, thread

Builder = StateGraph[Any, Any, Any, Any]


class PydanticState(BaseModel):
    messages: Annotated[list[AnyMessage], add_messages] = Field(default_factory=list)
    log: Annotated[list[Any], operator.add] = Field(default_factory=list)
    n: int = 0


@dataclass
class DataclassState:
    messages: Annotated[list[AnyMessage], add_messages] = field(default_factory=list)
    log: Annotated[list[Any], operator.add] = field(default_factory=list)
    n: int = 0


class ManagedState(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    log: Annotated[list[Any], operator.add]
    remaining: RemainingSteps
    last: IsLastStep


class Secret(TypedDict):
    secret: str


@dataclass
class Context:
    who: str


def hi(**more: Any) -> Any:
    return {"messages": [HumanMessage("hi", id="q")], "log": [], **more}


def one(kit: Kit, action: Any, schema: Any = State, **settings: Any) -> Builder:
    builder: Builder = StateGraph(schema)
    builder.add_node("ask", kit.node(action), **settings)
    builder.add_edge(START, "ask")
    return builder


def of_class(schema: Any) -> Any:
    async def objects(kit: Kit) -> Any:
        model = kit.chat()

        async def ask(state: Any) -> Any:
            answer = await model.ainvoke(state.messages)
            return {"messages": [answer], "log": [type(state).__name__], "n": state.n + 1}

        graph = one(kit, ask, schema, input_schema=schema).compile(checkpointer=InMemorySaver())
        return [await everything(graph, hi(n=3), thread()), await checkpoints(graph, thread())]

    objects.__name__ = schema.__name__
    return objects


async def a_model_is_returned(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: PydanticState) -> PydanticState:
        return PydanticState(messages=[await model.ainvoke(state.messages)], n=state.n + 1)

    return await everything(one(kit, ask, PydanticState).compile(), hi(n=3))


async def managed_values(kit: Kit) -> Any:
    model = kit.chat()

    async def ask(state: ManagedState) -> Any:
        answer = await model.ainvoke(state["messages"])
        return {"messages": [answer], "log": [(state["remaining"], state["last"])]}

    builder = one(kit, ask, ManagedState)
    builder.add_conditional_edges("ask", lambda state: END if len(state["log"]) > 2 else "ask", ["ask", END])
    return await everything(builder.compile(), hi(), {"recursion_limit": 9})


async def a_private_channel(kit: Kit) -> Any:
    model = kit.chat()

    async def whisper(state: State) -> Secret:
        return {"secret": (await model.ainvoke(state["messages"])).content}

    async def tell(state: Secret) -> State:
        return {"messages": [await model.ainvoke(state["secret"])], "log": [sorted(state)]}

    builder: Builder = StateGraph(State)
    builder.add_sequence([("whisper", kit.node(whisper)), ("tell", kit.node(tell))])
    builder.add_edge(START, "whisper")
    return await everything(builder.compile(), hi())


async def all_that_is_injected(kit: Kit) -> Any:
    model, store = kit.chat(), InMemoryStore()
    store.put(("a",), "k", {"v": 1})

    async def ask(state: State, config: RunnableConfig, runtime: Runtime[Context], *, store: BaseStore) -> State:
        answer = await model.ainvoke(state["messages"])
        found, info = await store.asearch(("a",)), runtime.execution_info
        ambient = [get_runtime(Context).context.who, get_store().get(("a",), "k")]
        given = [config["metadata"]["langgraph_node"], get_config()["configurable"]["thread_id"]]
        assert info is not None
        said = [runtime.context.who, info.node_attempt, info.thread_id, info.checkpoint_ns == "", given, ambient]
        return {"messages": [answer], "log": [said, [each.value for each in found]]}

    builder: Builder = StateGraph(State, context_schema=Context)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=InMemorySaver(), store=store)
    return await everything(graph, hi(), thread(), context=Context("me"))


async def a_write_to_the_store(kit: Kit) -> Any:
    model, store = kit.chat(), InMemoryStore()

    async def ask(state: State, runtime: Runtime[Any]) -> State:
        answer = await model.ainvoke(state["messages"])
        assert runtime.store is not None
        await runtime.store.aput(("a",), "k", {"v": answer.content})
        return {"log": [(await runtime.store.aget(("a",), "k")).value]}  # type: ignore[union-attr]

    seen = await everything(one(kit, ask).compile(store=store), hi())
    return [seen, [each.value for each in await store.asearch(("a",))]]


def returning(what: Any) -> Any:
    async def returns(kit: Kit) -> Any:
        model = kit.chat()

        async def ask(state: State) -> Any:
            return what(await model.ainvoke(state["messages"]))

        builder = one(kit, ask, destinations=("after",))
        builder.add_node("after", lambda _: {"log": ["after"]})
        graph = builder.compile(checkpointer=InMemorySaver())
        return [await everything(graph, hi(log=[0]), thread()), await checkpoints(graph, thread())]

    return returns


RETURNED = {
    "nothing": lambda answer: None,
    "what_is_no_state": lambda answer: 3,
    "several_commands": lambda answer: [Command(update={"messages": [answer]}), Command(goto="after"), {"log": [1]}],
    "an_overwrite": lambda answer: {"log": Overwrite([answer.content])},
}


@pytest.mark.parametrize(
    "scenario",
    [
        of_class(PydanticState),
        of_class(DataclassState),
        a_model_is_returned,
        managed_values,
        a_private_channel,
        all_that_is_injected,
        a_write_to_the_store,
    ],
    ids=lambda scenario: scenario.__name__,
)
def test_r05_states(scenario: Any) -> None:
    conforms(scenario)


@pytest.mark.parametrize("kind", RETURNED)
def test_r05_what_is_returned(kind: str) -> None:
    conforms(returning(RETURNED[kind]))
