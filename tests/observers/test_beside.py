"""G3: beside another instrumentation of LangChain tokens are counted once and attempts stand in its trace."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import HUNG_S

from .beside import INSTRUMENTATIONS, LANGSMITH

INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt")
OUTPUT = ("gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens", "llm.token_count.completion")
ROOT = {"openinference": "LangGraph", "traceloop": "invoke_agent LangGraph", "official": "invoke_workflow LangGraph"}


@pytest.fixture(scope="module", params=INSTRUMENTATIONS)
def told(request: pytest.FixtureRequest) -> Any:
    return told_beside(request.param)


def told_beside(name: str) -> Any:
    """Return what was told beside one of them, in a process of its own."""
    command = [sys.executable, "-m", "tests.observers.beside", name]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * HUNG_S, check=False)
    assert done.returncode == 0, done.stderr
    return {"by": name, **json.loads(done.stdout)}


def test_tokens_are_counted_once_beside_langsmith() -> None:
    """Where it sends its runs to OpenTelemetry; else it keeps them to itself, and ours count."""
    told = told_beside(LANGSMITH)
    assert {span["scope"] for span in told["spans"]} == {"langsmith", "agent_hedge"}
    test_tokens_are_counted_once(told)
    test_nothing_is_logged(told)


def test_tokens_are_counted_once(told: Any) -> None:
    """Of the hedged call as of the stream."""
    assert len(told["usage"]) == 2
    for names, kind in ((INPUT, "input_tokens"), (OUTPUT, "output_tokens")):
        counted = [span["attributes"][name] for span in told["spans"] for name in names if name in span["attributes"]]
        assert counted == [usage[kind] for usage in told["usage"]]


def test_attempts_are_visible_in_its_trace(told: Any) -> None:
    spans = {span["id"]: span for span in told["spans"]}
    (step, _) = (span for span in told["spans"] if span["name"].startswith("agent_hedge.step"))
    attempts = [span["attributes"] for span in told["spans"] if span["parent"] == step["id"]]
    assert [(one["agent_hedge.attempt.role"], one["agent_hedge.outcome"]) for one in attempts] == [
        ("primary", "superseded"),
        ("hedge", "won"),
    ]
    root = step
    while root["parent"] is not None:
        root = spans[root["parent"]]
    assert root["name"] == ROOT[told["by"]]
    assert [span["name"] for span in told["spans"] if span["parent"] is None] == [ROOT[told["by"]]]


def test_its_own_span_of_the_call_is_neither_doubled_nor_missing(told: Any) -> None:
    theirs = [span["name"] for span in told["spans"] if span["scope"] != "agent_hedge"]
    assert len([name for name in theirs if name.startswith(("ChatOpenAI", "chat "))]) == 2
    assert told["open"] == 0


def test_nothing_is_logged(told: Any) -> None:
    assert told["errors"] == []
