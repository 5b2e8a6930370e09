"""A captured response body, sent again byte for byte."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

from agent_hedge.errors import ConfigurationError

_END_OF_EVENT = re.compile(rb"(?:\r\n\r\n|\n\n|\r\r)")


def split_events(body: bytes) -> list[bytes]:
    """Split a server-sent event stream after each blank line; the parts joined give the body again."""
    ends = [match.end() for match in _END_OF_EVENT.finditer(body)]
    bounds = [0, *ends] if ends and ends[-1] == len(body) else [0, *ends, len(body)]
    return [body[start:end] for start, end in pairwise(bounds)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Answers a POST to any path with these bytes: one event a token, the first at the time of the first token.

    Cut after `cut_events` events or `cut_bytes` bytes, the socket is closed in the middle of the body, unless
    something is to `append` (an error frame): then the response ends properly after it.
    """

    body: bytes
    cut_events: int | None = None
    cut_bytes: int | None = None
    append: bytes = b""
    content_type: str = "text/event-stream"

    def __post_init__(self) -> None:
        for name in ("cut_events", "cut_bytes"):
            if (value := getattr(self, name)) is not None and value < 0:
                raise ConfigurationError(f"{name} must not be negative, not {value}")

    @property
    def is_broken(self) -> bool:
        """Whether the stream ends with a closed socket instead of the end of the body."""
        return (self.cut_events is not None or self.cut_bytes is not None) and not self.append

    @property
    def parts(self) -> list[bytes]:
        """The writes, one a token; never empty (a response with nothing in it is one empty write)."""
        parts = split_events(self.body[: self.cut_bytes])[: self.cut_events]
        return [*parts, self.append] if self.append else parts or [b""]


class ReplayedAnswer:
    """A replay as something to write while tokens are computed."""

    streamed = True
    finish = "stop"

    def __init__(self, replay: Replay) -> None:
        self.content_type = replay.content_type
        self._parts = replay.parts

    @property
    def tokens(self) -> int:
        return len(self._parts)

    def prelude(self) -> bytes:
        return b""

    def piece(self, index: int) -> bytes:
        return self._parts[index]

    def closing(self, reason: str = "") -> bytes:
        return b""
