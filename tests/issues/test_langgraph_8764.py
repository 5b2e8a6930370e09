"""langchain-ai/langgraph#8764: a crash before the first durable checkpoint drops a run that was accepted.

`durability="sync"` promises what is kept before the first node runs: no attempt of ours is dispatched before that.
"""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from agent_hedge import Target
from agent_hedge.core.scope import Forced, forced
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat, State, Unit, make_kit, thread


@pytest.mark.parametrize("winner", [0, 1])
@pytest.mark.parametrize("unit", ["plain", "model", "node"])
def test_r05_no_attempt_starts_before_the_input_is_durable(unit: Unit, winner: int) -> None:
    kit, saver = make_kit(unit), InMemorySaver()
    kept: list[list[int]] = []

    class Watching(Chat):
        async def _astream(self, *args: Any, **kwargs: Any) -> Any:
            kept.append(sorted(each.metadata["step"] for each in saver.list(thread())))
            async for chunk in super()._astream(*args, **kwargs):
                yield chunk

    first, second = Watching(label="a"), Watching(label="b")
    model: Any = first
    if unit == "model":
        model = kit.hedger.chat_model(Target("a", first), Target("b", second), family="scripted")

    async def ask(state: State) -> State:
        return {"messages": [message async for message in model.astream(state["messages"])][-1:]}

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("ask", kit.node(ask))
    builder.add_edge(START, "ask")
    graph = builder.compile(checkpointer=saver)
    given = {"messages": [HumanMessage("hi")], "log": []}
    token = forced.set(Forced(hedge=True, winner=winner))
    try:
        run_virtual(lambda: graph.ainvoke(given, thread(), durability="sync"))
    finally:
        forced.reset(token)
    assert kept == [[-1, 0]] * (1 if unit == "plain" else 2)
