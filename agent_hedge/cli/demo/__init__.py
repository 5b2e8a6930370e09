"""``agent-hedge demo``: a 20-call LangGraph agent over two replicas with stragglers, without hedging and with."""

from __future__ import annotations

import json as json_format
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agent_hedge.errors import ConfigurationError

if TYPE_CHECKING:
    from rich.console import Console

    from agent_hedge.cli.demo.draws import Draws, Tempo
    from agent_hedge.cli.demo.experiment import Experiment
    from agent_hedge.cli.demo.words import Setting

RUNS = 300
LIMIT_S = 92.0
"""Where nobody asked for a number of runs, none is started after this long: the demo is to end within two minutes."""


def demo(
    replay: Annotated[
        Path | None, typer.Option(metavar="FILE", help="CSV of real first-token times: a column ttft_ms or ttft_s.")
    ] = None,
    runs: Annotated[int | None, typer.Option(min=1, help=f"Runs per policy (default: {RUNS}).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the draws.")] = 0,
    page: Annotated[Path, typer.Option(metavar="PATH", help="Where the HTML page goes.")] = Path(
        "agent-hedge-demo.html"
    ),
    otlp: Annotated[
        str | None, typer.Option(metavar="URL", help="Send spans and metrics there by OTLP/HTTP (extra otlp).")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the figures as plain data.")] = False,
) -> None:
    """Show in about 90 seconds what hedging does to a long agent run: the same draws without it and with it."""
    from rich.console import Console

    from agent_hedge.cli.demo import draws, words
    from agent_hedge.cli.demo.experiment import LEARN_RUNS, reach_loopback_directly
    from agent_hedge.cli.demo.figures import common_runs, figures_of
    from agent_hedge.cli.demo.page import page as page_of
    from agent_hedge.cli.demo.table import table

    _check_installed()
    _check_writable(page)
    if otlp is not None:
        from agent_hedge.cli.demo.otlp import check

        reach_loopback_directly()
        check(otlp)
    out, err = Console(highlight=False), Console(stderr=True, highlight=False)
    asked = runs or RUNS
    drawn = (
        draws.shared_endpoint(asked + LEARN_RUNS, seed)
        if replay is None
        else draws.replay(replay, asked + LEARN_RUNS, seed)
    )
    tempo = draws.tempo(drawn)
    if not json:
        out.print(words.opening(drawn, tempo, asked), end="\n\n")
    seen = _watched(err, drawn, tempo, asked, None if runs else LIMIT_S, otlp)
    made = common_runs(seen)
    figures = {name: figures_of(made[name], seen.records, tempo.compression) for name in made}
    setting = words.Setting(drawn, tempo, seed, len(made["none"]), asked, seen)
    page.write_text(page_of(setting, made, figures), encoding="utf-8")
    if json:
        policies = {name: asdict(figure) for name, figure in figures.items()}
        typer.echo(json_format.dumps(_document(policies, page, setting), indent=2))
        return
    out.print(table(figures), end="\n\n")
    for line in words.closing(setting):
        out.print(line)
    out.print(f"Page: {page.resolve()}", soft_wrap=True)


def _watched(err: Console, draws: Draws, tempo: Tempo, runs: int, limit: float | None, otlp: str | None) -> Experiment:
    """Make the runs, with a progress bar a policy where there is a terminal."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from agent_hedge.cli.demo.experiment import POLICIES, perform
    from agent_hedge.cli.demo.table import TITLES

    columns = (TextColumn("{task.description:12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bars:
        tasks = {name: bars.add_task(TITLES[name], total=runs) for name in POLICIES}
        return perform(draws, tempo, runs, limit, lambda name, done: bars.update(tasks[name], completed=done), otlp)


def _document(policies: dict[str, Any], page: Path, setting: Setting) -> dict[str, Any]:
    from agent_hedge.cli.demo.draws import STEPS
    from agent_hedge.cli.demo.figures import trigger_of

    seen, scale = setting.experiment, setting.tempo.compression
    adaptive = seen.notes["quantile"]
    return {
        "policies": policies,
        "page": str(page),
        "profile": setting.draws.name,
        "source": setting.draws.source,
        "steps": STEPS,
        "seed": setting.seed,
        "compression": scale,
        "in_flight": setting.tempo.in_flight,
        "mode": setting.mode,
        "learning": {"calls": adaptive.learnt, "trigger_s": trigger_of(adaptive, scale)},
        "refused": dict(adaptive.refused),
        "wall_s": seen.wall,
        "client_cpu_share_of_two_cores": setting.cpu_share,
        "client_lag_p99_s": seen.lag,
    }


def _check_installed() -> None:
    """Find what the demo needs before it says it starts."""
    from importlib.util import find_spec

    for name in ("h11", "langchain_core", "langgraph", "langchain_openai"):
        if find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _check_writable(page: Path) -> None:
    """Find out that the page cannot be written before the work is done, not after; leave nothing there meanwhile."""
    there = page.exists()
    try:
        page.open("a", encoding="utf-8").close()
    except OSError as error:
        raise ConfigurationError(f"cannot write the page to {page}: {error.strerror}") from error
    if not there:
        page.unlink()
