"""One policy's client, in a process of its own: a hedger, the agent's graph, and so many runs of it in flight.

Talks to the demo through a pipe: sends how many runs have ended, and at the end its notes, or in words what went wrong.
Told to stop, it starts no more runs; when the pipe is gone, it goes.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe

from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from agent_hedge import Fixed, Hedger, Never, Quantile, Target
from agent_hedge.cli.demo.agent import build, run_once
from agent_hedge.cli.demo.draws import STEPS
from agent_hedge.cli.demo.notes import Notebook, PolicyNotes, RunNote
from agent_hedge.core.ports import HedgePolicy
from agent_hedge.testing.engine import RemoteEngine

FIXED_S = 2.0
"""What `Fixed` waits, in uncompressed seconds: the guess of one who has not measured."""
LOOK_EVERY_S = 0.1
TRACING = ("LANGSMITH_TRACING", "LANGSMITH_TRACING_V2", "LANGCHAIN_TRACING_V2")


@dataclass(frozen=True, slots=True)
class Job:
    """What a client is to do: runs `learn` to `learn + runs` of the draws.

    A policy that learns makes the first `learn` runs before them; they are not noted.
    """

    policy: str
    urls: tuple[str, str]
    runs: int
    learn: int
    in_flight: int
    compression: float
    otlp: str | None = None
    """Where spans and metrics go."""


def serve(pipe: Pipe, job: Job) -> None:
    """Do the job. The entry of the process."""
    os.environ.update(dict.fromkeys(TRACING, "false"))  # a demo's calls belong in nobody's traces
    gc.freeze()  # what the imports made stays
    try:
        with _seen_elsewhere(job):
            asyncio.run(_until_gone(pipe, job))
    except (BrokenPipeError, asyncio.CancelledError):
        pass
    except Exception as error:
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        with suppress(BrokenPipeError):  # another client has failed first
            pipe.send(f"{type(error).__name__}: {error}")


def _seen_elsewhere(job: Job) -> AbstractContextManager[None]:
    """Return what sends telemetry to where the job says."""
    if job.otlp is None:
        return nullcontext()
    from agent_hedge.cli.demo.otlp import exported

    return exported(job.otlp, job.policy)


async def _until_gone(pipe: Pipe, job: Job) -> None:
    """Do the job as long as the parent listens."""
    work = asyncio.current_task()
    assert work is not None
    client = Client(pipe, job)

    def heard() -> None:
        try:
            pipe.recv()
            client.stopped = True
        except (EOFError, OSError):
            loop.remove_reader(pipe.fileno())
            work.cancel()

    loop = asyncio.get_running_loop()
    loop.add_reader(pipe.fileno(), heard)
    try:
        pipe.send(await client.work())
    finally:
        loop.remove_reader(pipe.fileno())


class Client:
    """Runs the agent again and again, under one policy."""

    def __init__(self, pipe: Pipe, job: Job) -> None:
        self.stopped = False
        self._pipe = pipe
        self._job = job

    async def work(self) -> PolicyNotes:
        """Learn where the policy learns, then make the runs; return the notes."""
        job = self._job
        notebook = Notebook(job.learn)
        policies: dict[str, HedgePolicy] = {
            "none": Never(),
            "fixed": Fixed(FIXED_S / job.compression),
            "quantile": Quantile(),
        }
        lags = list[float]()
        watch = asyncio.create_task(_watch(lags))
        async with Hedger(policy=policies[job.policy], observers=[notebook]) as hedger:
            graph = build(hedger.chat_model(*_replicas(job.urls, watched=job.otlp is not None)))
            learn = job.learn if job.policy == "quantile" else 0
            left = iter(range(job.learn - learn, job.learn + job.runs))
            runs = list[RunNote]()

            async def one_after_the_other() -> None:
                for number in _until(left, self):
                    async with hedger.run(key=str(number), steps=STEPS):
                        started = time.monotonic()
                        await run_once(graph)
                        elapsed = time.monotonic() - started
                    steps = notebook.take(str(number))
                    if number >= job.learn:
                        runs.append(RunNote(number, started, elapsed, steps))
                        self._pipe.send(len(runs))

            async with asyncio.TaskGroup() as tasks:
                for _ in range(job.in_flight):
                    tasks.create_task(one_after_the_other())
            mode = hedger.status()["mode"]
        watch.cancel()
        cpu = time.process_time()
        return PolicyNotes(job.policy, runs, cpu, lags, mode, learn * STEPS, notebook.triggers, notebook.refused)


async def _watch(lags: list[float]) -> None:
    """Write down how late this loop's timers are."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + LOOK_EVERY_S
        await asyncio.sleep(LOOK_EVERY_S)
        lags.append(loop.time() - due)


def _until(numbers: Iterator[int], client: Client) -> Iterator[int]:
    while not client.stopped and (number := next(numbers, None)) is not None:
        yield number


def _replicas(urls: tuple[str, str], *, watched: bool) -> list[Target[ChatOpenAI]]:
    """Return both targets; `watched`: their engines are asked when they have let go of a loser, for whoever looks."""
    key = SecretStr("none")
    return [
        Target(
            name,
            ChatOpenAI(
                model="demo",
                base_url=url,
                api_key=key,
                stream_usage=False,
                stream_chunk_timeout=None,  # a timer for every chunk
                http_socket_options=(),
            ),
            cluster="demo",
            cancel=RemoteEngine(url.removesuffix("/v1")) if watched else None,
        )
        for name, url in zip(("replica-a", "replica-b"), urls, strict=True)
    ]
