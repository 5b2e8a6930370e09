"""The graphs of the static-analysis experiment (facts/langgraph_surface.md 4), and those each rule needs."""

from __future__ import annotations

import operator
import urllib.request
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from langchain.chat_models import init_chat_model
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import ConfigurableField, Runnable, RunnableBranch, RunnableLambda
from langchain_core.tools import BaseTool, tool
from langgraph.config import get_store
from langgraph.func import task
from langgraph.graph import START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, interrupt
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    log: Annotated[list[Any], operator.add]
    messages: list[Any]


class Chat(BaseChatModel):
    """Answers with nothing; binds tools in OpenAI's form."""

    label: str = ""

    @property
    def _llm_type(self) -> str:
        return "sample"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("ok"))])

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[Any, AIMessage]:
        return self.bind(tools=[each if isinstance(each, dict) else _described(each) for each in tools])


def _described(each: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": getattr(each, "name", None) or each.__name__}}


class HedgedChat(Chat):
    """Stands for the library's own model: told by two attributes."""

    __agent_hedge_model__ = True

    def __agent_hedge_calls__(self) -> list[Any]:
        return []


@tool
def lookup(q: str) -> str:
    """Read something."""
    return q


@tool
def send_email(to: str) -> str:
    """Do something that cannot be undone."""
    return to


model = Chat()
hedged = HedgedChat()
bound = model.bind_tools([lookup])
prompt = ChatPromptTemplate.from_messages([("human", "{question}")])
registry: dict[str, BaseTool] = {"send": send_email}


def one(node: Any, **kwargs: Any) -> StateGraph[Any, Any, Any, Any]:
    """Return a graph with one node, called ``n``."""
    builder = StateGraph(State)
    builder.add_node("n", node, **kwargs)
    builder.add_edge(START, "n")
    return builder


# --- what resolves ------------------------------------------------------------------------------------------------


def n_bound_global(state: State) -> Any:
    return {"messages": [bound.invoke("x")]}


def n_direct(state: State) -> Any:
    return {"log": [send_email.invoke({"to": "a"})]}


def helper() -> Any:
    return send_email.invoke({"to": "a"})


def n_helper(state: State) -> Any:
    return {"log": [helper()]}


def n_plain(state: State) -> Any:
    text = str(state["messages"][-1].content).strip().lower()
    return {"log": [text.split(",")[0], len(state.get("log", []))]}


async def n_async(state: State) -> Any:
    chain = prompt | model.with_config({"tags": ["x"]})
    answer = await chain.ainvoke({"question": state["messages"][-1].content})
    return {"messages": [answer]}


def n_hedged(state: State) -> Any:
    return {"messages": [hedged.invoke(state["messages"])]}


def n_closure(chosen: BaseTool) -> Callable[[State], Any]:
    def node(state: State) -> Any:
        return {"log": [chosen.invoke({"q": "x"})]}

    return node


searching = model.bind(tools=[{"type": "web_search"}])
executing = model.bind(tools=[{"type": "web_search"}, {"type": "code_interpreter"}])
remote_tools = model.bind(tools=[{"type": "mcp", "server_label": "crm", "allowed_tools": ["find", "drop"]}])


def n_searching(state: State) -> Any:
    return {"messages": [searching.invoke("x")]}


def n_executing(state: State) -> Any:
    return {"messages": [executing.invoke("x")]}


def n_remote_tools(state: State) -> Any:
    return {"messages": [remote_tools.invoke("x")]}


RESOLVED_RUNNABLES: dict[str, Any] = {
    "sequence": bound | RunnableLambda(lambda message: {"messages": [message]}),
    "parallel": RunnableLambda(n_plain) | {"a": send_email, "b": lookup},
    "fallbacks": bound.with_fallbacks([model.bind_tools([send_email])]),
    "retry": bound.with_retry(),
    "branch": RunnableBranch((lambda state: bool(state), send_email), lookup),
}


# --- what cannot be seen ------------------------------------------------------------------------------------------


def b_bind_tools(state: State) -> Any:
    return {"messages": [model.bind_tools([send_email]).invoke("x")]}


def b_context_tools(state: State, runtime: Runtime[Any]) -> Any:
    return {"messages": [model.bind_tools(runtime.context["tools"]).invoke("x")]}


def b_registry(state: State) -> Any:
    return {"log": [registry[state["log"][0]].invoke({"to": "a"})]}


def b_registry_get(state: State) -> Any:
    chosen = registry.get(state["log"][0])
    return {"log": [chosen.invoke({"to": "a"}) if chosen else None]}


def b_loop(state: State) -> Any:
    return {"log": [each.invoke({"to": "a"}) for each in registry.values()]}


def b_import(state: State) -> Any:
    from tests.adapters.langgraph.sample_tools import pay

    return {"log": [pay.invoke({"to": "a"})]}


class CallableObject:
    def __init__(self) -> None:
        self.tool = send_email

    def __call__(self, state: State) -> Any:
        return {"log": [self.tool.invoke({"to": "a"})]}


class Service:
    def __init__(self) -> None:
        self.tool = send_email

    def run(self, state: State) -> Any:
        return {"log": [self.tool.invoke({"to": "a"})]}


service = Service()


def b_service(state: State) -> Any:
    return service.run(state)


def b_network(state: State) -> Any:
    return {"log": [urllib.request.urlopen("http://localhost").read()]}


def b_parameter(state: State, runtime: Runtime[Any]) -> Any:
    return {"log": [runtime.context.client.get("x")]}


def b_from_state(state: State) -> Any:
    return {"log": [state["log"][0].execute("drop")]}


def b_called_value(state: State) -> Any:
    act = state["log"][0]
    return {"log": [act()]}


def b_getattr(state: State) -> Any:
    return {"log": [getattr(service, state["log"][0])(state)]}


def b_eval(state: State) -> Any:
    return {"log": [eval(state["log"][0])]}


def b_unresolved(state: State) -> Any:
    return {"log": [not_there_yet(state)]}  # type: ignore[name-defined]  # noqa: F821


def b_makes_model(state: State) -> Any:
    return init_chat_model(state["log"][0])


def b_new_object(state: State) -> Any:
    return Service().run(state)


def b_thread(state: State) -> Any:
    from asyncio import to_thread

    return to_thread(state["log"][0].invoke, "x")


BLIND_FUNCTIONS: list[Callable[..., Any]] = [value for name, value in list(globals().items()) if name.startswith("b_")]

configurable = Chat().configurable_fields(label=ConfigurableField(id="label"))


# --- where a graph goes --------------------------------------------------------------------------------------------


def route(state: State) -> str:
    return "tools"


def route_literal(state: State) -> Literal["tools", "__end__"]:
    return "tools"


def route_send(state: State) -> list[Send]:
    return [Send("tools", state)]


def n_command(state: State) -> Command[Literal["tools"]]:
    return Command(goto="tools")


def n_command_bare(state: State):  # type: ignore[no-untyped-def]
    return Command(goto="tools")


# --- what bars a whole node ---------------------------------------------------------------------------------------


def asks() -> Any:
    return interrupt("may I?")


def n_interrupt(state: State) -> Any:
    return {"log": [asks()]}


def n_store_write(state: State, runtime: Runtime[Any]) -> Any:
    assert runtime.store is not None
    runtime.store.put(("a",), "k", {"v": 1})
    return {}


def n_store_read(state: State) -> Any:
    return {"log": [get_store().get(("a",), "k")]}


@task
def remember(x: int) -> int:
    return x + 1


def n_task(state: State) -> Any:
    return {"log": [remember(1).result()]}
