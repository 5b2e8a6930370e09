"""How far does a failure reach? The default `Classifier`, by status code and by the usual exception types (R1).

Client libraries are recognised by the shape of their errors (a ``status_code``, a ``response``) and by the names in
their type's ancestry, so that none of them has to be imported.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping

from agent_hedge.core.step import Failure
from agent_hedge.errors import AnswerRejected, AttemptCancelled

RECOVERABLE_STATUS = frozenset({408, 409, 429})
TARGET_STATUS = frozenset({401, 403, 404})
PUSHBACK_STATUS = frozenset({429, 503, 529})
"""The server asks for less: nothing extra goes to that target for a while (R15)."""

_RECOVERABLE_TYPES = (ConnectionError, TimeoutError, AnswerRejected, AttemptCancelled)
_RECOVERABLE_NAMES = frozenset(
    {
        "APIConnectionError",  # openai, anthropic; also their time-outs
        "ClientConnectionError",  # aiohttp
        "IncompleteRead",  # http.client
        "StreamChunkTimeoutError",  # langchain-openai
        "TransportError",  # httpx: connect, read, write, pool, protocol
    }
)
_FRAME_NAMES = frozenset({"APIError"})
"""What openai raises, exactly, for an error frame in a stream that began with a 200. (anthropic's has that status.)"""
_POLICY_CODES = frozenset({"content_filter", "content_policy_violation", "invalid_prompt"})
"""Codes of error frames that say that no copy of the model will answer this."""
_TOO_LONG_CODES = frozenset({"context_length_exceeded", "string_above_max_length"})


def status_of(error: BaseException) -> int | None:
    """Return the HTTP status an error carries, or None."""
    for holder in (error, getattr(error, "response", None)):
        for name in ("status_code", "status"):
            status = getattr(holder, name, None)
            if isinstance(status, int) and not isinstance(status, bool):
                return status
    return None


def classify(error: BaseException) -> Failure:
    """Return how far `error` reaches; anything not known to be recoverable is fatal for the request."""
    status = status_of(error)
    if (status is not None and status < 400) or type(error).__name__ in _FRAME_NAMES:
        return _reach_of_frame(error)
    if status is not None:
        return _reach_of_status(status, error)
    if isinstance(error, _RECOVERABLE_TYPES):
        return Failure.RECOVERABLE
    if any(ancestor.__name__ in _RECOVERABLE_NAMES for ancestor in type(error).__mro__):
        return Failure.RECOVERABLE
    return Failure.TARGET if _is_too_long(error) else Failure.REQUEST


def _reach_of_status(status: int, error: BaseException) -> Failure:
    if status in RECOVERABLE_STATUS or status >= 500:
        return Failure.RECOVERABLE
    if status in TARGET_STATUS or _is_too_long(error):
        return Failure.TARGET
    return Failure.REQUEST


def _reach_of_frame(error: BaseException) -> Failure:
    """An error frame in a 200 is a broken stream, whatever it calls itself: the request had been taken (R1, R2).

    (Groq reports a tool call that the model spoilt as an ``invalid_request_error``; another try may well succeed.)
    """
    body = getattr(error, "body", None)
    inner = body.get("error") if isinstance(body, Mapping) else None
    said = {str(getattr(error, name, None)) for name in ("code", "type")}
    if isinstance(inner, Mapping):
        said |= {str(inner.get("type")), str(inner.get("code"))}
    if _is_too_long(error) or said & _TOO_LONG_CODES or said & {str(status) for status in TARGET_STATUS}:
        return Failure.TARGET
    return Failure.REQUEST if said & _POLICY_CODES else Failure.RECOVERABLE


def retry_after(error: BaseException) -> float | None:
    """Return the seconds a server asked to wait (``retry-after-ms``, ``retry-after`` in either form), or None.

    429, 503 and 529 ask for a rest without naming its length: 0, the least.
    """
    wish = _named_wish(error)
    return 0.0 if wish is None and status_of(error) in PUSHBACK_STATUS else wish


def _named_wish(error: BaseException) -> float | None:
    headers = getattr(getattr(error, "response", None), "headers", None) or getattr(error, "headers", None)
    if not isinstance(headers, Mapping):
        return None
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
        value = headers.get("retry-after") or headers.get("Retry-After")
        if value is None:
            return None
        try:
            return max(0.0, float(value))
        except ValueError:
            return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _is_too_long(error: BaseException) -> bool:
    return getattr(error, "code", None) in _TOO_LONG_CODES or type(error).__name__ == "ContextOverflowError"
