"""G2: Phoenix and MLflow show one run's tree, read back by their APIs, token totals right (mark ``backends``)."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from .run import ROWS, Sent
from .servers import TAKEN_IN_S, Backend, Span, mlflow, phoenix

pytestmark = pytest.mark.backends
SPANS = 1 + len(ROWS) + sum(len(roles) for _, roles in ROWS)


class Shown(NamedTuple):
    """A run that was sent, and what the backend has of it."""

    sent: Sent
    backend: Backend
    spans: list[Span]

    def children(self, parent: Span) -> list[Span]:
        return [span for span in self.spans if span.parent == parent.id]


@pytest.fixture(scope="module", params=[phoenix, mlflow], ids=lambda server: server.__name__)
def shown(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shown]:
    with request.param(tmp_path_factory.mktemp("backend")) as backend:
        sent = _send(backend)
        until = time.monotonic() + TAKEN_IN_S
        while len(spans := backend.spans(sent)) < SPANS and time.monotonic() < until:
            time.sleep(0.2)  # it takes spans in when it likes
        yield Shown(sent, backend, spans)


def _send(backend: Backend) -> Sent:
    """Do the run in a process of its own: it sets up the SDK of its process."""
    headers = [f"{name}={value}" for name, value in backend.headers.items()]
    command = [sys.executable, "-m", "tests.backends.run", backend.url, *headers]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return Sent(**json.loads(done.stdout))


def test_the_tree_is_whole(shown: Shown) -> None:
    (run,) = (span for span in shown.spans if span.parent is None)
    assert (run.name, run.attributes["agent_hedge.run.key"]) == ("agent_hedge.run", "case-4711")
    steps = shown.children(run)
    assert [span.name for span in steps] == [f"agent_hedge.step {node}" for node, _ in ROWS]
    for step, (_, roles) in zip(steps, ROWS, strict=True):
        attempts = shown.children(step)
        assert [span.attributes["agent_hedge.attempt.role"] for span in attempts] == roles
        assert [span.attributes["agent_hedge.outcome"] for span in attempts][-1] == "won"
    assert len(shown.spans) == SPANS


def test_a_hedge_names_its_primary(shown: Shown) -> None:
    """By an attribute too: not every backend keeps links."""
    hedges = [span for span in shown.spans if span.attributes.get("agent_hedge.attempt.role") == "hedge"]
    by_id = {span.id: span for span in shown.spans}
    assert len(hedges) == 2
    for hedge in hedges:
        primary = by_id[hedge.attributes["agent_hedge.attempt.hedge_of_span_id"]]
        assert primary.parent == hedge.parent
        assert primary.attributes["agent_hedge.outcome"] == "superseded"


def test_the_backend_adds_tokens_up_to_those_of_the_answers(shown: Shown) -> None:
    assert shown.backend.tokens(shown.sent) == (shown.sent.input_tokens, shown.sent.output_tokens)
