"""The fake engine: an OpenAI-compatible server on loopback, driven by the serving model."""

from __future__ import annotations

import asyncio
import concurrent.futures
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

from agent_hedge.core.step import Attempt
from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.engine.app import App, Received
from agent_hedge.testing.engine.connection import Connection
from agent_hedge.testing.engine.faults import FaultPlan, Faults
from agent_hedge.testing.engine.pump import Pump
from agent_hedge.testing.engine.replies import Replies, ReplyPlan
from agent_hedge.testing.profiles import Profile, parse
from agent_hedge.testing.serving import Hardware, Record, Serving

HOST = "127.0.0.1"
"""The only address: a fake engine is for this machine."""
PATIENCE = 60.0
"""Seconds a test waits for the engine before it is a failure: it hangs, which a slow machine does not look like."""


class FakeEngine:
    """One replica of a serving engine. Use it as ``async with``, or ``with FakeEngine.in_thread(...)``.

    `profile` is a TTFT profile or its words (``"lognormal:0.3,0.2"``), `faults` and `replies` say what goes wrong and
    what is said, `port` 0 takes a free one. Any API key and any model name are accepted; the name is echoed. Two
    engines of one seed draw the same TTFT for the same ``X-Draw`` header.

    Raises:
        ConfigurationError: a bad profile, here; a port in use, when it starts.
    """

    def __init__(
        self,
        profile: Profile | str = "fixed:0",
        *,
        model: str = "fake-model",
        hardware: Hardware | None = None,
        faults: Faults = None,
        replies: Replies = None,
        seed: int = 0,
        port: int = 0,
    ) -> None:
        self.profile = parse(profile) if isinstance(profile, str) else profile
        self.model = model
        self.hardware = hardware or Hardware()
        self._faults = FaultPlan(faults)
        self._replies = ReplyPlan(replies)
        self._seed = seed
        self._port = port
        self._connections: set[Connection] = set()
        self._waiters: list[tuple[concurrent.futures.Future[None], Callable[[FakeEngine], bool]]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._pump: Pump
        self._app: App

    async def start(self) -> None:
        """Listen. The engine lives on the running loop until `aclose`."""
        loop = asyncio.get_running_loop()
        serving = Serving(self.profile, self.hardware, seed=self._seed, started_at=loop.time())
        self._pump = Pump(serving, self._changed)
        self._app = App(self._pump, self.model, self._faults, self._replies)
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._app.handle, self._connections), HOST, self._port
            )
        except (OSError, OverflowError) as error:
            why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
            raise ConfigurationError(f"cannot listen on {HOST}:{self._port}: {why}") from error
        self._port = self._server.sockets[0].getsockname()[1]
        self._loop = loop

    async def aclose(self) -> None:
        """Stop listening, close every connection, forget what is running."""
        if self._server is None:
            return
        server, self._server = self._server, None
        self._loop = None
        server.close()
        self._pump.stop()
        for connection in list(self._connections):
            connection.abort()
        for future, _ in self._waiters:
            if future.set_running_or_notify_cancel():
                future.set_exception(RuntimeError("the engine was closed while somebody waited for it"))
        await asyncio.sleep(0)  # connections close in the next turn of the loop
        await server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    @classmethod
    def in_thread(cls, *args: Any, **settings: Any) -> AbstractContextManager[FakeEngine]:
        """Run an engine in a thread of its own (same arguments); for synchronous clients and other event loops."""
        from agent_hedge.testing.engine.hosting import in_thread

        return in_thread(cls(*args, **settings))

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``."""
        return f"http://{HOST}:{self._port}"

    @property
    def base_url(self) -> str:
        """What OpenAI's clients call ``base_url``."""
        return f"{self.url}/v1"

    @property
    def faults(self) -> Faults:
        """What goes wrong from the next request on; may be set at any time, from any thread."""
        return self._faults.given

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._faults.set(faults)

    @property
    def records(self) -> Sequence[Record]:
        """What the engine did for each request for tokens, oldest first; refused ones are `REJECTED`."""
        return self._app.records

    @property
    def requests(self) -> Sequence[Received]:
        """What came over the wire for tokens: headers, body, fault, status, and the record."""
        return self._app.requests

    @property
    def serving(self) -> Serving:
        """The model that drives this engine."""
        return self._pump.serving

    @property
    def running(self) -> int:
        """Requests that hold a slot."""
        return self._pump.serving.running

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._pump.serving.waiting

    @property
    def connections(self) -> int:
        """Open sockets, idle ones too."""
        return len(self._connections)

    @property
    def is_idle(self) -> bool:
        """Whether nothing is queued or running."""
        return self._pump.live == 0

    async def wait_for(self, holds: Callable[[FakeEngine], bool], timeout: float = PATIENCE) -> None:
        """Wait, on any event loop, until `holds(engine)`; it is asked whenever something happened in the engine.

        Raises:
            TimeoutError: it did not within `timeout` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await asyncio.wrap_future(self._watch(holds))
        except TimeoutError:
            raise TimeoutError(self._late(timeout)) from None

    async def wait_idle(self, timeout: float = PATIENCE) -> None:
        """Wait until nothing is queued or running."""
        await self.wait_for(lambda engine: engine.is_idle, timeout)

    async def cancel(self, attempt: Attempt) -> bool:
        """Wait until this engine has let go of an attempt: ``Target("a", model, cancel=engine)``."""
        await self.wait_for(lambda engine: engine._app.has_released(attempt.id))
        return True

    def wait(self, holds: Callable[[FakeEngine], bool], timeout: float = PATIENCE) -> None:
        """Like `wait_for`, for threads other than the engine's."""
        future = self._watch(holds)
        try:
            future.result(timeout)
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise TimeoutError(self._late(timeout)) from None

    def _watch(self, holds: Callable[[FakeEngine], bool]) -> concurrent.futures.Future[None]:
        if self._loop is None:
            raise RuntimeError("the engine is not running")
        future: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._waiters.append((future, holds))
        self._loop.call_soon_threadsafe(self._pump.kick)
        return future

    def _changed(self) -> None:
        for waiter in list(self._waiters):
            future, holds = waiter
            try:
                if future.cancelled():
                    self._waiters.remove(waiter)
                elif holds(self):
                    self._waiters.remove(waiter)
                    future.set_result(None)
            except Exception as error:
                self._waiters.remove(waiter)
                future.set_exception(error)

    def _late(self, timeout: float) -> str:
        state = f"{self.running} running, {self.waiting} waiting, {len(self.records)} records"
        return f"the engine did not get there in {timeout} s: {state}"
