"""From notes to figures: what each policy did, in uncompressed seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent_hedge.cli.demo.experiment import Experiment
from agent_hedge.cli.demo.notes import PolicyNotes, RunNote
from agent_hedge.cli.demo.statistics import percentile
from agent_hedge.testing.engine import Record

DEADLINE_S = 30.0
"""What a caller may be ready to wait for a run; counted here, not enforced, so that the curves are whole."""


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one policy. Seconds are uncompressed, except those of the release: a socket closes in real time.

    `hedge_rate`: hedges per logical request; `win_rate`: hedges that won, of all hedges; `wasted_tokens`: computed
    by the engines for attempts that lost; `release_*`: from the client's cancel until the engine had let go.
    """

    runs: int
    run_p50_s: float
    run_p95_s: float
    run_p99_s: float
    ttft_sum_p99_s: float
    ttft_p50_s: float
    ttft_p99_s: float
    hedge_rate: float
    win_rate: float | None
    wasted_tokens: int
    release_p50_s: float | None
    release_p99_s: float | None
    deadline_misses: int


def figures_of(runs: Sequence[RunNote], records: dict[str, Record], compression: float) -> Figures:
    """Return the figures of one policy's runs."""
    steps = [step for run in runs for step in run.steps]
    attempts = [attempt for step in steps for attempt in step.attempts]
    hedges = [attempt for attempt in attempts if attempt.hedge]
    losers = [(attempt, records[attempt.id]) for attempt in attempts if not attempt.won and attempt.id in records]
    releases = [
        max(0.0, record.released - attempt.cancelled)
        for attempt, record in losers
        if attempt.cancelled is not None and record.released is not None
    ]
    elapsed = [run.elapsed * compression for run in runs]
    ttft = [step.ttft * compression for step in steps]
    return Figures(
        runs=len(runs),
        run_p50_s=percentile(elapsed, 0.50),
        run_p95_s=percentile(elapsed, 0.95),
        run_p99_s=percentile(elapsed, 0.99),
        ttft_sum_p99_s=percentile([run.ttft_sum * compression for run in runs], 0.99),
        ttft_p50_s=percentile(ttft, 0.50),
        ttft_p99_s=percentile(ttft, 0.99),
        hedge_rate=len(hedges) / len(steps),
        win_rate=sum(attempt.won for attempt in hedges) / len(hedges) if hedges else None,
        wasted_tokens=sum(record.prompt_computed + record.completion_computed for _, record in losers),
        release_p50_s=percentile(releases, 0.50) if releases else None,
        release_p99_s=percentile(releases, 0.99) if releases else None,
        deadline_misses=sum(seconds > DEADLINE_S for seconds in elapsed),
    )


def common_runs(experiment: Experiment) -> dict[str, list[RunNote]]:
    """Return each policy's runs in order, of the runs that every policy has made."""
    made = [{run.number for run in notes.runs} for notes in experiment.notes.values()]
    shared = set.intersection(*made)
    return {
        name: sorted((run for run in notes.runs if run.number in shared), key=lambda run: run.number)
        for name, notes in experiment.notes.items()
    }


def trigger_of(notes: PolicyNotes, compression: float) -> float | None:
    """Return the median delay after which a hedge was due, None where none ever was."""
    return percentile(notes.triggers, 0.5) * compression if notes.triggers else None
