"""``agent-hedge explain MODULE:GRAPH``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agent_hedge.cli.__main__ import app
from agent_hedge.core.step import Effect
from agent_hedge.stores.sql import migrate, sql_stores
from agent_hedge.tools.registry import Registry

GRAPH = '''
from typing import Any, TypedDict
from langchain_core.tools import tool
from langgraph.graph import START, StateGraph
from agent_hedge.core.step import Effect
from agent_hedge.tools.effect import tool_effect

class State(TypedDict):
    log: list[Any]

@tool_effect(Effect.READ_ONLY)
@tool
def search(q: str) -> str:
    """Look something up."""
    return q

@tool
def pay(q: str) -> str:
    """Spend money."""
    return q

def act(state: State) -> Any:
    return {"log": [search.invoke({"q": "x"}), pay.invoke({"q": "x"})]}

builder = StateGraph(State)
builder.add_node("act", act)
builder.add_edge(START, "act")
graph = builder.compile()
number = 3

def make() -> Any:
    return graph

async def amake() -> Any:
    return graph

def broken() -> Any:
    raise RuntimeError("no database")
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "some_agents.py"
    path.write_text(GRAPH)
    return path


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["explain", *arguments])
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("attribute", ["graph", "builder", "make"])
def test_explains_a_graph_a_builder_and_a_factory(file: Path, attribute: str) -> None:
    code, out, _ = run(f"{file}:{attribute}")
    assert code == 0
    assert "search (read_only) may be called" in out
    assert "barred: pay is unknown" in out


def test_explains_a_module_on_the_path(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(file.parent)
    assert run("some_agents:graph")[0] == 0


def test_prints_data(file: Path) -> None:
    code, out, _ = run(f"{file}:graph", "--json", "--bar", "downstream")
    data = json.loads(out)
    assert (code, data["bar"], data["unknown_tools"]) == (0, "downstream", ["pay"])


def test_draws(file: Path) -> None:
    code, out, _ = run(f"{file}:graph", "--mermaid")
    assert code == 0
    assert "flowchart TD" in out


def test_fails_on_unknown_tools_if_asked(file: Path) -> None:
    code, out, err = run(f"{file}:graph", "--fail-on-unknown", "--json")
    assert code == 1
    assert json.loads(out)
    assert err == "agent-hedge: the effect of pay is unknown\n"


def test_r09_the_registry_of_a_store_comes_first_and_is_not_written_to(file: Path, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/store.db"
    migrate.upgrade(url)

    async def annotate() -> None:
        stores = sql_stores(url)
        registry = Registry(stores.effects)
        await registry.aannotate("pay", Effect.IDEMPOTENT)
        await registry.aannotate("search", Effect.ONCE)
        await stores.close()

    asyncio.run(annotate())
    code, out, _ = run(f"{file}:graph", "--fail-on-unknown", "--store", url)
    assert code == 0
    assert "pay (idempotent)" in out
    assert "search (once)" in out

    async def read() -> list[str]:
        stores = sql_stores(url)
        _, rows = await stores.effects.read()
        await stores.close()
        return sorted(row.source for row in rows)

    assert asyncio.run(read()) == ["operator", "operator"]


def test_a_store_that_does_not_answer_is_one_line_and_exit_1(file: Path) -> None:
    code, _, said = run(f"{file}:graph", "--store", "postgresql://nobody@127.0.0.1:1/none")
    assert code == 1
    assert "cannot be opened" in said


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nothing", "is not MODULE:GRAPH"),
        (":graph", "is not MODULE:GRAPH"),
        ("no_such_module_here:graph", "there is no module"),
        ("agent_hedge.no_such_part:graph", "there is no module"),
        ("no_such_file.py:graph", "there is no file"),
        ("{file}:grph", "has no attribute 'grph'"),
        ("{file}:number", "is not a graph"),
        ("{file}:State", "is not a graph"),
        ("{file}:act", "cannot be called for a graph: TypeError"),
        ("{file}:amake", "is an async function"),
        ("{file}:broken", "cannot be called for a graph: RuntimeError: no database"),
    ],
)
def test_r20_a_mistake_is_one_clear_line_and_exit_code_2(file: Path, target: str, message: str) -> None:
    code, out, err = run(target.format(file=file))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err


def test_r20_a_module_that_cannot_be_imported_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "wrong.py"
    path.write_text("1 / 0\n")
    code, _, err = run(f"{path}:graph")
    assert (code, err.count("\n")) == (2, 1)
    assert "ZeroDivisionError" in err


@pytest.mark.parametrize("options", [("--bar", "run"), ("--json", "--mermaid")])
def test_r20_options_that_cannot_be_meant(file: Path, options: tuple[str, ...]) -> None:
    assert run(f"{file}:graph", *options)[0] == 2
