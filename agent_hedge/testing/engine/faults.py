"""What a fake engine does wrong: one frozen value per request, and where it comes from."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.engine.replay import Replay
from agent_hedge.testing.engine.request import Request
from agent_hedge.testing.serving import Notice, Stall


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """How one request goes wrong; the default is not at all. Times are engine seconds, counts are answer tokens.

    In words (`parse_fault`, header ``X-Fault``, ``--fault``) the same names are used, a time after a colon:
    ``status=429;retry_after=2``, ``notice=late:2``, ``stall=3:0.5``, ``pings=5:0.1``, ``role_first``.
    """

    status: int | None = None
    """Refuse with this status and an error of OpenAI's shape; nothing is computed."""
    retry_after: float | None = None
    """Seconds in a ``Retry-After`` header beside the status."""
    notice: Notice = Notice.AT_ONCE
    """When the engine notices that the client is gone."""
    notice_after: float = 0.0
    """How late `Notice.LATE` is."""
    error_after: int | None = None
    """An error frame in the 200 stream after so many tokens; 0: before the first meaningful chunk. Where no header
    is out yet (not streaming, `late_headers`) it is a plain 500."""
    error_event: bool = False
    """Name the error frame with an ``event: error`` line and leave out ``[DONE]``, as Groq does."""
    cut_after: int | None = None
    """Close the socket in mid-body after so many tokens."""
    role_first: bool = False
    """Send the role-only chunk with the headers, long before the first token."""
    pings: int = 0
    """Comment lines before the first token ..."""
    ping_every: float = 0.0
    """... so far apart; 0: all at once."""
    stall: Stall | None = None
    """A pause of the engine after some tokens."""
    late_headers: bool = False
    """Send the headers with the first token instead of at once."""
    replay: Replay | None = None
    """Send a captured body instead of an answer."""

    def __post_init__(self) -> None:
        if self.status is not None and not 400 <= self.status <= 599:
            raise ConfigurationError(f"a fault's status must be an error, 400 to 599, not {self.status}")
        for name in ("retry_after", "error_after", "cut_after", "pings", "ping_every", "notice_after"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise ConfigurationError(f"{name} must be finite and not negative, not {value}")
        if self.stall is not None and not (self.stall.after >= 0 and 0 <= self.stall.seconds < math.inf):
            raise ConfigurationError(f"a stall needs counts and seconds that are not negative, not {self.stall}")

    @property
    def breaks_after(self) -> int | None:
        """After how many tokens the answer breaks off, by error frame or cut, whichever comes first."""
        return min((after for after in (self.error_after, self.cut_after) if after is not None), default=None)


NO_FAULT = Fault()

_SPELLING = {
    "status": int,
    "retry_after": float,
    "error_after": int,
    "cut_after": int,
}
_FLAGS = frozenset({"error_event", "role_first", "late_headers"})


def parse_fault(text: str) -> Fault:
    """Read a fault from words (see `Fault`), separated by semicolons, commas or spaces.

    Raises:
        ConfigurationError: a word is unknown or its value cannot be meant.
    """
    settings: dict[str, Any] = {}
    for word in text.replace(";", " ").replace(",", " ").split():
        name, _, value = word.partition("=")
        try:
            settings |= _setting(name, value)
        except (KeyError, ValueError):
            known = ", ".join(field.name for field in fields(Fault) if field.name not in ("replay", "notice_after"))
            raise ConfigurationError(f"{word!r} is no fault; known: {known}") from None
    return replace(NO_FAULT, **settings)


def _setting(name: str, value: str) -> dict[str, Any]:
    head, _, tail = value.partition(":")
    if name in _FLAGS and not value:
        return {name: True}
    if name == "notice":
        return {"notice": Notice(head), "notice_after": float(tail or 0)}
    if name == "pings":
        return {"pings": int(head), "ping_every": float(tail or 0)}
    if name == "stall":
        return {"stall": Stall(int(head), float(tail))}
    return {name: _SPELLING[name](value)}


Faults = Fault | Iterable[Fault] | Callable[[Request], Fault | None] | None
"""A standing fault, a script for the next requests, or a function of the request."""


class FaultPlan:
    """Says which fault a request meets: its own ``X-Fault`` header, else what was set last."""

    def __init__(self, faults: Faults = None) -> None:
        self.set(faults)

    def set(self, faults: Faults) -> None:
        """Replace the plan. A script serves one fault per request and then none."""
        self._given = faults
        self._script = deque[Fault]()
        if isinstance(faults, Iterable):
            self._script.extend(faults)

    @property
    def given(self) -> Faults:
        """What was set last."""
        return self._given

    def take(self, request: Request) -> Fault:
        """Return the fault of this request, using up one of a script."""
        if (words := request.headers.get("x-fault")) is not None:
            return parse_fault(words)
        if self._script:
            return self._script.popleft()
        if isinstance(self._given, Fault):
            return self._given
        if callable(self._given):
            return self._given(request) or NO_FAULT
        return NO_FAULT
