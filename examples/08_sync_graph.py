"""A sync graph: `graph.invoke` hedges its model calls, and the losers are really cancelled. Offline; takes a second.

The race of a sync call runs on the hedger's background loop; the caller's thread only waits.
"""

from typing import Any, TypedDict

from langchain_openai import ChatOpenAI
from langgraph.graph import START, StateGraph

from agent_hedge import Fixed, Hedger, Target
from agent_hedge.testing.engine import FakeEngine


class State(TypedDict):
    question: str
    answer: str
    target: str


def main() -> None:
    with FakeEngine.in_thread("fixed:5") as stuck, FakeEngine.in_thread("fixed:0.05") as well:
        replicas = Target.replicas([stuck.base_url, well.base_url], ChatOpenAI, model="any", api_key="none")
        hedger = Hedger(policy=Fixed(0.2))
        llm = hedger.chat_model(*replicas)

        def answer(state: State) -> dict[str, Any]:
            message = llm.invoke(state["question"])
            return {"answer": message.text, "target": message.response_metadata["agent_hedge"]["target"]}

        builder = StateGraph(State)
        builder.add_node("answer", answer)
        builder.add_edge(START, "answer")
        state = builder.compile().invoke({"question": "Where is it?", "answer": "", "target": ""})
        print(f"{state['answer'][:30]!r} from {state['target']}")
        hedger.close()


if __name__ == "__main__":
    main()
