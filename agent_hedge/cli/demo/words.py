"""What the demo says in sentences, on the terminal and on its page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent_hedge.cli.demo.draws import STEPS, Draws, Tempo
from agent_hedge.cli.demo.experiment import Experiment
from agent_hedge.cli.demo.figures import DEADLINE_S, Figures, trigger_of
from agent_hedge.cli.demo.notes import RunNote

CORES = 2
"""The machine the demo is made for; the client's share of it is shown."""
LATE_S = 0.02
"""Timers later than this (p99) are worth a word: what the clients measured holds their own lateness."""


@dataclass(frozen=True, slots=True)
class Setting:
    """What was run, and what was seen."""

    draws: Draws
    tempo: Tempo
    seed: int
    runs: int
    asked: int
    experiment: Experiment

    @property
    def cpu_share(self) -> float:
        """CPU time of all clients, as a share of two cores over the whole time."""
        return self.experiment.client_cpu / (self.experiment.wall * CORES)

    @property
    def mode(self) -> str:
        """The mode in force: the environment may have switched hedging off."""
        return self.experiment.notes["quantile"].mode


def opening(draws: Draws, tempo: Tempo, runs: int) -> str:
    """Return what is about to happen."""
    return (
        f"{runs} runs a policy of a {STEPS}-call LangGraph agent over two replicas, the same draws for every policy.\n"
        f"Replicas: {draws.name} ({draws.source}).\n"
        f"Time runs {tempo.compression:g} times faster than real; every figure is in uncompressed seconds."
    )


def headline(figures: Mapping[str, Figures]) -> str:
    """Return the result in one line."""
    before, after = figures["none"], figures["quantile"]
    return (
        f"Summed TTFT per run, p99: {before.ttft_sum_p99_s:.1f} s without hedging, {after.ttft_sum_p99_s:.1f} s with, "
        f"for {after.hedge_rate:.1%} more calls"
    )


def summary(setting: Setting) -> str:
    """Return what was compared, and on what."""
    return (
        f"{setting.runs} runs a policy of a LangGraph agent that makes {STEPS} LLM calls in a row (plan, read with "
        f"tools, think, answer), over two replicas of {setting.draws.name}: {setting.draws.source}."
    )


def learning(setting: Setting) -> str:
    """Return what the adaptive policy learnt before the first run that counts."""
    notes = setting.experiment.notes["quantile"]
    trigger = trigger_of(notes, setting.tempo.compression)
    learnt = f"Quantile() first learnt from {notes.learnt} calls on draws of their own, not counted above"
    if setting.mode != "on":
        return f"{learnt}. Hedging is switched {setting.mode} by AGENT_HEDGE_MODE."
    armed = "" if trigger is None else f"; a hedge was then due after {trigger:.2f} s (median)"
    refused = ", ".join(f"{count} ({reason})" for reason, count in sorted(notes.refused.items()))
    return f"{learnt}{armed}. " + (f"Hedges refused: {refused}." if refused else "No hedge was refused.")


def one_run(setting: Setting, run: RunNote, runs: Mapping[str, Sequence[RunNote]]) -> str:
    """Return the caption of the waterfall."""
    scale = setting.tempo.compression
    unhedged = next(one for one in runs["none"] if one.number == run.number)
    return (
        f"Of the {setting.runs} runs the one in which hedging saved most: {run.elapsed * scale:.1f} s; the same run "
        f"on the same draws without hedging took {unhedged.elapsed * scale:.1f} s. Bars end at the first token, or "
        "where the attempt was cancelled."
    )


def method(setting: Setting) -> str:
    """Return how it was measured."""
    seen = setting.experiment
    return (
        f"Real StateGraph and ToolNode, ChatOpenAI over HTTP on loopback, two fake engines in processes of their own, "
        f"one client process a policy with {setting.tempo.in_flight} runs in flight. Time was compressed "
        f"{setting.tempo.compression:g} times; figures are in uncompressed seconds, so the client's own work is "
        f"multiplied too; cancel to release is in real time. Seed {setting.seed}; a request draws the same "
        f"first-token time under every policy, the two replicas draw independently. Hedges count per logical call. "
        f"The {DEADLINE_S:g} s are counted, not enforced. The clients used {setting.cpu_share:.0%} of two cores over "
        f"{seen.wall:.0f} s; their timers were late by {seen.lag * 1e3:.0f} ms (p99)."
    )


def closing(setting: Setting) -> list[str]:
    """Return what a reader of the table should know besides."""
    seen = setting.experiment
    lines = [learning(setting)]
    lines.append(
        f"Took {seen.wall:.0f} s; the clients used {setting.cpu_share:.0%} of two cores, their timers were late by "
        f"{seen.lag * 1e3:.0f} ms (p99)."
    )
    if setting.runs < setting.asked:
        lines.append(f"Time was up: {setting.runs} of {setting.asked} runs were made. This machine is busy.")
    elif seen.lag > LATE_S:
        lines.append("This machine is busy, and the figures hold its lateness.")
    return lines
