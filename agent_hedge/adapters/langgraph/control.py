"""The ledger's errors as LangGraph's control flow (DESIGN 5.18).

A `GraphBubbleUp` is converted by no ToolNode, retried by no RetryPolicy and no ToolRetryMiddleware, and shown to no
model as "please try again": it ends the run where it stands. That is what a payment in doubt needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from langgraph.errors import GraphBubbleUp

from agent_hedge import errors


class EffectInDoubt(errors.EffectInDoubt, GraphBubbleUp):
    """A side effect may or may not have happened; the run stops here."""


class EffectStillRunning(errors.EffectStillRunning, GraphBubbleUp):
    """The same side effect is still running elsewhere, and the deadline has passed; the run stops here."""


class EffectBarred(errors.EffectBarred, GraphBubbleUp):
    """A tool call was refused; the run stops here."""


_CONTROL: tuple[tuple[type[errors.HedgeError], type[errors.HedgeError]], ...] = (
    (errors.EffectStillRunning, EffectStillRunning),
    (errors.EffectInDoubt, EffectInDoubt),
    (errors.EffectBarred, EffectBarred),
)


@contextmanager
def as_control_flow() -> Iterator[None]:
    """Raise the ledger's errors as their control-flow twins, with the same attributes and cause."""
    try:
        yield
    except (errors.EffectInDoubt, errors.EffectBarred) as error:
        if isinstance(error, GraphBubbleUp):
            raise
        plain = error
    else:
        return
    kind = next(twin for base, twin in _CONTROL if isinstance(plain, base))
    raise kind(str(plain), **vars(plain)) from plain.__cause__
