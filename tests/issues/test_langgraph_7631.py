"""langchain-ai/langgraph#7631: a retry starts while the attempt that timed out still runs. Ours have ended by then."""

from __future__ import annotations

import asyncio
from typing import Any

from langgraph.errors import NodeTimeoutError
from langgraph.graph import START, StateGraph
from langgraph.types import RetryPolicy

from agent_hedge import Effect, Fixed, Hedger
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import State


def test_r07_a_timed_out_node_has_stopped_all_its_attempts_before_its_retry_starts() -> None:
    hedger, running, most, tries = Hedger(), 0, 0, []

    async def work(state: State) -> State:
        nonlocal running, most
        running += 1
        most = max(most, running)
        tries.append(asyncio.get_running_loop().time())
        try:
            await asyncio.sleep(60.0 if len(tries) < 3 else 0.05)
        finally:
            await asyncio.sleep(0)
            running -= 1
        return {"log": ["done"]}

    node = hedger.node(
        work, unit="node", effect=Effect.READ_ONLY, trigger="total", policy=Fixed(0.2), targets=["a", "b"]
    )
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    policy = RetryPolicy(max_attempts=2, initial_interval=0.5, jitter=False, retry_on=NodeTimeoutError)
    builder.add_node("work", node, timeout=1.0, retry_policy=policy)
    builder.add_edge(START, "work")
    result = run_virtual(lambda: builder.compile().ainvoke({"log": []}))
    assert result["log"] == ["done"]
    assert (running, most) == (0, 2), "two attempts of one execution, never three"
    assert tries == [0.0, 0.2, 1.5]
