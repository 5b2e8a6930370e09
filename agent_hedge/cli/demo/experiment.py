"""Two replicas, three policies, each in a process of its own, all at the same time: who made which calls, and when."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection as Pipe
from multiprocessing.connection import wait

from agent_hedge.cli.demo.draws import Draws, Tempo
from agent_hedge.cli.demo.notes import PolicyNotes
from agent_hedge.cli.demo.replies import reply
from agent_hedge.cli.demo.statistics import percentile
from agent_hedge.errors import HedgeError
from agent_hedge.testing.engine import Hardware, Record, serve_in_process
from agent_hedge.testing.engine.hosting import deaf_to_ctrl_c

POLICIES = ("none", "fixed", "quantile")
LEARN_RUNS = 20
"""400 calls: a latency history speaks from 200 samples on, and the first counted run starts before all have ended."""
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Experiment:
    """What was seen: the notes of each policy, the engines' records by request id, and what it cost this machine."""

    notes: dict[str, PolicyNotes]
    records: dict[str, Record]
    wall: float
    client_cpu: float
    """CPU seconds of all clients and of this process."""

    @property
    def lag(self) -> float:
        """By how much the clients' timers were late, p99 in seconds."""
        return percentile([lag for notes in self.notes.values() for lag in notes.lags], 0.99)


def perform(
    draws: Draws,
    tempo: Tempo,
    runs: int,
    limit: float | None,
    progress: Callable[[str, int], None],
    otlp: str | None = None,
) -> Experiment:
    """Make `runs` runs a policy and return what was seen; after `limit` seconds no more runs are started.

    `otlp`: where the clients' spans and metrics go.

    Raises:
        HedgeError: a client failed.
    """
    reach_loopback_directly()
    started, cpu = time.monotonic(), time.process_time()
    hardware = Hardware(slots=1024, speedup=tempo.compression)
    with ExitStack() as stack:
        engines = [
            stack.enter_context(serve_in_process(profile=profile, hardware=hardware, faults=reply, seed=seed))
            for profile, seed in zip(draws.profiles, draws.seeds, strict=True)
        ]
        a, b = engines
        urls = (a.base_url, b.base_url)
        clients = {name: stack.enter_context(_client(name, urls, runs, tempo, otlp)) for name in POLICIES}
        notes = _listen(clients, started + limit if limit is not None else None, progress)
        wall = time.monotonic() - started
        notes = {name: notes[name] for name in POLICIES}  # in their order, not in that of their ends
        records = {record.id: record for engine in engines for record in engine.records()}
    client_cpu = sum(note.cpu for note in notes.values()) + time.process_time() - cpu
    return Experiment(notes, records, wall, client_cpu)


def _listen(
    clients: dict[str, Pipe], until: float | None, progress: Callable[[str, int], None]
) -> dict[str, PolicyNotes]:
    """Hear the clients to the end; when time is up, tell them to start nothing more."""
    notes: dict[str, PolicyNotes] = {}
    names = {pipe: name for name, pipe in clients.items()}
    told = False
    while names:
        left = None if until is None or told else max(0.0, until - time.monotonic())
        for pipe in wait(list(names), left):
            assert isinstance(pipe, Pipe)
            name = names[pipe]
            try:
                said = pipe.recv()
            except EOFError:
                said = "its process ended"
            if isinstance(said, int):
                progress(name, said)
            elif isinstance(said, PolicyNotes):
                notes[name] = said
                del names[pipe]
            else:
                raise HedgeError(f"the client of policy {name!r} failed: {said}")
        if until is not None and not told and time.monotonic() >= until:
            told = True
            for pipe in names:
                pipe.send("stop")
    return notes


@contextmanager
def _client(policy: str, urls: tuple[str, str], runs: int, tempo: Tempo, otlp: str | None) -> Iterator[Pipe]:
    """Run a policy's client in a process until the block is left; it ends with its parent too."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["agent_hedge.cli.demo.worker"])  # the three share one import of LangChain
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, policy, urls, runs, tempo, otlp), name=policy, daemon=True)
    with deaf_to_ctrl_c():
        process.start()
    theirs.close()
    try:
        yield ours
    finally:
        ours.close()
        process.join()


def _serve(pipe: Pipe, policy: str, urls: tuple[str, str], runs: int, tempo: Tempo, otlp: str | None) -> None:
    from agent_hedge.cli.demo.worker import Job, serve

    serve(pipe, Job(policy, urls, runs, LEARN_RUNS, tempo.in_flight, tempo.compression, otlp))


def reach_loopback_directly() -> None:
    """Take the replicas' address out of what a proxy in the environment is asked for."""
    for name in ("no_proxy", "NO_PROXY"):
        known = [host for host in os.environ.get(name, "").split(",") if host]
        if LOOPBACK not in known:
            os.environ[name] = ",".join([*known, LOOPBACK])
