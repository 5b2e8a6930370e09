"""``agent-hedge engine``: the fake serving engine from the command line."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from agent_hedge.testing.engine import FakeEngine


def engine(
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0 takes a free one.")] = 8000,
    model: Annotated[str, typer.Option(help="Name of the model it lists; any name is answered.")] = "fake-model",
    profile: Annotated[
        str,
        typer.Option(
            help="Time to the first token: fixed:S, lognormal:MEDIAN,SIGMA, "
            "stragglers:MEDIAN,SIGMA,SHARE,SCALE,ALPHA[,CAP], shared-endpoint, replay:FILE.csv, "
            "spells:EVERY,LASTS,FACTOR/PROFILE."
        ),
    ] = "fixed:0.3",
    slots: Annotated[int, typer.Option(help="Requests that run at once; the rest wait.")] = 16,
    speedup: Annotated[float, typer.Option(help="How many times faster than real time the engine runs.")] = 1.0,
    fault: Annotated[
        list[str] | None,
        typer.Option(help="What goes wrong: status=503, notice=late:2, cut_after=3, ... (repeatable)."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the draws.")] = 0,
) -> None:
    """Serve OpenAI's chat API on 127.0.0.1 with the queues, delays and failures of a real engine, until Ctrl-C."""
    from agent_hedge.testing.engine import FakeEngine, Hardware, parse_fault

    hardware = Hardware(slots=slots, speedup=speedup)
    faults = parse_fault(" ".join(fault)) if fault else None
    server = FakeEngine(profile, model=model, hardware=hardware, faults=faults, seed=seed, port=port)
    asyncio.run(_serve(server, profile))


async def _serve(server: FakeEngine, profile: str) -> None:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with server:
        typer.echo(f"{server.base_url}  model {server.model}, TTFT {profile}; Ctrl-C ends it")
        await stop.wait()
