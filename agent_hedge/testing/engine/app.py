"""What a fake engine answers on which path."""

from __future__ import annotations

import json
import logging
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any
from uuid import uuid4

from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.engine.chat import Answer, ChatDocument, ChatStream, Completion
from agent_hedge.testing.engine.connection import Connection
from agent_hedge.testing.engine.exchange import Exchange, error_body
from agent_hedge.testing.engine.faults import Fault, FaultPlan, parse_fault
from agent_hedge.testing.engine.metrics import CONTENT_TYPE, exposition
from agent_hedge.testing.engine.pump import Pump
from agent_hedge.testing.engine.replay import ReplayedAnswer
from agent_hedge.testing.engine.replies import ReplyPlan
from agent_hedge.testing.engine.request import BadRequestError, Request
from agent_hedge.testing.serving import Ending, Record

_log = logging.getLogger(__name__)

CHAT = "/v1/chat/completions"
MAX_CHOICES = 16
"""`n` of a chat request."""
KEPT_RECORDS = 100_000
KEPT_REQUESTS = 1_000

Headers = dict[str, str]


@dataclass(frozen=True, slots=True)
class Received:
    """A request for tokens as it came over the wire, what became of it, and the status of the answer."""

    request: Request
    record: Record
    fault: Fault
    status: int


class App:
    """Routes requests, keeps what was received, and starts an `Exchange` for each request for tokens."""

    def __init__(self, pump: Pump, model: str, faults: FaultPlan, replies: ReplyPlan) -> None:
        self.records: deque[Record] = deque(maxlen=KEPT_RECORDS)
        self.requests: deque[Received] = deque(maxlen=KEPT_REQUESTS)
        self.finished: Counter[str] = Counter()
        self._pump = pump
        self._model = model
        self._faults = faults
        self._replies = replies
        self._numbers = count(1)
        model_card = {"id": model, "object": "model", "created": 0, "owned_by": "agent-hedge"}
        self._pages: dict[tuple[str, str], Callable[[Request], tuple[str, str]]] = {
            ("GET", "/health"): lambda _: ("text/plain", ""),
            ("GET", "/v1/models"): lambda _: _json({"object": "list", "data": [model_card]}),
            ("GET", f"/v1/models/{model}"): lambda _: _json(model_card),
            ("GET", "/metrics"): lambda _: (CONTENT_TYPE, exposition(pump.serving, model, self.finished)),
            ("GET", "/engine/records"): lambda _: _json([asdict(record) for record in self.records]),
            ("POST", "/engine/released"): lambda request: _json(self.has_released(str(request.json.get("request_id")))),
            ("PUT", "/engine/faults"): self._set_faults,
            ("POST", "/v1/abort"): self._abort,
            ("POST", "/inference/v1/abort_requests"): self._abort,
        }

    def has_released(self, request_id: str) -> bool:
        """Whether the newest request of this id has been here and holds nothing any more."""
        record = next((record for record in reversed(self.records) if record.id == request_id), None)
        return record is not None and record.released is not None

    def handle(self, connection: Connection, request: Request) -> None:
        """Answer a request, now or when its tokens have been computed."""
        self._pump.kick()
        request_id = request.headers.get("x-request-id") or uuid4().hex
        headers = {"x-request-id": request_id, "server": "agent-hedge-engine"}
        page = self._pages.get((request.method, request.path))
        try:
            if page is not None:
                content_type, body = page(request)
                connection.respond(200, headers | {"content-type": content_type}, body.encode())
            elif request.method == "POST":
                self._generate(connection, request, request_id, headers)
            elif request.path == CHAT or any(path == request.path for _, path in self._pages):
                _refuse(connection, headers, 405, f"{request.method} is not allowed on {request.path}")
            else:
                _refuse(connection, headers, 404, f"there is nothing at {request.path}")
        except (BadRequestError, ConfigurationError) as error:
            _refuse(connection, headers, 400, str(error))
        except Exception as error:  # of a function the user gave for faults or replies
            _log.exception("the fake engine could not answer")
            _refuse(connection, headers, 500, f"the fake engine could not answer: {type(error).__name__}")

    def _generate(self, connection: Connection, request: Request, request_id: str, headers: Headers) -> None:
        fault = self._faults.take(request)
        # Ids of clients need not be unique. Inside they are, and an abort takes all that share one, as in vLLM.
        engine_id = f"{request_id}~{next(self._numbers)}" if self._pump.ids(request_id) else request_id
        key = request.headers.get("x-draw", "")
        if fault.status is not None:
            self._turn_away(request, engine_id, key, fault, fault.status)
            if fault.retry_after is not None:
                headers = headers | {"retry-after": f"{fault.retry_after:g}"}
            _refuse(connection, headers, fault.status, f"this engine was told to answer {fault.status}")
            return
        if fault.replay is None and request.path != CHAT:
            _refuse(connection, headers, 404, f"there is nothing at {request.path}")
            return
        answer, prompt_tokens = self._answer(request, request_id, fault)
        exchange = Exchange(
            connection,
            answer,
            fault,
            pump=self._pump,
            client_id=request_id,
            id=engine_id,
            headers=headers,
            ended=self._count,
        )
        record = self._pump.submit(
            engine_id,
            exchange,
            prompt_tokens=prompt_tokens,
            completion_tokens=answer.tokens,
            key=key,
            stall=fault.stall,
            breaks_after=fault.breaks_after,
        )
        self.records.append(record)
        if record.ending is Ending.REJECTED:
            self._reject(connection, request, record, fault, headers)
            return
        self.requests.append(Received(request, record, fault, 200))
        exchange.open()
        self._pump.kick()

    def _answer(self, request: Request, request_id: str, fault: Fault) -> tuple[Answer, int]:
        if fault.replay is not None:
            return ReplayedAnswer(fault.replay), 1 + len(request.body) // 4
        choices = request.json.get("n") or 1
        if not isinstance(choices, int) or not 1 <= choices <= MAX_CHOICES:
            raise BadRequestError(f"'n' must be between 1 and {MAX_CHOICES}, not {choices!r}")
        reply = self._replies.take(request)
        completion = Completion(request, [reply] * choices, f"chatcmpl-{request_id}", self._model)
        return (ChatStream if request.json.get("stream") else ChatDocument)(completion), completion.prompt_tokens

    def _reject(self, connection: Connection, request: Request, record: Record, fault: Fault, headers: Headers) -> None:
        hardware = self._pump.serving.hardware
        tokens = record.prompt_tokens + record.completion_tokens
        too_long = hardware.blocks_for(tokens) > hardware.blocks
        status = 400 if too_long else 503
        self.requests.append(Received(request, record, fault, status))
        if too_long:
            room = hardware.blocks * hardware.block_tokens
            message = f"this model's maximum context length is {room} tokens, the request needs {tokens}"
            _refuse(connection, headers, status, message, "context_length_exceeded")
        else:
            _refuse(connection, headers, status, "the waiting queue is full")

    def _turn_away(self, request: Request, engine_id: str, key: str, fault: Fault, status: int) -> None:
        record = Record(
            id=engine_id, key=key, prompt_tokens=0, completion_tokens=0, arrived=self._pump.now, ending=Ending.REJECTED
        )
        self.records.append(record)
        self.requests.append(Received(request, record, fault, status))

    def _abort(self, request: Request) -> tuple[str, str]:
        ids = request.json.get("request_ids")
        if not isinstance(ids, list) or not ids or not all(isinstance(name, str) for name in ids):
            raise BadRequestError("'request_ids' must be a non-empty list of strings")
        names = [engine_id for name in ids for engine_id in self._pump.ids(name.removeprefix("chatcmpl-"))]
        return _json({"status": "aborted", "aborted": sum(self._pump.abort(name) for name in names)})

    def _set_faults(self, request: Request) -> tuple[str, str]:
        self._faults.set(parse_fault(request.body.decode()))
        return _json({"status": "ok"})

    def _count(self, reason: str) -> None:
        if reason != "abort":
            self.finished[reason] += 1


def _json(value: Any) -> tuple[str, str]:
    return "application/json", json.dumps(value)


def _refuse(connection: Connection, headers: Headers, status: int, message: str, code: str | None = None) -> None:
    connection.respond(status, headers | {"content-type": "application/json"}, error_body(status, message, code))
