"""Headers that say how long an answer is waited for, for a gateway or an engine that stops by itself (R12).

Opt-in: a name means what its reader takes it for, and few read any. `FORMS` are the ways to say it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from agent_hedge.core.ports import Headers
from agent_hedge.core.step import Attempt
from agent_hedge.errors import ConfigurationError

_GRPC_DIGITS = 8
"""A gRPC time-out has at most so many (PROTOCOL-HTTP2.md, "Timeout")."""


def _grpc(left: float, _: float) -> str:
    milliseconds = math.floor(left * 1000)
    return f"{milliseconds}m" if milliseconds < 10**_GRPC_DIGITS else f"{min(math.floor(left), 10**_GRPC_DIGITS - 1)}S"


FORMS: Mapping[str, Callable[[float, float], str]] = {
    "grpc": _grpc,
    "seconds": lambda left, _: f"{left:.3f}",
    "milliseconds": lambda left, _: str(math.floor(left * 1000)),
    "epoch": lambda left, wall: f"{wall + left:.3f}",
    "iso": lambda left, wall: datetime.fromtimestamp(wall + left, UTC).isoformat(timespec="milliseconds"),
}
"""Name -> (seconds left, epoch seconds now) to text. The first three are relative, so that no two clocks must agree."""


class DeadlineHeaders:
    """Makes the headers of one attempt: implements the `Headers` port.

    `named`: header -> form, as ``{"grpc-timeout": "grpc", "X-Request-Deadline": "iso"}``. `clock`: the run loop's.
    `also`: what else an attempt sends. Raises `ConfigurationError` for a header or a form that cannot be meant.
    """

    def __init__(
        self,
        named: Mapping[str, str],
        clock: Callable[[], float],
        *,
        wall: Callable[[], float] = time.time,
        also: Headers | None = None,
    ) -> None:
        if not isinstance(named, Mapping):
            raise ConfigurationError(f"deadline_headers must map headers to forms, got {named!r:.80}")
        for header, form in named.items():
            if not isinstance(header, str) or not header.isascii() or not header.replace("-", "").isalnum():
                raise ConfigurationError(f"deadline_headers: {header!r:.80} is no name of a header")
            if not isinstance(form, str) or form not in FORMS:
                known = ", ".join(FORMS)
                raise ConfigurationError(f"deadline_headers[{header!r}] must be one of {known}, got {form!r:.80}")
        self._forms = {header: FORMS[form] for header, form in named.items()}
        self._clock = clock
        self._wall = wall
        self._also = also

    def __call__(self, attempt: Attempt, /) -> Mapping[str, str]:
        """Return the headers of an attempt; nothing of its deadline where it has none."""
        others = {} if self._also is None else self._also(attempt)
        if attempt.deadline == math.inf:
            return others
        left, wall = max(0.0, attempt.deadline - self._clock()), self._wall()
        return {**others, **{header: form(left, wall) for header, form in self._forms.items()}}
