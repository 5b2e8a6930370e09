"""A payment agent is killed right after it has paid, and resumed: it pays once. Offline; takes about twenty seconds.

The first process is killed (SIGKILL) after the effect and before anything could be written down about it. Nobody can
know from the outside whether a process that died *there* has paid, so the call is in doubt: the agent stops and asks
instead of paying again. A person looks at the bank and answers, and the agent goes on.
"""

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command

from agent_hedge import Effect, Hedger, tool_effect

HERE = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(tempfile.mkdtemp())
STORE, BANK = f"sqlite:///{HERE / 'hedge.db'}", HERE / "bank.txt"
WIDE = {**os.environ, "COLUMNS": "110"}
THREAD: RunnableConfig = {"configurable": {"thread_id": "invoice 17"}}


@tool_effect(Effect.ONCE)
@tool
def pay(invoice: int, amount: float) -> str:
    """Pay an invoice."""
    with BANK.open("a") as bank:
        bank.write(f"paid {amount} for invoice {invoice}\n")
    if sys.argv[1:2] == ["dies"]:
        os.kill(os.getpid(), signal.SIGKILL)
    return "paid"


def model(state: MessagesState) -> dict[str, Any]:
    """Stand in for the LLM: ask for the payment once."""
    asked = {"name": "pay", "args": {"invoice": 17, "amount": 99.0}, "id": f"call-{os.urandom(4).hex()}"}
    return {"messages": [AIMessage("", tool_calls=[asked])]}


def agent(word: object) -> None:
    """Run or resume the agent in this process."""
    hedger = Hedger(STORE, on_in_doubt="interrupt")
    builder = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", hedger.tool_node([pay]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    connection = sqlite3.connect(HERE / "checkpoints.db", check_same_thread=False)
    graph: Any = builder.compile(checkpointer=SqliteSaver(connection))
    state = graph.invoke(word, THREAD, durability="sync")
    for question in state.get("__interrupt__", ()):
        print(f"  in doubt: {question.value['tool']}, {question.value['reason']}; answers: {question.value['answers']}")
    if not state.get("__interrupt__"):
        print(f"  the agent has: {state['messages'][-1].content}")
    hedger.close()
    connection.close()


def run(role: str) -> int:
    return subprocess.run([sys.executable, __file__, role, str(HERE)], check=False).returncode


def ledger() -> None:
    """Show the ledger as an operator sees it: ``agent-hedge ledger list``."""
    command = [sys.executable, "-m", "agent_hedge.cli", "ledger", "list", "--store", STORE]
    print("\n".join(f"  {line}" for line in subprocess.check_output(command, text=True, env=WIDE).splitlines()))


def main() -> None:
    print("1. The agent pays, and its process is killed before it can say so.")
    assert run("dies") == -signal.SIGKILL
    ledger()
    print("2. Another process resumes the thread. It waits until the owner must be dead, and asks.")
    assert run("resumes") == 0
    ledger()
    print("3. A person has looked at the bank.")
    assert run("answers") == 0
    ledger()
    print(f"payments made: {len(BANK.read_text().splitlines())}")


if __name__ == "__main__":
    words: dict[str, Any] = {"dies": {"messages": [HumanMessage("Pay invoice 17.")]}, "resumes": None}
    if len(sys.argv) < 2:
        main()
    else:
        agent(words.get(sys.argv[1], Command(resume="happened")))
