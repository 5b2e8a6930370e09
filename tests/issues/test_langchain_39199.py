"""langchain-ai/langchain#39199 (and #38722): fallbacks swallow LangGraph's control flow as failures."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphDrained, GraphInterrupt, ParentCommand
from langgraph.graph import START, StateGraph
from langgraph.types import Command

from agent_hedge import Effect, Hedger
from agent_hedge.core.events import AttemptStarted
from agent_hedge.core.scope import Forced, forced
from agent_hedge.core.step import Role
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Recorder, State, thread


@pytest.mark.parametrize("winner", [0, 1])
@pytest.mark.parametrize(
    "control", [GraphInterrupt(()), ParentCommand(Command(graph=Command.PARENT, goto="x")), GraphDrained("stop")]
)
def test_r07_control_flow_wins_the_race_and_passes_through(control: Exception, winner: int) -> None:
    recorder = Recorder()
    hedger = Hedger(observers=[recorder])

    async def leave(state: State) -> State:
        raise control

    node = hedger.node(leave, unit="node", effect=Effect.READ_ONLY, trigger="total", recover=Exception)
    caught: list[Exception] = []

    async def watch(state: State) -> State:
        try:
            return await node(state)
        except Exception as error:
            caught.append(error)
            raise

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("leave", watch, destinations=("x",))
    builder.add_node("x", lambda state: {})
    builder.add_edge(START, "leave")
    graph = builder.compile(checkpointer=InMemorySaver())

    async def main() -> None:
        with suppress(type(control)):
            await graph.ainvoke({"log": []}, thread())

    token = forced.set(Forced(hedge=True, winner=winner))
    try:
        run_virtual(main)
    finally:
        forced.reset(token)
    assert caught == [control]
    roles = [event.attempt.role for event in recorder.events if isinstance(event, AttemptStarted)]
    assert Role.RECOVERY not in roles, "what is no failure is not recovered"
