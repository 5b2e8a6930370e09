"""One HTTP/1.1 connection: h11 for the protocol, an asyncio protocol for the bytes, no task of its own.

The transport is read all the time, also while a request waits for its answer: that is how a client's departure is
seen at once, whatever the engine is made to do about it. A half-closed socket counts as a departure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import cast

import h11

from agent_hedge.testing.engine.request import Request

MAX_BODY = 64 * 1024 * 1024
"""Bytes of a request body; more is answered 413."""

Headers = Mapping[str, str]


class Connection(asyncio.Protocol):
    """Reads requests one after the other and writes what it is told.

    `handle` is called with each complete request. While one is being answered, `on_gone` (set by whoever answers) is
    called once if the client leaves.
    """

    def __init__(self, handle: Callable[[Connection, Request], None], connections: set[Connection]) -> None:
        self.on_gone: Callable[[], None] | None = None
        self._handle = handle
        self._connections = connections
        self._http = h11.Connection(h11.SERVER)
        self._transport: asyncio.Transport
        self._head: h11.Request | None = None
        self._body = bytearray()
        self._open = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is none by class
        self._open = True
        self._connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.discard(self)
        self._lose()

    def eof_received(self) -> None:
        self._lose()

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        self._read()

    def _lose(self) -> None:
        self._open = False
        on_gone, self.on_gone = self.on_gone, None
        if on_gone is not None:
            on_gone()

    def _read(self) -> None:
        try:
            while self._open:
                event = self._http.next_event()
                if self._http.they_are_waiting_for_100_continue:
                    self._send(h11.InformationalResponse(status_code=100, headers=[]))
                if event is h11.NEED_DATA or event is h11.PAUSED:
                    return
                if isinstance(event, h11.Request):
                    self._head = event
                    self._body.clear()
                elif isinstance(event, h11.Data):
                    self._body += event.data
                    if len(self._body) > MAX_BODY:
                        self._refuse(413, "the request body is too large")
                elif isinstance(event, h11.EndOfMessage):
                    self._complete()
        except h11.RemoteProtocolError as error:
            self._refuse(error.error_status_hint, str(error))

    def _complete(self) -> None:
        assert self._head is not None
        path = self._head.target.decode("latin-1").partition("?")[0]
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in self._head.headers}
        self._handle(self, Request(self._head.method.decode("latin-1"), path, headers, bytes(self._body)))

    def _refuse(self, status: int, reason: str) -> None:
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self.respond(status, {"connection": "close", "content-type": "text/plain"}, reason.encode())
        self.cut()

    def respond(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole response."""
        self.start(status, {**headers, "content-length": str(len(body))})
        self.write(body)
        self.finish()

    def start(self, status: int, headers: Headers) -> None:
        """Send the head of a response; without a content-length the body is chunked."""
        self._send(h11.Response(status_code=status, headers=list(headers.items())))

    def write(self, data: bytes) -> None:
        """Send a piece of the body."""
        if data:
            self._send(h11.Data(data=data))

    def finish(self) -> None:
        """End the response; the connection is then ready for the next request, or closes if it was asked to."""
        self.on_gone = None
        if not self._open:
            return
        self._send(h11.EndOfMessage())
        if self._http.our_state is not h11.DONE:
            self._transport.close()
        elif self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._read()

    def cut(self) -> None:
        """Close the socket where the response stands; what was written before is still delivered."""
        self.on_gone = None
        self._open = False
        self._transport.close()

    def abort(self) -> None:
        """Close the socket at once, whatever is still unsent."""
        self.cut()
        self._transport.abort()

    def _send(self, event: h11.Event) -> None:
        if self._open and (data := self._http.send(event)):
            self._transport.write(data)
