"""`create_agent`: a hedged model in it, the hedge middleware, and what stands around them (issue 5, 5)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ContextEditingMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolRetryMiddleware,
    after_model,
    before_model,
    dynamic_prompt,
)
from langchain.agents.middleware.types import ExtendedModelResponse
from langchain.agents.structured_output import ProviderStrategy, ToolStrategy
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command
from pydantic import BaseModel
from typing_extensions import TypedDict

from agent_hedge import Effect, tool_effect
from agent_hedge.core.scope import Forced, forced
from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.conforming import conforms
from tests.adapters.langgraph.graph_kit import Chat, Kit, State, checkpoints, echo, everything, make_kit, thread


@tool
def look(q: str) -> str:
    """Look something up."""
    return f"found {q}"


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


def asks_for(name: str, **args: Any) -> Any:
    """Return an answer that asks for a tool first, and then says what it got."""

    def answer(messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage(f"it says {messages[-1].content}")
        return AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call_{len(messages)}"}])

    return answer


def hi() -> Any:
    return {"messages": [HumanMessage("hi", id="q")]}


async def with_tools(kit: Kit) -> Any:
    agent = create_agent(kit.chat(asks_for("look", q="x")), [look], checkpointer=InMemorySaver())
    return [await everything(agent, hi(), thread()), await checkpoints(agent, thread())]


async def with_a_human(kit: Kit) -> Any:
    human = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
    agent = create_agent(kit.chat(asks_for("pay", amount=3)), [pay], middleware=[human], checkpointer=InMemorySaver())
    seen = [await everything(agent, hi(), thread()), await checkpoints(agent, thread())]
    resume: Any = Command(resume={"decisions": [{"type": "approve"}]})
    return [*seen, await everything(agent, resume, thread())]


class Weather(BaseModel):
    """The weather."""

    degrees: int


async def with_structured_output(kit: Kit) -> Any:
    def answer(messages: list[BaseMessage]) -> AIMessage:
        return AIMessage("", tool_calls=[{"name": "Weather", "args": {"degrees": 20}, "id": "call_w"}])

    agent = create_agent(kit.chat(answer), [], response_format=ToolStrategy(Weather))
    return await everything(agent, hi())


async def with_a_summary(kit: Kit) -> Any:
    summary = SummarizationMiddleware(kit.chat(), trigger=("messages", 3), keep=("messages", 1))
    agent = create_agent(kit.chat(), [], middleware=[summary])
    messages = [HumanMessage(f"m{n}", id=f"m{n}") for n in range(5)]
    return await agent.ainvoke({"messages": [*messages]})


async def with_a_fallback(kit: Kit) -> Any:
    def refuse(messages: list[BaseMessage]) -> ValueError:
        return ValueError("no")

    agent = create_agent(kit.chat(refuse), [], middleware=[ModelFallbackMiddleware(kit.chat())])
    return await everything(agent, hi())


async def with_a_limit(kit: Kit) -> Any:
    agent = create_agent(
        kit.chat(asks_for("look", q="x")),
        [look],
        middleware=[ModelCallLimitMiddleware(run_limit=2, exit_behavior="end")],
    )
    return await everything(agent, hi())


def asking_for(*calls: tuple[str, dict[str, Any]]) -> Any:
    """Return an answer that asks for several tools at once, and then says what the last one gave."""

    def answer(messages: list[BaseMessage]) -> AIMessage:
        if isinstance(messages[-1], ToolMessage):
            return AIMessage(f"it says {messages[-1].content}")
        asked: Any = [{"name": name, "args": args, "id": f"call_{at}"} for at, (name, args) in enumerate(calls)]
        return AIMessage("", tool_calls=asked)

    return answer


async def seen_of(agent: Any, **settings: Any) -> Any:
    return [await everything(agent, hi(), thread(), **settings), await checkpoints(agent, thread())]


@tool
async def search(q: str) -> str:
    """Search for something."""
    return f"searched {q}"


@tool(return_direct=True)
def last(q: str) -> str:
    """Say the last word."""
    return f"last {q}"


@tool
def commands(q: str, runtime: ToolRuntime) -> Command[Any]:
    """Write the state."""
    return Command(update={"messages": [ToolMessage(f"wrote {q}", tool_call_id=runtime.tool_call_id)]})


@tool
def breaks(q: str) -> str:
    """Break."""
    raise ValueError(f"no {q}")


TOOLS = [look, search, last, commands, breaks, pay]
CALLS: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "several": [("search", {"q": text}) for text in "abc"],
    "returned": [("last", {"q": "a"})],
    "command": [("commands", {"q": "a"})],
    "broken": [("breaks", {"q": "a"})],
    "unknown": [("nobody", {"q": "a"})],
    "misused": [("look", {"z": "a"})],
}


@pytest.mark.parametrize("calls", CALLS)
def test_r05_agents_call_tools(calls: str) -> None:
    async def calling(kit: Kit) -> Any:
        return await seen_of(create_agent(kit.chat(asking_for(*CALLS[calls])), TOOLS, checkpointer=InMemorySaver()))

    conforms(calling, units=("model",))


def decided(decision: Any) -> Any:
    async def by_a_person(kit: Kit) -> Any:
        human = HumanInTheLoopMiddleware(interrupt_on={"pay": True})
        model, saver = kit.chat(asks_for("pay", amount=3)), InMemorySaver()
        agent: Any = create_agent(model, [pay], middleware=[human], checkpointer=saver)
        seen = await seen_of(agent)
        return [*seen, await everything(agent, Command(resume={"decisions": [decision]}), thread())]

    return by_a_person


@pytest.mark.parametrize(
    "decision",
    [
        {"type": "edit", "edited_action": {"name": "pay", "args": {"amount": 4}}},
        {"type": "reject", "message": "too much"},
    ],
    ids=["edit", "reject"],
)
def test_r05_a_person_decides(decision: Any) -> None:
    conforms(decided(decision), units=("model",))


@dynamic_prompt
async def prompted(request: Any) -> str:
    return f"You have seen {len(request.messages)} messages."


@before_model(can_jump_to=["end"])
async def stops(state: Any, runtime: Any) -> Any:
    """End after the first tool."""
    if len(state["messages"]) > 2:
        return {"jump_to": "end", "messages": [AIMessage("enough", id="enough")]}
    return None


@after_model
async def counts(state: Any, runtime: Any) -> None:
    """Look on."""


def failing(messages: list[BaseMessage]) -> ValueError:
    return ValueError("no")


def selects(messages: list[BaseMessage]) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "ToolSelectionResponse", "args": {"tools": ["look"]}, "id": "s"}])


def plans(messages: list[BaseMessage]) -> AIMessage:
    todos = [{"content": "x", "status": "pending"}]
    return asking_for(("write_todos", {"todos": todos}))(messages)  # type: ignore[no-any-return]


LOOKS = asking_for(("look", {"q": "a"}))
SEARCHES = asking_for(("search", {"q": "a"}), ("search", {"q": "b"}))
AROUND: dict[str, tuple[Any, Any]] = {
    "prompt": (LOOKS, lambda kit: [prompted]),
    "jump": (LOOKS, lambda kit: [stops, counts]),
    "model_retry": (failing, lambda kit: [ModelRetryMiddleware(max_retries=2, initial_delay=0.1, jitter=False)]),
    "tool_retry": (LOOKS, lambda kit: [ToolRetryMiddleware(max_retries=1, initial_delay=0.1, jitter=False)]),
    "tool_limit": (SEARCHES, lambda kit: [ToolCallLimitMiddleware(run_limit=1)]),
    "todo": (plans, lambda kit: [TodoListMiddleware()]),
    "editing": (LOOKS, lambda kit: [ContextEditingMiddleware()]),
    "pii": (lambda _: AIMessage("write to a@b.com"), lambda kit: [PIIMiddleware("email", apply_to_output=True)]),
    "selector": (LOOKS, lambda kit: [LLMToolSelectorMiddleware(model=kit.chat(selects), max_tools=1)]),
    "fallbacks": (failing, lambda kit: [ModelFallbackMiddleware(kit.chat(failing), kit.chat())]),
}


@pytest.mark.parametrize("kind", AROUND)
def test_r05_agents_with_middleware_around_a_hedged_model(kind: str) -> None:
    answer, around = AROUND[kind]

    async def agent(kit: Kit) -> Any:
        middleware = around(kit)
        return await seen_of(create_agent(kit.chat(answer), TOOLS, middleware=middleware, checkpointer=InMemorySaver()))

    conforms(agent, units=("model",))


async def with_the_providers_structured_output(kit: Kit) -> Any:
    model = kit.chat(lambda _: AIMessage('{"degrees": 3}'))
    return await everything(create_agent(model, [], response_format=ProviderStrategy(Weather)), hi())


async def with_structured_output_at_the_second_try(kit: Kit) -> Any:
    def answer(messages: list[BaseMessage]) -> AIMessage:
        degrees: Any = 20 if isinstance(messages[-1], ToolMessage) else "warm"
        return AIMessage("", tool_calls=[{"name": "Weather", "args": {"degrees": degrees}, "id": f"w{len(messages)}"}])

    return await everything(create_agent(kit.chat(answer), [], response_format=ToolStrategy(Weather)), hi())


async def as_events_v2(kit: Kit) -> Any:
    return [event async for event in create_agent(kit.chat(LOOKS), TOOLS).astream_events(hi(), version="v2")]


async def as_events_v3(kit: Kit) -> Any:
    agent: Any = create_agent(kit.chat(LOOKS), TOOLS)
    stream = await agent.astream_events(hi(), version="v3")
    return [{key: event[key] for key in ("method", "params")} async for event in stream]


async def as_a_tool(kit: Kit) -> Any:
    helper: Any = create_agent(kit.chat(LOOKS), TOOLS, name="helper")

    @tool
    async def ask(q: str) -> str:
        """Ask the helper."""
        return str((await helper.ainvoke({"messages": [HumanMessage(q, id="hq")]}))["messages"][-1].content)

    return await seen_of(create_agent(kit.chat(asks_for("ask", q="z")), [ask], checkpointer=InMemorySaver()))


async def handing_over(kit: Kit) -> Any:
    @tool
    def hand_over(runtime: ToolRuntime) -> Command[Any]:
        """Hand over."""
        said = ToolMessage("over", tool_call_id=runtime.tool_call_id)
        return Command(goto="other", graph=Command.PARENT, update={"messages": [*runtime.state["messages"], said]})

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    first: Any = create_agent(kit.chat(asks_for("hand_over")), [hand_over], name="first")
    builder.add_node("first", first, destinations=("other",))
    builder.add_node("other", create_agent(kit.chat(), [], name="other"))
    builder.add_edge(START, "first")
    return await seen_of(builder.compile(checkpointer=InMemorySaver()))


async def as_a_subgraph(kit: Kit) -> Any:
    agent = create_agent(kit.chat(asks_for("look", q="x")), [look], name="helper")
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("helper", kit.hedger.node(agent) if kit.unit == "model" else agent)
    builder.add_edge(START, "helper")
    return await everything(builder.compile(), hi())


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
def test_r05_the_agent_of_langgraphs_own_prebuilt_package() -> None:
    async def with_tools(kit: Kit) -> Any:
        agent: Any = create_react_agent(kit.chat(asks_for("look", q="x")), [look], checkpointer=InMemorySaver())
        return [await everything(agent, hi(), thread()), await checkpoints(agent, thread())]

    conforms(with_tools, units=("model",))


@pytest.mark.parametrize(
    "scenario",
    [
        with_tools,
        with_a_human,
        with_structured_output,
        with_structured_output_at_the_second_try,
        with_the_providers_structured_output,
        with_a_summary,
        with_a_fallback,
        with_a_limit,
        as_a_subgraph,
        as_a_tool,
        as_events_v2,
        as_events_v3,
        handing_over,
    ],
)
def test_r05_agents_with_a_hedged_model(scenario: Any) -> None:
    conforms(scenario, units=("model",))


# --- the middleware -----------------------------------------------------------------------------------


class Who(TypedDict, total=False):
    who: str


class WhoState(TypedDict, total=False):
    messages: list[Any]
    who: str


class Commanding(AgentMiddleware[Any, Any]):
    """Writes a state key once for every model call it sees."""

    state_schema = WhoState

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return ExtendedModelResponse(await handler(request), Command(update={"who": "me"}))


def by_middleware(kit: Kit, answer: Any = echo, **settings: Any) -> tuple[Any, list[Any]]:
    """Return a plain model, and the middleware that hedges it (none for the plain kit)."""
    model = Chat(answer=answer)
    kit.models.append(model)
    if kit.unit == "plain":
        return model, []
    second = Chat(answer=answer, label="second")
    return model, [kit.hedger.middleware(second, tools=False, family="scripted", **settings)]


async def middleware_with_tools(kit: Kit) -> Any:
    model, hedging = by_middleware(kit, asks_for("look", q="x"))
    agent = create_agent(model, [look], middleware=hedging)
    return await everything(agent, hi())


async def middleware_in_a_near_tie(kit: Kit) -> Any:
    model, hedging = by_middleware(kit)
    agent = create_agent(model, [], middleware=[Commanding(), *hedging])
    return await agent.ainvoke(hi())


async def middleware_over_a_hedged_model(kit: Kit) -> Any:
    hedged = kit.chat()
    hedging = [kit.hedger.middleware(Chat(), tools=False, family="scripted")] if kit.unit == "model" else []
    return await everything(create_agent(hedged, [], middleware=hedging), hi())


async def middleware_with_a_human(kit: Kit) -> Any:
    model, hedging = by_middleware(kit, asks_for("pay", amount=3))
    middleware = [HumanInTheLoopMiddleware(interrupt_on={"pay": True}), *hedging]
    agent: Any = create_agent(model, [pay], middleware=middleware, checkpointer=InMemorySaver())
    approved: Any = Command(resume={"decisions": [{"type": "approve"}]})
    return [await everything(agent, hi(), thread()), await everything(agent, approved, thread())]


async def middleware_with_structured_output(kit: Kit) -> Any:
    model, hedging = by_middleware(kit, lambda _: AIMessage('{"degrees": 3}'))
    agent = create_agent(model, [], middleware=hedging, response_format=ProviderStrategy(Weather))
    return await everything(agent, hi())


class Choosing(AgentMiddleware[Any, Any]):
    """Chooses the model when it is called."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        return await handler(request.override(model=self.model))


async def middleware_over_a_model_chosen_late(kit: Kit) -> Any:
    late = Chat(answer=lambda _: AIMessage("late"))
    hedging = [] if kit.unit == "plain" else [kit.hedger.middleware(late.model_copy(), tools=False, family="scripted")]
    return await everything(create_agent(Chat(), [], middleware=[Choosing(late), *hedging]), hi())


@pytest.mark.parametrize(
    "scenario",
    [
        middleware_with_tools,
        middleware_with_a_human,
        middleware_with_structured_output,
        middleware_in_a_near_tie,
        middleware_over_a_hedged_model,
        middleware_over_a_model_chosen_late,
    ],
)
def test_r05_agents_with_the_middleware(scenario: Any) -> None:
    conforms(scenario, units=("model",))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_r01_the_targets_of_the_middleware_replace_a_fallback_middleware(asynchronous: bool) -> None:
    kit = make_kit("model")

    def gone(messages: list[BaseMessage]) -> ConnectionError:
        return ConnectionError("gone")

    first, second = Chat(answer=gone, ttft=0.01), Chat(answer=asks_for("look", q="x"), ttft=0.01)
    agent: Any = create_agent(first, [look], middleware=[kit.hedger.middleware(second, tools=False, family="s")])

    async def main() -> Any:
        return await agent.ainvoke(hi())

    result = run_virtual(main) if asynchronous else agent.invoke(hi())
    kit.hedger.close()
    assert result["messages"][-1].content == "it says found x"
    assert set(first.calls) == {"astream"}, "the primary, each time"


def test_the_middleware_hedges_no_model_twice() -> None:
    kit = make_kit("model")

    async def main() -> None:
        await middleware_over_a_hedged_model(kit)

    token = forced.set(Forced(hedge=True, winner=1))
    try:
        run_virtual(main)
    finally:
        forced.reset(token)
    assert kit.hedges == 1


@pytest.mark.parametrize("asynchronous", [False, True])
def test_the_middleware_can_end_the_agent(asynchronous: bool) -> None:
    kit = make_kit("model")

    def refuse(messages: list[BaseMessage]) -> ValueError:
        return ValueError("a secret prompt")

    model, hedging = by_middleware(kit, refuse, exit_behavior="end")
    agent = create_agent(model, [look], middleware=hedging)

    async def main() -> Any:
        return await agent.ainvoke(hi())

    result = run_virtual(main) if asynchronous else agent.invoke(hi())
    last = result["messages"][-1].content
    assert "ValueError" in last
    assert "secret" not in last
    model, hedging = by_middleware(kit, refuse)
    with pytest.raises(ValueError, match="a secret prompt"):
        create_agent(model, [], middleware=hedging).invoke(hi())


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("change", ["with_retry", "with_fallbacks", "with_config"])
def test_a_model_that_cannot_be_hedged_is_called_as_it_is_and_said_once(change: str, asynchronous: bool) -> None:
    """What another middleware, or the user, puts in its place would work without us."""
    kit = make_kit("model")
    chosen: Any = {
        "with_retry": Chat(ttft=0.01).with_retry(),
        "with_fallbacks": Chat(ttft=0.01).with_fallbacks([Chat()]),
        "with_config": Chat(ttft=0.01).with_config(tags=["mine"]),
    }[change]

    class ChoosingAtOnce(Choosing):
        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            return handler(request.override(model=self.model))

    hedging = kit.hedger.middleware(Chat(), tools=False, family="scripted")
    agent: Any = create_agent(Chat(), [], middleware=[ChoosingAtOnce(chosen), hedging])

    async def main() -> Any:
        return [await agent.ainvoke(hi()) for _ in range(2)]

    with pytest.warns(UserWarning, match="cannot be hedged, and is called as it is") as said:
        results = run_virtual(main) if asynchronous else [agent.invoke(hi()) for _ in range(2)]
    kit.hedger.close()
    assert [result["messages"][-1].content for result in results] == ["you said hi"] * 2
    assert len(said) == 1
    assert kit.hedges == 0


def test_the_middleware_checks_what_it_is_given() -> None:
    hedger = make_kit("model").hedger
    with pytest.raises(ConfigurationError, match="at least one"):
        hedger.middleware(tools=False)
    with pytest.raises(ConfigurationError, match="exit_behavior"):
        hedger.middleware(Chat(), tools=False, exit_behavior="stop")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="tools must be"):
        hedger.middleware(Chat(), tools=[])  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="a member must be a chat model"):
        hedger.middleware(3)
    with pytest.raises(ConfigurationError, match="timeout must be"):
        hedger.middleware(Chat(), timeout=-1.0)


def test_explain_knows_that_the_middleware_hedges() -> None:
    hedger = make_kit("model").hedger
    hedging = hedger.middleware(Chat(), tools=False, family="scripted")
    report = hedger.explain(create_agent(Chat(), [look], middleware=[hedging]))["model"]
    assert [model.hedged for model in report.models] == [True]
    assert report.cannot_see == ()
    others = hedger.explain(create_agent(Chat(), [look], middleware=[Commanding(), hedging]))["model"]
    assert any("`Commanding` wraps the model call" in str(spot) for spot in others.cannot_see)


@pytest.mark.filterwarnings("ignore:.*durability")
@pytest.mark.parametrize("asynchronous", [False, True])
def test_r11_the_middleware_puts_the_tools_behind_the_ledger(asynchronous: bool) -> None:
    kit, paid = make_kit("model"), []

    @tool_effect(Effect.ONCE)
    @tool
    def settle(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    first, second = (Chat(answer=asks_for("settle", amount=3), ttft=0.01) for _ in range(2))
    hedging = [kit.hedger.middleware(second, family="scripted")]
    agent: Any = create_agent(first, [settle], middleware=hedging, checkpointer=InMemorySaver())
    if asynchronous:
        result = asyncio.run(agent.ainvoke(hi(), thread(), durability="sync"))
    else:
        result = agent.invoke(hi(), thread(), durability="sync")
    claims = asyncio.run(kit.hedger._shared.stores.claims.recent(10))
    kit.hedger.close()
    assert result["messages"][-1].content == "it says paid"
    assert paid == [3]
    assert [(claim.tool, str(claim.state)) for claim in claims] == [("settle", "done")]
