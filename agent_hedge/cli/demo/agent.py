"""The agent of the demo: plan, read with tools, think, answer; `STEPS` LLM calls in a row.

Every call sends the last exchange only, and says which draw of the replicas it is (see `draws`).
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode

from agent_hedge import current_run
from agent_hedge.adapters.langchain.model import HedgedChatModel
from agent_hedge.cli.demo.draws import STEPS

READING_STEPS = (2, 7, 12)
"""Steps whose model may call the tool, counted from 1."""
PAGES = ("the invoice", "the contract", "the delivery note", "the complaint")


class State(TypedDict):
    """What the graph keeps: the conversation, and how many LLM calls have been made."""

    messages: Annotated[list[AnyMessage], add_messages]
    step: int


@tool
def read_page(page: int) -> str:
    """Read a page of the file."""
    return f"Page {page} is {PAGES[page % len(PAGES)]}."


def build(model: HedgedChatModel) -> CompiledStateGraph[Any, Any, Any, Any]:
    """Return the compiled graph over `model`. Invoke it inside ``hedger.run(key=str(number of the run))``."""
    reader = model.bind_tools([read_page])

    async def ask(state: State, prompt: list[AnyMessage]) -> dict[str, Any]:
        run, step = current_run(), state["step"] + 1
        assert run is not None
        draw = int(run.key) * STEPS + state["step"]
        asked = reader if step in READING_STEPS else model
        answer = await asked.ainvoke(prompt, extra_headers={"X-Draw": str(draw)})
        return {"messages": [answer], "step": step}

    async def plan(state: State) -> dict[str, Any]:
        return await ask(state, [HumanMessage(f"Plan: {state['messages'][-1].content}")])

    async def work(state: State) -> dict[str, Any]:
        return await ask(state, [HumanMessage(f"Step {state['step'] + 1}, after: {state['messages'][-1].content}")])

    async def answer(state: State) -> dict[str, Any]:
        return await ask(state, [HumanMessage(f"Answer, given: {state['messages'][-1].content}")])

    def after(state: State) -> Literal["tools", "work", "answer"]:
        last = state["messages"][-1]
        if isinstance(last, AIMessage) and last.tool_calls:
            return "tools"
        return "work" if state["step"] < STEPS - 1 else "answer"

    builder = StateGraph(State)
    builder.add_node("plan", plan)
    builder.add_node("work", work)
    builder.add_node("tools", ToolNode([read_page]))
    builder.add_node("answer", answer)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", after)
    builder.add_conditional_edges("work", after)
    builder.add_edge("tools", "work")
    builder.add_edge("answer", END)
    return builder.compile()


async def run_once(graph: CompiledStateGraph[Any, Any, Any, Any]) -> None:
    """Let the agent do its work once, in the run that is open."""
    question = HumanMessage("Why was the customer charged twice?")
    await graph.ainvoke({"messages": [question], "step": 0}, {"recursion_limit": 2 * STEPS + 10})
