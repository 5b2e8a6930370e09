"""An engine away from the client's event loop: in a thread, or in a process so that the client's CPU is its own."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection as Pipe
from typing import Any
from urllib.request import Request, urlopen

import anyio
import anyio.to_thread

from agent_hedge.core.step import Attempt
from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.engine.server import FakeEngine
from agent_hedge.testing.serving import Ending, Record

ASK_EVERY_S = 0.005
"""Between two questions whether an engine has let go, which takes 4 to 47 ms (median and p99 of the demo)."""


@contextmanager
def in_thread(engine: FakeEngine) -> Iterator[FakeEngine]:
    """Run an engine on a loop of its own in a daemon thread until the block is left."""
    ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def live() -> None:
        stop = asyncio.Event()
        try:
            await engine.start()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result((asyncio.get_running_loop(), stop))
        try:
            await stop.wait()
        finally:
            await engine.aclose()

    thread = threading.Thread(target=asyncio.run, args=(live(),), name="agent-hedge-engine", daemon=True)
    thread.start()
    loop, stop = ready.result()
    try:
        yield engine
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@dataclass(frozen=True, slots=True)
class RemoteEngine:
    """An engine in another process, reached over HTTP alone."""

    url: str

    @property
    def base_url(self) -> str:
        """What OpenAI's clients call ``base_url``."""
        return f"{self.url}/v1"

    def records(self) -> list[Record]:
        """Fetch what the engine did. Its instants are on the monotonic clock, on Linux the same in all processes."""
        with urlopen(f"{self.url}/engine/records") as answer:
            rows = json.load(answer)
        return [Record(**row | {"ending": row["ending"] and Ending(row["ending"])}) for row in rows]

    async def cancel(self, attempt: Attempt) -> bool:
        """Ask until the engine has let go of an attempt: ``Target("a", model, cancel=engine)``."""
        while not await anyio.to_thread.run_sync(self._has_released, attempt.id):  # noqa: ASYNC110 - of another process
            await anyio.sleep(ASK_EVERY_S)
        return True

    def _has_released(self, request_id: str) -> bool:
        body = json.dumps({"request_id": request_id}).encode()
        with urlopen(Request(f"{self.url}/engine/released", body, method="POST")) as answer:
            return json.load(answer) is True

    def set_faults(self, words: str) -> None:
        """Set a standing fault in words (`parse_fault`); the empty text is none."""
        urlopen(Request(f"{self.url}/engine/faults", words.encode(), method="PUT")).close()


@contextmanager
def serve_in_process(**settings: Any) -> Iterator[RemoteEngine]:
    """Run ``FakeEngine(**settings)`` in a fresh process until the block is left; it ends with its parent too.

    Settings must be picklable: a function for `replies` or `faults` must live in an importable module.
    """
    FakeEngine(**settings)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, settings), name="agent-hedge-engine", daemon=True)
    with deaf_to_ctrl_c():
        process.start()
    theirs.close()
    try:
        try:
            url, trouble = ours.recv()
        except EOFError:
            raise RuntimeError("the engine's process ended before it listened") from None
        if trouble:
            raise ConfigurationError(trouble)
        yield RemoteEngine(url)
    finally:
        ours.close()
        process.join()


@contextmanager
def deaf_to_ctrl_c() -> Iterator[None]:
    """Start processes that never hear Ctrl-C, from their first instruction on; here it is only put off.

    It is the parent's affair, which closes their pipes. (A child that ignored it by itself would print a traceback
    for one that comes while it still imports.)
    """
    resource_tracker.ensure_running()  # it lets the signal through again when it has been started
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _serve(pipe: Pipe, settings: dict[str, Any]) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # a fork server that was there before has it unblocked
    asyncio.run(_live(pipe, settings))


async def _live(pipe: Pipe, settings: dict[str, Any]) -> None:
    engine = FakeEngine(**settings)
    try:
        await engine.start()
    except ConfigurationError as error:
        pipe.send(("", str(error)))
        return
    gone = asyncio.Event()
    asyncio.get_running_loop().add_reader(pipe.fileno(), gone.set)
    with suppress(BrokenPipeError):  # the parent has left already
        pipe.send((engine.url, ""))
    await gone.wait()
    asyncio.get_running_loop().remove_reader(pipe.fileno())
    await engine.aclose()
