"""The fence (R10): inside an undecided race at most one attempt ever reaches a side effect.

A `READ_ONLY` call runs, and so does one whose tool commutes. Any other must win the race first, by one atomic
election: two attempts may hold different arguments, so even an idempotent write would happen twice. Cancelling alone
is never enough: a thread cannot be cancelled, and a request on its way cannot be called back.

The attempt is a context variable. It reaches tasks, `asyncio.to_thread`, anyio's and LangChain's workers. It does not
reach a thread started by hand, nor a bare ``loop.run_in_executor``: who races whole nodes has to close these ways.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from agent_hedge.core.scope import attempt_scope
from agent_hedge.core.step import Effect
from agent_hedge.errors import EffectBarred


def pass_fence(effect: Effect, *, commutes: bool = False, tool: str = "") -> None:
    """Let a tool start, or raise `EffectBarred`: another attempt of this step has won. From any thread.

    Outside a race it does nothing.
    """
    attempt = attempt_scope.get()
    if attempt is None or commutes or effect is Effect.READ_ONLY:
        return
    if not attempt.claim(tool) or attempt.cancelled:
        raise EffectBarred(
            f"Another attempt of this step has won: {tool or 'this tool'} was not started.", tool=tool, reason="fence"
        )


@contextmanager
def in_a_tool() -> Iterator[None]:
    """Add the time in here to that of the attempt it is spent in, if it is any (a loser's may never end)."""
    attempt = attempt_scope.get()
    if attempt is None:
        yield
        return
    began = time.perf_counter()
    try:
        yield
    finally:
        attempt.tool_s += time.perf_counter() - began
