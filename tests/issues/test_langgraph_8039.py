"""langchain-ai/langgraph#8039 (and #8234): under `durability="sync"` the writes of a task and the checkpoint after it
are not kept in order, so that after a crash the task is replayed or executed again. A guarded tool runs once.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode

from agent_hedge import Effect, Hedger, tool_effect
from agent_hedge.core.scope import Forced, forced
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat, State, echo, thread

CALL = {"name": "settle", "args": {"amount": 3}, "id": "call_1"}


class Crash(Exception):
    """What a saver raises in place of a process that dies."""


class Dying(InMemorySaver):
    """Dies when the checkpoint after the tool is written; the tool's writes are kept by then, or lost."""

    def __init__(self, *, writes_are_kept: bool) -> None:
        super().__init__()
        self.writes_are_kept = writes_are_kept
        self.alive = True

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        if self.alive and metadata["step"] == 2:
            self.alive = False
            raise Crash
        return super().put(config, checkpoint, metadata, new_versions)

    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if not self.alive or self.writes_are_kept or "tools" not in task_path:
            super().put_writes(config, writes, task_id, task_path)


def asks(messages: Any) -> Any:
    return AIMessage("", tool_calls=[CALL]) if len(messages) == 1 else echo(messages)


async def pay_and_die(*, guarded: bool, writes_are_kept: bool) -> tuple[Any, list[int]]:
    """Run a graph that pays into the crash, and resume it; return the resumed state and what was paid."""
    paid: list[int] = []

    @tool_effect(Effect.ONCE)
    @tool
    def settle(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    hedger = Hedger()
    model = hedger.chat_model(*(Chat(label=name, answer=asks) for name in "ab"), family="scripted")

    async def plan(state: State) -> State:
        return {"messages": [await model.ainvoke(state["messages"])]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("tools", hedger.tool_node([settle]) if guarded else ToolNode([settle]))
    builder.add_node("end", lambda state: {"log": ["end"]})
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "tools")
    builder.add_edge("tools", "end")
    graph = builder.compile(checkpointer=Dying(writes_are_kept=writes_are_kept))
    with pytest.raises(Crash):
        await graph.ainvoke({"messages": [HumanMessage("pay")], "log": []}, thread(), durability="sync")
    result = await graph.ainvoke(None, thread(), durability="sync")
    await hedger.aclose()
    return result, paid


@pytest.mark.parametrize("winner", [0, 1])
@pytest.mark.parametrize(
    ("guarded", "writes_are_kept", "payments"),
    [(False, True, 1), (False, False, 2), (True, True, 1), (True, False, 1)],
)
def test_r11_a_task_that_is_executed_again_pays_once_behind_the_ledger(
    guarded: bool, writes_are_kept: bool, payments: int, winner: int
) -> None:
    """The second row is LangGraph's own; hedging the model before it adds nothing to it."""
    token = forced.set(Forced(hedge=True, winner=winner))
    try:
        result, paid = run_virtual(lambda: pay_and_die(guarded=guarded, writes_are_kept=writes_are_kept))
    finally:
        forced.reset(token)
    assert paid == [3] * payments
    assert [message.content for message in result["messages"]] == ["pay", "", "paid"]
    assert result["log"] == ["end"]
