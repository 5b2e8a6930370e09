"""langchain-ai/langgraph#6950: stray CancelledErrors at the end of a run. Joined losers leave none."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph

from agent_hedge import Effect, Fixed, Hedger
from agent_hedge.core.scope import current_attempt
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import State, thread


def test_r06_no_cancellation_of_a_loser_reaches_the_run() -> None:
    hedger = Hedger()

    async def work(state: State) -> State:
        number = current_attempt().number  # type: ignore[union-attr]
        await asyncio.sleep(9.0 if number == 0 else 0.1)
        return {"log": [number]}

    node = hedger.node(
        work, unit="node", effect=Effect.READ_ONLY, trigger="total", policy=Fixed(0.2), targets=["a", "b"]
    )
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_sequence([("one", node), ("two", node)])
    builder.add_edge(START, "one")
    graph = builder.compile(checkpointer=InMemorySaver())
    problems: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
        results = await asyncio.gather(*(graph.ainvoke({"log": []}, thread(str(n))) for n in range(20)))
        won = [number for result in results for number in result["log"]]
        assert set(won) == {0, 1}, "the fleet's budget lets some of them hedge"
        await hedger.aclose()

    run_virtual(main)
    assert not problems
