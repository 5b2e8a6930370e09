"""A TCP proxy on 127.0.0.1 that fails on purpose: refuses, swallows, delays, or loses the reply to one request.

It runs on a thread of its own, so that the code under test may block or use any loop.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from contextlib import suppress
from types import TracebackType

from agent_hedge.testing.postgres import free_port

_CHUNK = 65536
_ANSWER_S = 60.0
"""Real seconds after which the proxy's own thread counts as hung, on any machine."""


class FaultyProxy:
    """A context manager. `port` stays the same through refusals; `delay` is seconds each way."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._upstream = (host, port)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="faulty-proxy", daemon=True)
        self._server: asyncio.Server | None = None
        self._clients: set[asyncio.StreamWriter] = set()
        self._swallow: list[bytes] = []
        self._open: asyncio.Event
        self.delay = 0.0
        self.port = 0
        self.lost_replies = 0

    def __enter__(self) -> FaultyProxy:
        self._thread.start()
        self._run(self._start())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._run(self._stop(reset=True))
        self._run(self._drain())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: object) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).result(_ANSWER_S)  # type: ignore[arg-type]

    # --- the faults

    def refuse(self) -> None:
        """Reset what is open and refuse every new connection."""
        self._run(self._stop(reset=True))

    def accept(self) -> None:
        """Work again after `refuse`, `black_hole` or a delay."""
        self.delay = 0.0
        self._run(self._start())

    def black_hole(self) -> None:
        """Take connections and bytes, and pass nothing on."""
        self._loop.call_soon_threadsafe(self._open.clear)

    def reset(self) -> None:
        """Reset every open connection."""
        self._run(self._reset_all())

    def lose_reply_to(self, marker: bytes, times: int = 1) -> None:
        """Pass on the next request that holds `marker`, swallow the server's reply and reset the client."""
        self._swallow += [marker] * times

    # --- inside the loop

    async def _start(self) -> None:
        if not hasattr(self, "_open"):
            self._open = asyncio.Event()
        self._open.set()
        if self._server is None:
            self.port = self.port or free_port()
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)

    async def _stop(self, *, reset: bool) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if reset:
            await self._reset_all()

    async def _reset_all(self) -> None:
        for writer in list(self._clients):
            _reset(writer)

    async def _drain(self) -> None:
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._clients.add(writer)
        lost = asyncio.Event()
        pumps: list[asyncio.Task[None]] = []
        upstream: asyncio.StreamWriter | None = None
        try:
            await self._open.wait()
            answers, upstream = await asyncio.open_connection(*self._upstream)
            pumps = [
                asyncio.ensure_future(self._requests(reader, upstream, lost)),
                asyncio.ensure_future(self._replies(answers, writer, lost)),
            ]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):  # cancelled only when the proxy ends
            _reset(writer)
        finally:
            self._clients.discard(writer)
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            for end in (writer, upstream):
                if end is not None:
                    with suppress(OSError):
                        end.close()

    async def _requests(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while chunk := await source.read(_CHUNK):
            await self._pass()
            for marker in self._swallow:
                if marker in chunk:
                    self._swallow.remove(marker)
                    lost.set()
                    break
            sink.write(chunk)
            await sink.drain()

    async def _replies(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, lost: asyncio.Event) -> None:
        while chunk := await source.read(_CHUNK):
            await self._pass()
            if lost.is_set():
                self.lost_replies += 1
                _reset(sink)
                return
            sink.write(chunk)
            await sink.drain()

    async def _pass(self) -> None:
        if self.delay:
            await asyncio.sleep(self.delay)
        await self._open.wait()


def _reset(writer: asyncio.StreamWriter) -> None:
    wire = writer.get_extra_info("socket")
    if wire is not None:
        with suppress(OSError):
            wire.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
