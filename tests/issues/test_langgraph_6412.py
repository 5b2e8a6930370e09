"""langchain-ai/langgraph#6412: a ToolNode waits for ever for a tool whose transport has died in silence."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langgraph.errors import NodeTimeoutError
from langgraph.graph import START, StateGraph
from langgraph.prebuilt import ToolNode

from agent_hedge import Effect, Fixed, current_attempt, tool_effect
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Kit, State, Unit, make_kit

CALL = {"name": "look", "args": {"q": "x"}, "id": "call_1"}


def looking(hang: Any) -> tuple[ToolNode, list[str]]:
    """Return a tool node whose tool hangs where `hang()` says so, and what became of its calls."""
    ended: list[str] = []

    @tool_effect(Effect.READ_ONLY)
    @tool
    async def look(q: str) -> str:
        """Look something up."""
        try:
            await asyncio.sleep(1e9 if hang() else 0.1)
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise
        ended.append("found")
        return f"found {q}"

    return ToolNode([look]), ended


async def run(kit: Kit, node: Any, **settings: Any) -> Any:
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    builder.add_node("tools", node, **settings)
    builder.add_edge(START, "tools")
    result = await builder.compile().ainvoke({"messages": [AIMessage("", tool_calls=[CALL])]})
    await kit.hedger.aclose()
    return result


@pytest.mark.filterwarnings("ignore:the wrapped node")
@pytest.mark.parametrize("unit", ["plain", "model", "node"])
def test_r07_a_hanging_tool_is_stopped_by_the_timeout_of_its_node(unit: Unit) -> None:
    kit = make_kit(unit)
    tools, ended = looking(lambda: True)

    async def main() -> float:
        with pytest.raises(NodeTimeoutError):
            await run(kit, kit.node(tools), timeout=1.0)
        await asyncio.sleep(0)
        return asyncio.get_running_loop().time()

    assert run_virtual(main) == pytest.approx(1.0)
    assert set(ended) == {"cancelled"}


def test_r06_a_raced_tool_node_is_answered_by_the_attempt_that_does_not_hang() -> None:
    kit = make_kit("node", policy=Fixed(1.0))
    tools, ended = looking(lambda: current_attempt().number == 0)  # type: ignore[union-attr]
    kit.hedger.registry.declare(list(tools.tools_by_name.values()))

    async def main() -> Any:
        result = await run(kit, kit.node(tools, trigger="total"))
        return result["messages"][-1].content, asyncio.get_running_loop().time()

    said, at = run_virtual(main)
    assert said == "found x"
    assert at == pytest.approx(1.1)
    assert sorted(ended) == ["cancelled", "found"]
