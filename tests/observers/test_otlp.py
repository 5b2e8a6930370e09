"""G2: runs arrive whole at an OTLP receiver, over HTTP: parents, kinds, links, metrics."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter

import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from agent_hedge.cli.demo.draws import STEPS
from agent_hedge.cli.demo.experiment import LEARN_RUNS, POLICIES

pytest.importorskip("oteltap", reason="the receiver is built for x86-64 only")

from .tap import LOST_S, Received, said, tapped

RUNS = 1
METRICS = {
    "agent_hedge.steps.started",
    "agent_hedge.dispatches",
    "agent_hedge.attempts",
    "agent_hedge.step.ttft",
    "agent_hedge.cancel.release.duration",
}


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Received:
    """The demo's runs of all policies (and what `Quantile` learns from), over an endpoint with stragglers."""
    folder = tmp_path_factory.mktemp("otlp")
    rows = "\n".join("5.0" if row % 40 == 7 else f"0.0{60 + row % 7}" for row in range(400))
    (folder / "times.csv").write_text(f"ttft_s\n{rows}\n")

    async def run(url: str) -> None:
        command = ["demo", "--runs", str(RUNS), "--replay", "times.csv", "--otlp", url]
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "agent_hedge.cli.__main__", *command),
            cwd=folder,
            env=os.environ | {"OTEL_EXPORTER_OTLP_TIMEOUT": str(LOST_S)},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        _, err = await process.communicate()
        assert (process.returncode, err) == (0, b"")

    return asyncio.run(tapped(run, runs=RUNS * len(POLICIES) + LEARN_RUNS, metrics=METRICS))


def test_the_demo_arrives_whole(demo: Received) -> None:
    assert Counter(len(demo.steps_of(run)) for run in demo.runs) == {STEPS: RUNS * len(POLICIES) + LEARN_RUNS}
    for run in demo.runs:
        assert not run.parent_span_id
        for step in demo.steps_of(run):
            assert (step.kind, step.trace_id) == (Span.SPAN_KIND_INTERNAL, run.trace_id)
            assert run.start_time_unix_nano <= step.start_time_unix_nano <= step.end_time_unix_nano
            assert len(demo.attempts_of(step)) == said(step, "attempts")


def test_every_hedge_of_the_demo_is_linked_to_its_primary(demo: Received) -> None:
    races = [demo.attempts_of(step) for step in demo.steps if said(step, "attempts") > 1]
    assert races, "nothing was hedged"
    for primary, *hedges in races:
        assert not primary.links
        for hedge in hedges:
            assert [link.span_id for link in hedge.links] == [primary.span_id]
            assert hedge.links[0].trace_id == hedge.trace_id


def test_each_step_of_the_demo_has_one_winner_and_no_loser_has_failed(demo: Received) -> None:
    for step in demo.steps:
        outcomes = Counter(said(attempt, "outcome") for attempt in demo.attempts_of(step))
        assert outcomes["won"] == 1
        assert outcomes["superseded"] == outcomes.total() - 1
    for attempt in demo.attempts:
        assert (attempt.name, attempt.kind) == ("chat demo", Span.SPAN_KIND_CLIENT)
        assert attempt.status.code == Status.STATUS_CODE_UNSET


def test_the_engines_of_the_demo_say_when_they_have_let_go(demo: Received) -> None:
    losers = [attempt for attempt in demo.attempts if said(attempt, "outcome") == "superseded"]
    released = [attempt for attempt in losers if "agent_hedge.released" in {event.name for event in attempt.events}]
    assert released, "nobody was asked, or nobody knew"
    for attempt in released:
        assert said(attempt, "time.cancel_to_release") > 0
