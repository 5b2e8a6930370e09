"""C9: a canary in a tool's arguments is nowhere to be found afterwards: no row, log, error or repr holds it."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import traceback
import uuid
import warnings
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph

from agent_hedge import Hedger
from agent_hedge.core.step import Effect
from agent_hedge.errors import EffectBarred, EffectInDoubt, HedgeError
from agent_hedge.tools.effect import tool_effect

CANARY = f"canary-{uuid.uuid4().hex}"


def database(path: Path) -> bytes:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        rows = repr([connection.execute(f'SELECT * FROM "{table}"').fetchall() for table in tables])
    return rows.encode() + path.read_bytes()


@pytest.mark.parametrize("declared", [{}, {"key": "account"}, {"key": lambda account, memo: account}])
@pytest.mark.parametrize("fails", [False, True])
def test_r18_arguments_are_nowhere(
    sqlite_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, declared: Any, fails: bool
) -> None:
    hedger = Hedger(sqlite_url)
    errors: list[HedgeError] = []

    @tool_effect(Effect.ONCE, **declared)
    @tool
    def pay(account: str, memo: str) -> str:
        """Pay."""
        if fails:
            raise ConnectionError("reset by peer")
        return "paid"

    words = iter(range(100))

    def model(_: Any) -> Any:
        args = {"account": CANARY, "memo": f"{CANARY} {next(words)}"}
        return {"messages": [AIMessage("", tool_calls=[{"name": "pay", "args": args, "id": "the same id"}])]}

    builder: Any = StateGraph(MessagesState)
    builder.add_node("model", model)
    builder.add_node("tools", hedger.tool_node([pay]))
    builder.add_edge(START, "model")
    builder.add_edge("model", "tools")
    with caplog.at_level(logging.DEBUG), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for _ in range(2):  # the second time the same key comes with other arguments, or the call is in doubt
            graph = builder.compile(checkpointer=InMemorySaver())
            try:
                graph.invoke({"messages": [HumanMessage("Pay.")]}, {"configurable": {"thread_id": "t"}})
            except (EffectInDoubt, EffectBarred) as error:
                errors.append(error)
        asyncio.run(_nothing())
    counted = hedger._guard._guarded.ledger.counts()
    hedger.close()
    assert errors
    for told in errors:
        said = "".join(traceback.format_exception(told)) + repr(told) + repr(vars(told))
        assert CANARY not in said
    logged = "".join(f"{record.getMessage()}{record.exc_text or ''}" for record in caplog.records)
    assert CANARY not in logged
    assert CANARY not in repr([str(one.message) for one in warned])
    assert CANARY not in repr((hedger, counted))
    assert CANARY.encode() not in database(tmp_path / "ledger.db")


async def _nothing() -> None:
    """A loop that comes and goes: what nobody retrieved would be logged."""
