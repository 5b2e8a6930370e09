"""Guarded tools in LangGraph, by the framework's features: retries, interrupts, parallel calls, injection, agents."""

from __future__ import annotations

import asyncio
import gc
import uuid
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    HumanInTheLoopMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, InjectedToolCallId, StructuredTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphBubbleUp
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import InjectedState, ToolNode, ToolRuntime
from langgraph.types import Command, RetryPolicy, interrupt

from agent_hedge import Fixed, Hedger, Target, current_attempt
from agent_hedge.core.events import Committed
from agent_hedge.core.scope import Forced, forced
from agent_hedge.core.step import Effect
from agent_hedge.core.stores import ClaimState
from agent_hedge.errors import ConfigurationError, EffectBarred, EffectInDoubt
from agent_hedge.testing.clock import run_virtual
from agent_hedge.tools.effect import tool_effect
from tests.adapters.langgraph.graph_kit import make_kit

WIRINGS = ("guard_tools", "guard_tool_call", "tool_node")
RETRY = RetryPolicy(max_attempts=3, initial_interval=0.001, jitter=False, retry_on=Exception)


@pytest.fixture
def hedger() -> Iterator[Hedger]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*runs once under durability")
        opened = Hedger()
        yield opened
        opened.close()


def claims(hedger: Hedger) -> list[Any]:
    return list(asyncio.run(hedger._shared.stores.claims.recent(100)))


def nodes(hedger: Hedger, wiring: str, tools: list[Any], **settings: Any) -> ToolNode:
    if wiring == "tool_node":
        return hedger.tool_node(tools, **settings)
    if wiring == "guard_tools":
        return ToolNode(hedger.guard_tools(tools), **settings)
    return ToolNode(tools, wrap_tool_call=hedger.guard_tool_call, awrap_tool_call=hedger.aguard_tool_call, **settings)


def ask(*names: str, **arguments: Any) -> AIMessage:
    """A message that asks for these tools, each time under fresh ids."""
    return AIMessage("", tool_calls=[{"name": n, "args": arguments, "id": f"call-{uuid.uuid4()}"} for n in names])


def thread(name: str = "t") -> RunnableConfig:
    return {"configurable": {"thread_id": name}}


def run(graph: Any, given: Any, asynchronous: bool, config: RunnableConfig | None = None) -> Any:
    config = config or thread()
    return asyncio.run(graph.ainvoke(given, config)) if asynchronous else graph.invoke(given, config)


class Paid(list[str]):
    """The world: what was paid."""

    def tool(self, fails: Exception | None = None, **declared: Any) -> BaseTool:
        @tool_effect(declared.pop("effect", Effect.ONCE), **declared)
        @tool
        def pay(amount: int, memo: str = "") -> str:
            """Pay."""
            self.append(memo)
            if fails is not None:
                raise fails
            return f"paid {amount}"

        return pay


def graph_of(node: Any, message: Callable[[], AIMessage], **settings: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", lambda _: {"messages": [message()]})
    builder.add_node("tools", node, **settings)
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    return builder.compile(checkpointer=InMemorySaver())


GIVEN = {"messages": [HumanMessage("Pay.")]}
both = pytest.mark.parametrize("asynchronous", [False, True], ids=["invoke", "ainvoke"])
wired = pytest.mark.parametrize("wiring", WIRINGS)


# --- the face of a tool


@tool
def everything(
    query: str,
    state: Annotated[dict[str, Any], InjectedState],
    call_id: Annotated[str, InjectedToolCallId],
    runtime: ToolRuntime,
    config: RunnableConfig,
    count: int = 3,
) -> str:
    """Use all that can be injected."""
    assert config["configurable"]["thread_id"] == "t"
    return f"{query} {count} {len(state['messages'])} {call_id == runtime.tool_call_id}"


@wired
@both
def test_r11_name_schema_and_injection_stay(hedger: Hedger, wiring: str, asynchronous: bool) -> None:
    (guarded,) = hedger.guard_tools([everything])
    assert (guarded.name, guarded.description, guarded.args) == (
        everything.name,
        everything.description,
        everything.args,
    )
    assert isinstance(guarded, StructuredTool)
    given, made = (t.tool_call_schema.model_json_schema() for t in (everything, guarded))  # type: ignore[union-attr]
    assert given == made
    assert hedger.guard_tools([guarded]) == [guarded]
    graph = graph_of(nodes(hedger, wiring, [everything]), lambda: ask("everything", query="q"))
    assert run(graph, GIVEN, asynchronous)["messages"][-1].content == "q 3 2 True"


class Bodied(BaseTool):
    name: str = "bodied"
    description: str = "A tool with a body of its own."
    ran: list[int] = []  # noqa: RUF012 - a pydantic field

    def _run(self, amount: int, run_manager: Any = None) -> str:
        assert run_manager is not None
        self.ran.append(amount)
        return f"ran {amount}"


@both
def test_r11_a_tool_with_a_body_of_its_own(hedger: Hedger, asynchronous: bool) -> None:
    bodied = Bodied()
    graph = graph_of(hedger.tool_node([bodied]), lambda: ask("bodied", amount=4))
    assert run(graph, GIVEN, asynchronous)["messages"][-1].content == "ran 4"
    assert bodied.ran == [4]
    assert [claim.state for claim in claims(hedger)] == [ClaimState.DONE]


def test_a_plain_function_becomes_a_tool(hedger: Hedger) -> None:
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    (guarded,) = hedger.guard_tools([pay])
    assert (guarded.name, guarded.description) == ("pay", "Pay.")


def test_r11_read_only_tools_need_no_claim(hedger: Hedger) -> None:
    @tool_effect(Effect.READ_ONLY)
    @tool
    def look(query: str) -> str:
        """Look."""
        return query

    graph = graph_of(hedger.tool_node([look]), lambda: ask("look", query="q"))
    run(graph, GIVEN, False)
    assert claims(hedger) == []


@both
@pytest.mark.parametrize("wiring", [*WIRINGS, "middleware"])
def test_r09_the_registry_hears_of_a_guarded_tool(hedger: Hedger, wiring: str, asynchronous: bool) -> None:
    @tool
    def undeclared(amount: int) -> str:
        """Say nothing of oneself."""
        return "?"

    pay = Paid().tool(effect=Effect.IDEMPOTENT)
    if wiring == "middleware":
        run(agent_of(hedger, pay, "hooks inside"), GIVEN, asynchronous)
    else:
        node = nodes(hedger, wiring, [pay, undeclared])
        run(graph_of(node, lambda: ask("pay", "undeclared", amount=5)), GIVEN, asynchronous)
    assert hedger.registry.effect("pay") is Effect.IDEMPOTENT
    assert hedger.registry.effect("undeclared") is Effect.UNKNOWN
    assert {(entry.name, entry.source) for entry in hedger.registry.entries()} == {("pay", "code")}


def test_r09_a_guarded_tool_takes_nothing_back_from_the_operator(hedger: Hedger) -> None:
    hedger.registry.annotate("pay", Effect.ONCE, note="it is not")
    hedger.guard_tools([Paid().tool(effect=Effect.READ_ONLY)])
    assert hedger.registry.effect("pay") is Effect.ONCE


def test_r09_a_guarded_tool_is_not_another_of_its_name(hedger: Hedger) -> None:
    hedger.guard_tools([Paid().tool(effect=Effect.READ_ONLY)])

    @tool_effect(Effect.ONCE)
    @tool("pay")
    def charge(amount: int) -> str:
        """Charge."""
        return "charged"

    hedger.guard_tools([charge])
    assert hedger.registry.effect("pay") is Effect.ONCE
    assert "two different tools" in hedger.registry.explain_entry("pay").why


@pytest.mark.parametrize("wiring", ["guard_tools", "guard_tool_call"])
def test_r10_a_guarded_reading_tool_runs_in_both_attempts_of_a_raced_node(wiring: str) -> None:
    kit, seen = make_kit("node"), []

    @tool_effect(Effect.READ_ONLY)
    @tool
    def look(amount: int) -> str:
        """Look."""
        seen.append(current_attempt().number)  # type: ignore[union-attr]
        return "seen"

    reading = nodes(kit.hedger, wiring, [look])

    async def body(state: Any, config: RunnableConfig) -> Any:
        await reading.ainvoke({"messages": [ask("look", amount=1)]}, config)
        await asyncio.sleep(1.0 - 0.9 * current_attempt().number)  # type: ignore[union-attr]
        return {"messages": [AIMessage("done")]}

    settings: Any = {"effect": Effect.READ_ONLY, "trigger": "total", "policy": Fixed(0.1), "targets": ["a", "b"]}
    builder: Any = StateGraph(MessagesState)
    builder.add_node("ask", kit.hedger.node(body, unit="node", **settings))
    builder.add_edge(START, "ask")
    graph = builder.compile()
    assert run_virtual(lambda: graph.ainvoke(GIVEN))["messages"][-1].content == "done"
    assert seen == [0, 1]
    assert not any(isinstance(event, Committed) and event.by_claim for event in kit.events)


@wired
@both
def test_r11_an_unknown_tool_keeps_the_error_of_toolnode(hedger: Hedger, wiring: str, asynchronous: bool) -> None:
    graph = graph_of(nodes(hedger, wiring, [Paid().tool()]), lambda: ask("other"))
    answer = run(graph, GIVEN, asynchronous)["messages"][-1]
    assert answer.status == "error"
    assert answer.content == "Error: other is not a valid tool, try one of [pay]."


# --- retries


@wired
@both
def test_r11_a_retry_after_the_effect_gets_the_stored_result(hedger: Hedger, wiring: str, asynchronous: bool) -> None:
    paid, tries = Paid(), []

    @tool_effect(Effect.READ_ONLY)
    @tool
    def flaky() -> str:
        """Fail twice."""
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return "at last"

    node = nodes(hedger, wiring, [paid.tool(), flaky], handle_tool_errors=False)
    message = ask("pay", amount=5)
    message.tool_calls += ask("flaky").tool_calls
    graph = graph_of(node, lambda: message, retry_policy=RETRY)
    done = run(graph, GIVEN, asynchronous)["messages"][-2:]
    assert [answer.content for answer in done] == ["paid 5", "at last"]
    assert len(paid) == 1
    assert len(tries) == 3


@both
def test_r11_a_node_that_asks_anew_at_every_retry_pays_once(hedger: Hedger, asynchronous: bool) -> None:
    paid = Paid()
    (pay,) = hedger.guard_tools([paid.tool()])

    def node(_: Any) -> Any:
        pay.invoke(ask("pay", amount=5, memo=str(uuid.uuid4())).tool_calls[0])
        raise ConnectionError("a flaky line after the effect")

    async def anode(_: Any) -> Any:
        await pay.ainvoke(ask("pay", amount=5, memo=str(uuid.uuid4())).tool_calls[0])
        raise ConnectionError("a flaky line after the effect")

    builder: Any = StateGraph(MessagesState)
    builder.add_node("node", anode if asynchronous else node, retry_policy=RETRY)
    builder.add_edge(START, "node")
    for checkpointer in (InMemorySaver(), None):
        paid.clear()
        with pytest.raises(EffectInDoubt, match="missing in the history"):
            run(builder.compile(checkpointer=checkpointer), GIVEN, asynchronous, thread(str(uuid.uuid4())))
        assert len(paid) == 1


@both
def test_r11_calls_of_the_nodes_own_code_are_told_apart_by_their_order(hedger: Hedger, asynchronous: bool) -> None:
    paid, tries = Paid(), []
    (pay,) = hedger.guard_tools([paid.tool()])

    def node(_: Any) -> Any:
        answers = [pay.invoke({"amount": 5}), pay.invoke({"amount": 5}), pay.func(amount=7)]  # type: ignore[attr-defined]
        assert answers == ["paid 5", "paid 5", "paid 7"]
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return {}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("node", node, retry_policy=RETRY)
    builder.add_edge(START, "node")
    run(builder.compile(checkpointer=InMemorySaver()), GIVEN, asynchronous)
    assert len(paid) == 3


@both
def test_r11_a_retried_node_around_a_whole_agent_pays_once(hedger: Hedger, asynchronous: bool) -> None:
    """The agent inside keeps no checkpoints, so its model runs again: retries are seen at every depth."""
    paid = Paid()

    def say() -> AIMessage:
        return ask("pay", amount=5, memo=str(uuid.uuid4()))

    inner: Any = StateGraph(MessagesState)
    inner.add_node("model", lambda _: {"messages": [say()]})
    inner.add_node("tools", hedger.tool_node([paid.tool()]))
    inner.add_edge(START, "model")
    inner.add_edge("model", "tools")
    agent: Any = inner.compile(checkpointer=False)

    def node(_: Any) -> Any:
        agent.invoke(GIVEN)
        raise ConnectionError

    async def anode(_: Any) -> Any:
        await agent.ainvoke(GIVEN)
        raise ConnectionError

    outer: Any = StateGraph(MessagesState)
    outer.add_node("agent", anode if asynchronous else node, retry_policy=RETRY)
    outer.add_edge(START, "agent")
    with pytest.raises(EffectInDoubt):
        run(outer.compile(checkpointer=InMemorySaver()), GIVEN, asynchronous)
    assert len(paid) == 1


# --- errors of the tool


@wired
@both
@pytest.mark.parametrize("reworded", [False, True])
def test_r11_an_ambiguous_failure_is_never_please_try_again(
    hedger: Hedger, wiring: str, asynchronous: bool, reworded: bool
) -> None:
    paid = Paid()
    node = nodes(hedger, wiring, [paid.tool(fails=ConnectionError("reset"))], handle_tool_errors=True)
    memo = str(uuid.uuid4()) if reworded else "same"
    graph = graph_of(node, lambda: ask("pay", amount=5, memo=memo + str(uuid.uuid4()) * reworded), retry_policy=RETRY)
    with pytest.raises(EffectInDoubt, match="ConnectionError") as caught:
        run(graph, GIVEN, asynchronous)
    assert isinstance(caught.value, GraphBubbleUp)
    assert isinstance(caught.value.__cause__, ConnectionError)
    for given in (None, GIVEN, GIVEN):  # resumed, and asked again by the user: the model words it anew
        with pytest.raises(EffectInDoubt):
            run(graph, given, asynchronous)
    assert len(paid) == 1


class Fake(BaseChatModel):
    """Pays until it sees that it was paid; under fresh ids, in other words."""

    asked: list[int] = []  # noqa: RUF012 - a pydantic field

    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(one) for one in tools])

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        self.asked.append(1)
        answers = [m for m in messages if isinstance(m, ToolMessage) and m.status != "error"]
        said = AIMessage("done") if answers else ask("pay", amount=5, memo=str(uuid.uuid4()))
        return ChatResult(generations=[ChatGeneration(message=said)])


class Hooks(AgentMiddleware[Any, Any]):
    def __init__(self, hedger: Hedger) -> None:
        super().__init__()
        self.hedger = hedger

    def wrap_tool_call(self, request: Any, handler: Any) -> Any:
        return self.hedger.guard_tool_call(request, handler)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        return await self.hedger.aguard_tool_call(request, handler)


def agent_of(hedger: Hedger, pay: BaseTool, way: str, **settings: Any) -> Any:
    around = [
        ToolRetryMiddleware(initial_delay=0.001, jitter=False),
        ToolErrorMiddleware(lambda error, request: "Please try again."),
        *settings.pop("middleware", []),
    ]
    tools = [pay]
    if way == "guard_tools":
        tools = hedger.guard_tools(tools)
    elif way == "hooks inside":
        around.append(Hooks(hedger))
    else:
        around.insert(0, Hooks(hedger))
    return create_agent(
        settings.pop("model", Fake()), tools, middleware=around, checkpointer=InMemorySaver(), **settings
    )


ways = pytest.mark.parametrize("way", ["guard_tools", "hooks inside", "hooks outside"])


@ways
@both
def test_r11_an_agent_with_retry_and_error_middleware_pays_once(hedger: Hedger, way: str, asynchronous: bool) -> None:
    paid = Paid()
    agent = agent_of(hedger, paid.tool(fails=TimeoutError("read")), way)
    for given in (GIVEN, None, GIVEN):
        with pytest.raises(EffectInDoubt):
            run(agent, given, asynchronous)
    assert len(paid) == 1


@pytest.mark.parametrize("guarding", ["hooks", "middleware", "both"])
@both
def test_r11_an_unknown_tool_keeps_the_error_of_create_agent(hedger: Hedger, guarding: str, asynchronous: bool) -> None:
    class Errs(Fake):
        """Asks for a tool that there is not, and then is content."""

        def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
            said = AIMessage("done") if isinstance(messages[-1], ToolMessage) else ask("refund", amount=5)
            return ChatResult(generations=[ChatGeneration(message=said)])

    def told(tools: list[BaseTool], *middleware: Any) -> tuple[str, str]:
        agent: Any = create_agent(Errs(), tools, middleware=middleware, checkpointer=InMemorySaver())
        message = run(agent, GIVEN, asynchronous)["messages"][-2]
        return message.content, message.status

    paid = Paid()
    shipped: Any = hedger.middleware(Errs(), family="fake")
    around = {"hooks": [Hooks(hedger)], "middleware": [shipped], "both": [Hooks(hedger), shipped]}[guarding]
    assert told([paid.tool()], *around) == told([paid.tool()])
    assert "refund is not a valid tool" in told([paid.tool()], *around)[0]
    assert (paid, claims(hedger)) == ([], [])


@ways
@both
def test_r11_an_agent_that_works_is_left_alone(hedger: Hedger, way: str, asynchronous: bool) -> None:
    paid = Paid()
    agent = agent_of(hedger, paid.tool(), way)
    assert run(agent, GIVEN, asynchronous)["messages"][-1].content == "done"
    assert len(paid) == 1


@both
def test_r11_a_declared_error_proves_that_nothing_happened(hedger: Hedger, asynchronous: bool) -> None:
    paid = Paid()
    agent = agent_of(hedger, paid.tool(fails=PermissionError("no"), not_started=PermissionError), "guard_tools")
    agent = agent.with_config(recursion_limit=8)
    with pytest.raises(Exception, match="recursion"):
        run(agent, GIVEN, asynchronous)
    assert len(paid) > 1
    assert {claim.state for claim in claims(hedger)} == {ClaimState.FAILED}


@both
def test_r11_a_repeatable_tool_that_raises_has_simply_failed(hedger: Hedger, asynchronous: bool) -> None:
    paid = Paid()
    node = hedger.tool_node([paid.tool(effect=Effect.IDEMPOTENT, fails=ConnectionError())], handle_tool_errors=False)
    with pytest.raises(ConnectionError):
        run(graph_of(node, lambda: ask("pay", amount=5), retry_policy=RETRY), GIVEN, asynchronous)
    assert len(paid) == 3
    assert [(claim.state, claim.executions) for claim in claims(hedger)] == [(ClaimState.FAILED, 3)]


# --- interrupts


@both
def test_r11_an_interrupt_after_the_effect_does_not_repeat_it(hedger: Hedger, asynchronous: bool) -> None:
    paid = Paid()
    (pay,) = hedger.guard_tools([paid.tool()])

    def node(state: Any) -> Any:
        pay.invoke({**state["messages"][-1].tool_calls[0], "type": "tool_call"})
        return {"messages": [HumanMessage(interrupt("Well?"))]}

    async def anode(state: Any) -> Any:
        await pay.ainvoke({**state["messages"][-1].tool_calls[0], "type": "tool_call"})
        return {"messages": [HumanMessage(interrupt("Well?"))]}

    graph = graph_of(anode if asynchronous else node, lambda: ask("pay", amount=5))
    assert run(graph, GIVEN, asynchronous)["__interrupt__"][0].value == "Well?"
    assert run(graph, Command(resume="well"), asynchronous)["messages"][-1].content == "well"
    assert len(paid) == 1


@both
def test_r11_an_interrupt_after_an_effect_under_a_fresh_id_is_in_doubt(hedger: Hedger, asynchronous: bool) -> None:
    paid = Paid()
    (pay,) = hedger.guard_tools([paid.tool()])

    def node(_: Any) -> Any:
        pay.invoke(ask("pay", amount=5, memo=str(uuid.uuid4())).tool_calls[0])
        return {"messages": [HumanMessage(interrupt("Well?"))]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=InMemorySaver())
    run(graph, GIVEN, asynchronous)
    with pytest.raises(EffectInDoubt):
        run(graph, Command(resume="well"), asynchronous)
    assert len(paid) == 1


@wired
@both
def test_r11_a_tool_that_asks_in_its_body_pauses_and_is_in_doubt_unless_it_says_otherwise(
    hedger: Hedger, wiring: str, asynchronous: bool
) -> None:
    for declared, outcome in (((), None), ((GraphBubbleUp,), "paid yes")):
        paid = []

        @tool_effect(Effect.ONCE, not_started=declared)
        @tool
        def pay() -> str:
            """Ask, then pay."""
            said = interrupt("May I?")
            paid.append(said)  # noqa: B023
            return f"paid {said}"

        graph = graph_of(nodes(hedger, wiring, [pay]), lambda: ask("pay"))
        config = thread(str(uuid.uuid4()))
        assert run(graph, GIVEN, asynchronous, config)["__interrupt__"][0].value == "May I?"
        if outcome is None:
            with pytest.raises(EffectInDoubt):
                run(graph, Command(resume="yes"), asynchronous, config)
        else:
            assert run(graph, Command(resume="yes"), asynchronous, config)["messages"][-1].content == outcome
        assert len(paid) == (outcome is not None)


@both
@pytest.mark.parametrize("answer", ["happened", "did_not_happen", "abandon"])
def test_r11_a_person_settles_a_call_in_doubt(asynchronous: bool, answer: str) -> None:
    hedger = Hedger(on_in_doubt="interrupt")
    tries: list[int] = []

    @tool_effect(Effect.ONCE)
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        tries.append(1)
        if len(tries) == 1:
            raise ConnectionError("lost")
        return f"paid {amount}"

    graph = graph_of(hedger.tool_node([pay]), lambda: ask("pay", amount=5))
    with pytest.raises(EffectInDoubt), pytest.warns(UserWarning, match="durability"):
        run(graph, GIVEN, asynchronous)
    (question,) = run(graph, None, asynchronous)["__interrupt__"]
    assert question.value["tool"] == "pay"
    assert question.value["answers"] == ["happened", "did_not_happen", "abandon"]
    (again,) = run(graph, Command(resume="what?"), asynchronous)["__interrupt__"]
    assert again.value["key"] == question.value["key"]
    said = run(graph, Command(resume=answer), asynchronous)["messages"][-1].content
    expected = {"happened": "was carried out before", "did_not_happen": "paid 5", "abandon": "given up by a person"}
    assert expected[answer] in said
    assert len(tries) == (2 if answer == "did_not_happen" else 1)
    hedger.close()


APPROVE: Any = Command(resume={"decisions": [{"type": "approve"}]})


class Stumbles(AgentMiddleware[Any, Any]):
    """Fails once after the tool's step."""

    def __init__(self) -> None:
        super().__init__()
        self.tries = 0

    def before_model(self, state: Any, runtime: Any) -> None:
        if isinstance(state["messages"][-1], ToolMessage):
            self.tries += 1
            if self.tries == 1:
                raise ConnectionError


@pytest.fixture(params=[1, 2], ids=["one attempt", "two attempts"])
def approved(request: pytest.FixtureRequest, hedger: Hedger) -> Iterator[tuple[Paid, Any]]:
    """A world, and an agent that needs an approval to pay in it and stumbles afterwards; its model, hedged or not."""
    paid, members = Paid(), [Fake(asked=[]) for _ in range(request.param)]
    model: Any = members[0]
    if request.param == 2:
        model = hedger.chat_model(*map(Target, "ab", members), family="fake", trigger="total")
    middleware = [HumanInTheLoopMiddleware(interrupt_on={"pay": True}), Stumbles()]
    token = forced.set(Forced(hedge=True, winner=1))
    yield paid, agent_of(hedger, paid.tool(), "hooks inside", model=model, middleware=middleware)
    forced.reset(token)
    assert all(member.asked for member in members)


@both
def test_c11_one_approval_covers_one_execution(approved: tuple[Paid, Any], asynchronous: bool) -> None:
    paid, agent = approved
    assert "__interrupt__" in run(agent, GIVEN, asynchronous)
    assert paid == []
    with pytest.raises(ConnectionError):
        run(agent, APPROVE, asynchronous)
    assert run(agent, None, asynchronous)["messages"][-1].content == "done"
    assert len(paid) == 1


@both
def test_c11_nor_does_a_retry_of_the_node_around_the_agent_execute_it_anew(
    approved: tuple[Paid, Any], asynchronous: bool
) -> None:
    paid, agent = approved
    builder: Any = StateGraph(MessagesState)
    builder.add_node("agent", agent, retry_policy=RETRY)
    builder.add_edge(START, "agent")
    graph = builder.compile(checkpointer=InMemorySaver())
    assert "__interrupt__" in run(graph, GIVEN, asynchronous)
    assert "__interrupt__" in run(graph, APPROVE, asynchronous)  # LangGraph asks again in the retry
    assert len(paid) == 1
    assert run(graph, APPROVE, asynchronous)["messages"][-1].content == "done"
    assert len(paid) == 1


# --- keys, tenants, principals


@both
def test_r11_a_keyed_tool_is_given_the_key_and_the_model_never_sees_it(hedger: Hedger, asynchronous: bool) -> None:
    given = []

    @tool_effect(Effect.KEYED, key="order", scope="tenant", key_param="idempotency_key")
    @tool
    def pay(order: str, idempotency_key: str = "") -> str:
        """Pay."""
        given.append(idempotency_key)
        return "paid"

    for tenant in ("acme", "acme", "other"):
        with hedger.run(tenant=tenant):
            graph = graph_of(hedger.tool_node([pay]), lambda: ask("pay", order="7", idempotency_key=str(uuid.uuid4())))
            assert run(graph, GIVEN, asynchronous)["messages"][-1].content == "paid"
    assert [len(key) for key in given] == [64, 64]  # one for each tenant; what the model put there does not count
    assert given == [claim.effect_key for claim in reversed(claims(hedger))]


@both
def test_r11_a_key_within_a_tenant_needs_a_tenant(hedger: Hedger, asynchronous: bool) -> None:
    paid = Paid()
    graph = graph_of(
        hedger.tool_node([paid.tool(key="memo", scope="tenant")]), lambda: ask("pay", amount=5, memo="order 7")
    )
    with pytest.raises(EffectBarred, match="tenant"):
        run(graph, GIVEN, asynchronous)
    assert (paid, claims(hedger)) == ([], [])


@both
def test_c11_another_principal_replays_nothing(hedger: Hedger, asynchronous: bool) -> None:
    paid = Paid()
    node = hedger.tool_node([paid.tool(key="memo", scope="global")])

    def pay() -> str:
        graph = graph_of(node, lambda: ask("pay", amount=5, memo="order 7"))
        return str(run(graph, GIVEN, asynchronous)["messages"][-1].content)

    with hedger.run(principal="ann"):
        assert [pay(), pay()] == ["paid 5", "paid 5"]
    with hedger.run(principal="bob"), pytest.raises(EffectBarred, match="another principal"):
        pay()
    assert paid == ["order 7"]


# --- functions


@both
def test_r11_once_in_a_node_by_place(hedger: Hedger, asynchronous: bool) -> None:
    sent, tries = [], []

    @hedger.once
    def notify(text: str) -> str:
        sent.append(text)
        return f"sent {text}"

    @hedger.once
    async def anotify(text: str) -> str:
        sent.append(text)
        return f"sent {text}"

    async def anode(_: Any) -> Any:
        assert await anotify("a") == "sent a"
        return fail()

    def node(_: Any) -> Any:
        assert notify("a") == "sent a"
        return fail()

    def fail() -> dict[str, Any]:
        tries.append(1)
        if len(tries) < 3:
            raise ConnectionError
        return {}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("node", anode if asynchronous else node, retry_policy=RETRY)
    builder.add_edge(START, "node")
    graph = builder.compile(checkpointer=InMemorySaver())
    run(graph, GIVEN, asynchronous)
    assert sent == ["a"]
    run(graph, GIVEN, asynchronous)  # the next turn is another call
    assert sent == ["a", "a"]


def test_r11_once_by_key(hedger: Hedger) -> None:
    sent = []

    @hedger.once(key="order", scope="global")
    def notify(order: int, text: str = "") -> list[int]:
        sent.append(order)
        return [order]

    assert [notify(1), notify(1), notify(order=2)] == [[1], [1], [2]]
    assert sent == [1, 2]
    with pytest.raises(EffectBarred, match="other arguments"):
        notify(1, "else")


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_r11_once_runs_an_async_callable_to_its_end(hedger: Hedger) -> None:
    sent = []

    class Notify:
        async def __call__(self, order: int) -> int:
            sent.append(order)
            return order

    notify = hedger.once(Notify(), key="order", scope="global")
    assert [await notify(1), await notify(1)] == [1, 1]
    assert sent == [1]


def test_r20_what_is_not_run_by_its_call_cannot_run_once(hedger: Hedger) -> None:
    def lazily(order: int) -> Iterator[int]:
        yield order

    async def alazily(order: int) -> AsyncIterator[int]:
        yield order

    async def coroutine(order: int) -> int:
        return order

    for fn in (lazily, alazily):
        with pytest.raises(ConfigurationError, match="a generator is run by who iterates it"):
            hedger.once(fn, key="order")

    def forgets(order: int) -> Any:
        return coroutine(order)

    returns = hedger.once(forgets, key="order", scope="global")
    with pytest.raises(EffectInDoubt) as caught:
        returns(1)
    assert "needs it to be an async function" in str(caught.value.__cause__)


def test_r11_functions_of_one_name_are_told_apart_by_name(hedger: Hedger) -> None:
    first = hedger.once(lambda order: "first", key="order", scope="global")
    with pytest.warns(UserWarning, match=r"two functions named .*<lambda> run once.*name="):
        second = hedger.once(lambda order: "second", key="order", scope="global")
    assert [first(1), second(1)] == ["first", "first"]
    third = hedger.once(lambda order: "third", key="order", scope="global", name="third")
    assert third(1) == "third"
    with pytest.raises(ConfigurationError, match="name must not be empty"):
        hedger.once(lambda order: order, key="order", name="")


def test_r11_once_needs_a_key_or_a_place(hedger: Hedger) -> None:
    notify = hedger.once(lambda: None)
    with pytest.raises(ConfigurationError, match="needs key=, or a node"):
        notify()


def test_r11_the_default_durability_is_warned_about_once() -> None:
    hedger = Hedger()
    graph = graph_of(hedger.tool_node([Paid().tool()]), lambda: ask("pay", amount=5))
    with pytest.warns(UserWarning, match="durability='async'") as caught:
        [run(graph, GIVEN, False) for _ in range(2)]
    assert len([line for line in caught if "durability" in str(line.message)]) == 1
    hedger.close()


# --- tools that come and go


@tool_effect(Effect.READ_ONLY)
class Looks(BaseTool):
    name: str = "looks"
    description: str = "Look."

    def _run(self, a: str) -> str:
        return a


def by_decorator() -> BaseTool:
    @tool_effect(Effect.READ_ONLY)
    @tool
    def looks(a: str) -> str:
        """Look."""
        return a

    return looks


def by_metadata() -> BaseTool:
    return StructuredTool.from_function(
        lambda a: a, name="looks", description="Look.", metadata={"agent_hedge": {"effect": "read_only"}}
    )


@pytest.mark.parametrize("make", [Looks, by_decorator, by_metadata])
def test_tools_made_for_one_request_are_forgotten_with_it(hedger: Hedger, make: Callable[[], BaseTool]) -> None:
    made = make()
    (copy,) = hedger.guard_tools([made])
    assert hedger.guard_tools([made])[0] is copy
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    assert copy.invoke({"a": "x"}) == "x"
    assert claims(hedger) == [], "what it does is still known: reading needs no claim"
    forgotten = weakref.ref(copy)
    del copy
    gc.collect()
    assert forgotten() is None
