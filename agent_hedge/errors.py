"""Everything this library raises of its own. The docstring is the message; attributes carry the numbers.

An error of the wrapped call is never replaced by one of these: when every attempt of a step fails, the caller
gets the primary's own exception, caused by `AllAttemptsFailed`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any


class HedgeError(Exception):
    """Something of agent_hedge failed."""

    def __init__(self, message: str | None = None, **numbers: Any) -> None:
        super().__init__(message or (type(self).__doc__ or "").splitlines()[0])
        for name, value in numbers.items():
            setattr(self, name, value)


class ConfigurationError(HedgeError, ValueError):
    """A setting has a value that cannot be meant."""


class DeadlineExceeded(HedgeError, TimeoutError):
    """The deadline passed before any attempt gave an acceptable answer.

    `running` names the attempts that were still in flight (``target#number``), `elapsed` is in seconds.
    """

    def __init__(self, *, elapsed: float = 0.0, running: Sequence[str] = ()) -> None:
        what = f"still running: {', '.join(running)}" if running else "nothing was dispatched"
        super().__init__(f"The deadline passed after {elapsed:.3f} s; {what}.")
        self.elapsed = elapsed
        self.running = tuple(running)

    def __reduce__(self) -> tuple[Callable[[], DeadlineExceeded], tuple[()], dict[str, Any]]:
        """Copy and pickle it (for a pool of processes) by its numbers: they are not among its `args`."""
        return partial(type(self), elapsed=self.elapsed, running=self.running), (), vars(self)


class NotDispatched(HedgeError):
    """No attempt could be dispatched: no place to go, or every place refused."""


class AnswerRejected(HedgeError):
    """An attempt answered, and `accept` said no."""


class AttemptCancelled(HedgeError):
    """An attempt cancelled itself: neither the caller nor the race asked for it."""


class AllAttemptsFailed(ExceptionGroup[Exception], HedgeError):
    """Every attempt of the step failed; the group holds their errors in launch order.

    It is only ever the ``__cause__`` of the primary's own exception.
    """

    def __new__(cls, errors: Sequence[Exception]) -> AllAttemptsFailed:
        return super().__new__(cls, f"all {len(errors)} attempts failed", errors)

    def __init__(self, errors: Sequence[Exception]) -> None:
        Exception.__init__(self, self.message, self.exceptions)

    def __reduce__(self) -> tuple[type[AllAttemptsFailed], tuple[Sequence[Exception]], dict[str, Any]]:
        """Copy and pickle it by its errors."""
        return type(self), (self.exceptions,), vars(self)

    def derive(self, excs: Sequence[Exception]) -> AllAttemptsFailed:  # type: ignore[override]
        return AllAttemptsFailed(excs)


class EffectBarred(HedgeError):
    """A tool call was refused: running it here could make its side effect happen twice."""


class EffectInDoubt(HedgeError):
    """A side effect may or may not have happened: its owner died between claim and completion.

    Attributes: `key` (SHA-256 hex), `tool`, `owner`, `age` in seconds.
    """

    key: str
    tool: str
    owner: str
    age: float


class EffectStillRunning(EffectInDoubt, TimeoutError):
    """The same side effect is still running elsewhere, and the deadline of this run has passed."""


class StoreUnavailable(HedgeError):
    """The store cannot be reached or cannot be trusted; nothing that needs it was dispatched."""
