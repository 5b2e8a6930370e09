"""One request being answered: facts of the model come in, bytes go out."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

from agent_hedge.testing.engine.chat import Answer
from agent_hedge.testing.engine.connection import Connection
from agent_hedge.testing.engine.faults import Fault
from agent_hedge.testing.engine.pump import Pump
from agent_hedge.testing.serving import Ending, Fact

OPENAI_ERROR_TYPES = {401: "authentication_error", 429: "rate_limit_error"}


def error_body(status: int, message: str, code: str | None = None) -> bytes:
    """Return an error of OpenAI's shape."""
    kind = OPENAI_ERROR_TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    return json.dumps({"error": {"message": message, "type": kind, "param": None, "code": code}}).encode()


class Exchange:
    """Writes an answer while the model computes it, and goes wrong where its fault says so.

    `ended` is called once with vLLM's finish reason when the answer is complete or has failed.
    """

    def __init__(
        self,
        connection: Connection,
        answer: Answer,
        fault: Fault,
        *,
        pump: Pump,
        client_id: str,
        id: str,  # noqa: A002
        headers: dict[str, str],
        ended: Callable[[str], None],
    ) -> None:
        self.client_id = client_id
        self._connection = connection
        self._answer = answer
        self._fault = fault
        self._pump = pump
        self._id = id
        self._headers = headers | {"content-type": answer.content_type}
        self._ended = ended
        self._written = 0
        self._started = False
        self._left = False
        self._pings: list[asyncio.TimerHandle] = []

    def open(self) -> None:
        """Send what comes before the first token, and watch for the client's departure."""
        self._connection.on_gone = self._gone
        if not self._answer.streamed or self._fault.late_headers:
            return
        self._start()
        if self._fault.role_first:
            self._connection.write(self._answer.prelude())
        every = self._fault.ping_every / self._pump.serving.hardware.speedup
        if every == 0:
            self._connection.write(b": ping\n\n" * self._fault.pings)
            return
        loop = asyncio.get_running_loop()
        self._pings = [
            loop.call_later(number * every, self._connection.write, b": ping\n\n")
            for number in range(1, self._fault.pings + 1)
        ]

    def hear(self, fact: Fact) -> None:
        """Take a fact of the model about this request."""
        if self._left:
            if fact.ending is Ending.COMPLETED:
                self._ended(self._answer.finish)
        elif fact.tokens:
            self._compute(fact.tokens)
        elif fact.ending is Ending.ABORTED:
            self._close("abort")
        elif self._fault.breaks_after is not None or (self._fault.replay and self._fault.replay.is_broken):
            self._break()
        else:
            self._close("")

    def _compute(self, tokens: int) -> None:
        self._stop_pings()
        data = b"".join(self._answer.piece(self._written + offset) for offset in range(tokens))
        self._written += tokens
        if self._answer.streamed:
            if not self._started:
                self._start()
            self._connection.write(data)

    def _break(self) -> None:
        """Go wrong in the way the fault says; what lies beyond the last token happens after it."""
        if self._fault.error_after is not None and self._fault.error_after == self._fault.breaks_after:
            self._error()
        else:
            self._cut()

    def _close(self, reason: str) -> None:
        data = self._answer.closing(reason)
        if self._answer.streamed:
            if not self._started:
                self._start()
            self._connection.write(data)
            self._connection.finish()
        else:
            self._connection.respond(200, self._headers, data)
        self._finish(reason or self._answer.finish)

    def _error(self) -> None:
        body = error_body(500, "the engine failed")
        if not self._started:
            self._connection.respond(500, self._headers | {"content-type": "application/json"}, body)
        else:
            named = self._fault.error_event
            frame = (b"event: error\n" if named else b"") + b"data: " + body + b"\n\n"
            self._connection.write(frame if named else frame + b"data: [DONE]\n\n")
            self._connection.finish()
        self._finish("error")

    def _cut(self) -> None:
        if not self._answer.streamed:
            data = self._answer.closing("")
            self._connection.start(200, self._headers | {"content-length": str(len(data))})
            self._connection.write(data[: len(data) // 2])
        self._connection.cut()
        self._finish("error")

    def _gone(self) -> None:
        self._left = True
        self._stop_pings()
        self._pump.disconnect(self._id, self._fault.notice, self._fault.notice_after)

    def _start(self) -> None:
        self._started = True
        self._connection.start(200, self._headers)

    def _finish(self, reason: str) -> None:
        self._stop_pings()
        self._ended(reason)

    def _stop_pings(self) -> None:
        for handle in self._pings:
            handle.cancel()
        self._pings.clear()
