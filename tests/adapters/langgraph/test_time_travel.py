"""Going back in a thread: what runs again from an earlier checkpoint is an execution of its own (issue 5, 8)."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import StateSnapshot

from agent_hedge import Effect, EffectInDoubt, Hedger, current_run, tool_effect
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import State, thread


def asking(amount: int) -> Any:
    call = {"name": "settle", "args": {"amount": amount}, "id": f"call_{amount}"}
    return {"messages": [AIMessage("", tool_calls=[call])]}


class Paying:
    """A graph that plans, pays and ends; its nodes are wrapped."""

    def __init__(self) -> None:
        self.hedger = hedger = Hedger()
        self.paid: list[int] = []
        self.runs: list[Any] = []

        @tool_effect(Effect.ONCE)
        @tool
        def settle(amount: int) -> str:
            """Pay."""
            self.paid.append(amount)
            return "paid"

        async def plan(state: State) -> Any:
            run = current_run()
            self.runs.append(run.generation if run is not None else None)
            return asking(3)

        builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
        steps: list[Any] = [("plan", plan), ("tools", hedger.tool_node([settle])), ("end", lambda _: {"n": 1})]
        builder.add_sequence(steps)
        builder.add_edge(START, "plan")
        self.graph = hedger.wrap_graph(builder).compile(checkpointer=InMemorySaver())

    async def run(self, given: Any, config: Any) -> Any:
        return await self.graph.ainvoke(given, config, durability="sync")

    async def first(self) -> dict[tuple[str, ...], StateSnapshot]:
        """Run it once; return its history, by what comes next."""
        await self.run({"messages": [HumanMessage("pay")], "log": []}, thread())
        return {each.next: each async for each in self.graph.aget_state_history(thread())}


def test_r11_a_replay_from_before_the_payment_has_an_effect_key_of_its_own() -> None:
    paying = Paying()

    async def main() -> None:
        history = await paying.first()
        await paying.run(None, history["end",].config)
        assert paying.paid == [3], "from after the payment it is not made again"
        await paying.run(None, history["tools",].config)
        assert paying.paid == [3, 3], "whoever goes back to before it asks for it anew"

    run_virtual(main)


def test_r11_a_fork_that_leaves_a_payment_out_of_its_history_is_in_doubt() -> None:
    """From the ledger a fork and a history that was torn by a crash look the same: a person settles it."""
    paying = Paying()

    async def main() -> None:
        history = await paying.first()
        await paying.run(None, history["tools",].config)
        fork = await paying.graph.aupdate_state(history["tools",].config, asking(5), as_node="plan")
        with pytest.raises(EffectInDoubt):
            await paying.run(None, fork)
        assert paying.paid == [3, 3]

    run_virtual(main)


def test_r12_input_of_its_own_starts_the_next_generation_of_a_run_key() -> None:
    paying = Paying()
    settings = {"configurable": {"thread_id": "t", "agent_hedge": {"run_key": "t"}}}

    async def main() -> None:
        for _ in range(3):
            await paying.run({"messages": [HumanMessage("pay")], "log": []}, settings)

    run_virtual(main)
    assert paying.runs == [0, 1, 2]
    assert paying.paid == [3, 3, 3], "each generation has effect keys of its own"
