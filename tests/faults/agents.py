"""Payment agents for the tests that kill: run in processes of their own, resumed in others.

The model mints a new call id and other words whenever it is asked, and asks until it sees that the payment was made.
The world is a file: one line for each payment that really happened.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import time
import uuid
import warnings
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import aiosqlite
from langchain.agents import create_agent
from langchain.agents.middleware import ToolErrorMiddleware, ToolRetryMiddleware
from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import BaseTool, tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode

from agent_hedge import Hedger
from agent_hedge.core.step import Effect
from agent_hedge.errors import EffectBarred, EffectInDoubt
from agent_hedge.tools.effect import tool_effect

WIRINGS = ("guard_tools", "guard_tool_call", "tool_node", "middleware")
LEASE_S = 0.2
"""Short, so that a dead owner is soon known to be dead."""
HUNG_S = 1800.0
"""Real seconds after which a process counts as hung; the longest takes 20."""
SPAWN = get_context("forkserver")
SPAWN.set_forkserver_preload(
    [
        "tests.faults.agents",
        "tests.faults.crashpoints",
        "sqlalchemy.dialects.postgresql.psycopg",
        "agent_hedge.stores.sql",
        "psycopg",
    ]
)


@dataclass(frozen=True)
class Plan:
    """One agent, and where it dies."""

    folder: Path
    store: str
    wiring: str = "guard_tools"
    durability: Any = "sync"
    asynchronous: bool = False
    kill: str = ""
    """``tool``, ``tools`` (after the step of the tool), ``one`` or ``three`` steps later; empty: nowhere."""
    tool_s: float = 0.0
    saver_s: float = 0.0
    """How long the checkpointer takes for every write."""

    @property
    def world(self) -> Path:
        return self.folder / "world"

    def payments(self) -> int:
        return len(self.world.read_text().splitlines()) if self.world.exists() else 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def hedger_of(store: str, **settings: Any) -> Hedger:
    hedger = Hedger(store, **settings)
    hedger._ledger_settings["lease"] = LEASE_S
    return hedger


class Model(BaseChatModel):
    """Asks for a payment until it sees that one was made."""

    @property
    def _llm_type(self) -> str:
        return "payer"

    def bind_tools(self, tools: Sequence[Any], **_: Any) -> Any:
        return self.bind(tools=[convert_to_openai_tool(one) for one in tools])

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **_: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.say(messages))])

    def say(self, messages: Sequence[BaseMessage]) -> AIMessage:
        if any(isinstance(message, ToolMessage) and message.status != "error" for message in messages):
            return AIMessage("It is paid.")
        words = {"amount": 5, "memo": f"in other words {uuid.uuid4()}"}
        return AIMessage("", tool_calls=[{"name": "pay", "args": words, "id": f"call-{uuid.uuid4()}"}])


def tools_of(plan: Plan) -> list[BaseTool]:
    def execute(memo: str) -> str:
        with plan.world.open("a") as world:
            world.write(f"{memo}\n")
        if plan.kill == "tool":
            die()
        return "paid"

    @tool_effect(Effect.ONCE)
    @tool
    def pay(amount: int, memo: str) -> str:
        """Pay."""
        time.sleep(plan.tool_s)
        return execute(memo)

    if not plan.asynchronous:
        return [pay]

    @tool_effect(Effect.ONCE)
    @tool("pay")
    async def apay(amount: int, memo: str) -> str:
        """Pay."""
        await asyncio.sleep(plan.tool_s)
        return execute(memo)

    return [apay]


def tool_node(hedger: Hedger, wiring: str, tools: Sequence[BaseTool], **settings: Any) -> ToolNode:
    if wiring == "tool_node":
        return hedger.tool_node(tools, **settings)
    if wiring == "bare":
        return ToolNode(tools, **settings)
    if wiring == "guard_tools":
        return ToolNode(hedger.guard_tools(tools), **settings)
    return ToolNode(tools, wrap_tool_call=hedger.guard_tool_call, awrap_tool_call=hedger.aguard_tool_call, **settings)


def build(plan: Plan, hedger: Hedger, saver: Any) -> Any:
    model, tools = Model(), tools_of(plan)

    def ends(place: str) -> Callable[[Any], dict[str, Any]]:
        def step(state: Any) -> dict[str, Any]:
            if plan.kill == place:
                die()
            return {}

        return step

    builder: Any = StateGraph(MessagesState)
    if plan.wiring == "middleware":
        guard = hedger.middleware(Model(), family="payer")
        again = ToolErrorMiddleware(lambda e, r: "Please try again.")
        agent = create_agent(model, tools, middleware=[ToolRetryMiddleware(), again, guard])
        builder.add_node("agent", agent)
        builder.add_edge(START, "agent")
        builder.add_edge("agent", "tail")
    else:
        builder.add_node("model", lambda state: {"messages": [model.say(state["messages"])]})
        builder.add_node("tools", tool_node(hedger, plan.wiring, tools, handle_tool_errors=True))
        builder.add_edge(START, "model")
        builder.add_conditional_edges("model", _asks, {True: "tools", False: "tail"})
        builder.add_edge("tools", "tools_end")
        builder.add_node("tools_end", ends("tools"))
        builder.add_edge("tools_end", "model")
    builder.add_node("tail", ends("one"))
    builder.add_node("tail2", ends("two"))
    builder.add_node("tail3", ends("three"))
    builder.add_edge("tail", "tail2")
    builder.add_edge("tail2", "tail3")
    builder.add_edge("tail3", END)
    return builder.compile(checkpointer=saver)


def _asks(state: Any) -> bool:
    return bool(state["messages"][-1].tool_calls)


class SlowSaver(SqliteSaver):
    pause = 0.0

    def put(self, *args: Any) -> RunnableConfig:
        time.sleep(self.pause)
        return super().put(*args)

    def put_writes(self, *args: Any, **kwargs: Any) -> None:
        time.sleep(self.pause)
        super().put_writes(*args, **kwargs)


class SlowAsyncSaver(AsyncSqliteSaver):
    pause = 0.0

    async def aput(self, *args: Any) -> RunnableConfig:
        await asyncio.sleep(self.pause)
        return await super().aput(*args)

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        await asyncio.sleep(self.pause)
        await super().aput_writes(*args, **kwargs)


@contextmanager
def saver_of(plan: Plan) -> Iterator[SqliteSaver]:
    connection = sqlite3.connect(plan.folder / "checkpoints", check_same_thread=False)
    try:
        saver = SlowSaver(connection)
        saver.setup()
        saver.pause = plan.saver_s
        yield saver
    finally:
        connection.close()


@asynccontextmanager
async def asaver_of(plan: Plan) -> AsyncIterator[AsyncSqliteSaver]:
    async with aiosqlite.connect(plan.folder / "checkpoints") as connection:
        saver = SlowAsyncSaver(connection)
        await saver.setup()
        saver.pause = plan.saver_s
        yield saver


THREAD: RunnableConfig = {"configurable": {"thread_id": "thread"}}


def live(plan: Plan) -> str:
    """Run or resume the agent in this process; return what became of it."""
    warnings.simplefilter("ignore")
    hedger = hedger_of(plan.store)
    try:
        outcome = asyncio.run(_alive(plan, hedger)) if plan.asynchronous else _live(plan, hedger)
    except (EffectInDoubt, EffectBarred) as error:
        outcome = type(error).__name__
    hedger.close()
    return outcome


def live_all(plans: Sequence[Plan]) -> str:
    """Run or resume one agent after the other, each with a hedger (and so an incarnation) of its own."""
    return "|".join(map(live, plans))


def _live(plan: Plan, hedger: Hedger) -> str:
    with saver_of(plan) as saver:
        graph = build(plan, hedger, saver)
        given = None if graph.get_state(THREAD).created_at else {"messages": [HumanMessage("Pay 5.")]}
        graph.invoke(given, THREAD, durability=plan.durability)
    return "done"


async def _alive(plan: Plan, hedger: Hedger) -> str:
    async with asaver_of(plan) as saver:
        graph = build(plan, hedger, saver)
        state = await graph.aget_state(THREAD)
        given = None if state.created_at else {"messages": [HumanMessage("Pay 5.")]}
        await graph.ainvoke(given, THREAD, durability=plan.durability)
    return "done"


def _child(work: Callable[..., str], args: tuple[Any, ...], said: Any) -> None:
    os.environ["PYTHONWARNINGS"] = "ignore"
    try:
        said.send(work(*args))
    except BaseException as error:
        said.send(f"error: {type(error).__name__}: {error}")


def in_a_process(work: Callable[..., str], *args: Any) -> str:
    """Run `work` in a process of its own; return what it says, or ``killed``."""
    ours, theirs = SPAWN.Pipe(duplex=False)
    process = SPAWN.Process(target=_child, args=(work, args, theirs))
    process.start()
    theirs.close()
    try:
        return str(ours.recv()) if ours.poll(HUNG_S) else "hung"
    except EOFError:
        return "killed"
    finally:
        process.join()
