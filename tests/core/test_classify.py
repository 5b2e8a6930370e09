"""How far a failure reaches, by status, type and name."""

from __future__ import annotations

import email.utils
import http.client
import time
from typing import Any

import pytest

from agent_hedge.core.classify import classify, retry_after, status_of
from agent_hedge.core.step import Failure
from agent_hedge.errors import AnswerRejected, AttemptCancelled

RECOVERABLE, TARGET, REQUEST = Failure.RECOVERABLE, Failure.TARGET, Failure.REQUEST


class Response:
    def __init__(self, status_code: Any = None, headers: Any = None) -> None:
        self.status_code = status_code
        self.headers = headers or {}


def with_status(status: Any, code: str | None = None) -> Exception:
    error = Exception()
    error.status_code = status  # type: ignore[attr-defined]
    error.code = code  # type: ignore[attr-defined]
    return error


def named(name: str, *bases: type) -> Exception:
    error: Exception = type(name, bases or (Exception,), {})()
    return error


@pytest.mark.parametrize(
    ("status", "reach"),
    [
        (400, REQUEST), (401, TARGET), (402, REQUEST), (403, TARGET), (404, TARGET), (408, RECOVERABLE),
        (409, RECOVERABLE), (410, REQUEST), (413, REQUEST), (422, REQUEST), (429, RECOVERABLE), (499, REQUEST),
        (500, RECOVERABLE), (501, RECOVERABLE), (503, RECOVERABLE), (529, RECOVERABLE), (599, RECOVERABLE),
    ],
)  # fmt: skip
def test_r01_by_status(status: int, reach: Failure) -> None:
    assert classify(with_status(status)) is reach


@pytest.mark.parametrize(
    ("error", "reach"),
    [
        (ConnectionError(), RECOVERABLE),
        (ConnectionResetError(), RECOVERABLE),
        (BrokenPipeError(), RECOVERABLE),
        (TimeoutError(), RECOVERABLE),
        (AnswerRejected(), RECOVERABLE),
        (AttemptCancelled(), RECOVERABLE),
        (http.client.IncompleteRead(b""), RECOVERABLE),
        (named("APIConnectionError"), RECOVERABLE),
        (named("APITimeoutError", type("APIConnectionError", (Exception,), {})), RECOVERABLE),
        (named("ReadError", type("TransportError", (Exception,), {})), RECOVERABLE),
        (named("ClientConnectionError"), RECOVERABLE),
        (named("StreamChunkTimeoutError"), RECOVERABLE),
        (named("ContextOverflowError"), TARGET),
        (with_status(400, "context_length_exceeded"), TARGET),
        (with_status(400, "string_above_max_length"), TARGET),
        (with_status(400, "content_policy_violation"), REQUEST),
        (with_status(None, "context_length_exceeded"), TARGET),
        (ValueError(), REQUEST),
        (OSError("disk"), REQUEST),
        (KeyError("connection"), REQUEST),
    ],
)
def test_r01_by_type_and_name(error: Exception, reach: Failure) -> None:
    assert classify(error) is reach


def test_the_status_is_found_on_the_error_or_its_response_and_is_a_number() -> None:
    error = Exception()
    assert status_of(error) is None
    error.response = Response(503)  # type: ignore[attr-defined]
    assert status_of(error) == 503
    error.status = 401  # type: ignore[attr-defined]
    assert status_of(error) == 401
    error.status_code = 404  # type: ignore[attr-defined]
    assert status_of(error) == 404
    assert status_of(with_status("404")) is None
    assert status_of(with_status(True)) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "3"}, 3.0),
        ({"Retry-After": "2.5"}, 2.5),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "-4"}, 0.0),
        ({"retry-after-ms": "-4"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "soon"}, None),
    ],
)
def test_retry_after_in_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    error = Exception()
    error.response = Response(500, headers)  # type: ignore[attr-defined]
    assert retry_after(error) == seconds
    direct = Exception()
    direct.headers = headers  # type: ignore[attr-defined]
    assert retry_after(direct) == seconds


def test_retry_after_as_a_date() -> None:
    error = Exception()
    error.headers = {"retry-after": email.utils.formatdate(time.time() + 100, usegmt=True)}  # type: ignore[attr-defined]
    seconds = retry_after(error)
    assert seconds is not None
    assert 98 <= seconds <= 100
    error.headers = {"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}  # type: ignore[attr-defined]
    assert retry_after(error) == 0.0


@pytest.mark.parametrize("headers", [None, "retry-after: 3", ["retry-after"], 5])
def test_headers_that_are_none(headers: Any) -> None:
    error = Exception()
    error.headers = headers  # type: ignore[attr-defined]
    assert retry_after(error) is None


@pytest.mark.parametrize("status", [429, 503, 529])
def test_r13_a_pushback_without_a_time_asks_for_the_least_rest(status: int) -> None:
    error = Exception()
    error.response = Response(status, {})  # type: ignore[attr-defined]
    assert retry_after(error) == 0.0
    error.response = Response(status, {"retry-after": "3"})  # type: ignore[attr-defined]
    assert retry_after(error) == 3.0
