"""Hears how a graph begins: resumed, or with input of its own. Only a run that depends on it listens (DESIGN 5.14).

LangGraph tells a node that it was resumed in the first superstep only; who is called with what is said to callbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import ContextVar
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.tracers.context import register_configure_hook
from langgraph.types import Command


class Listener(BaseCallbackHandler):
    """Tells `see` of the first outermost call, once."""

    run_inline = True

    def __init__(self, see: Callable[[bool], None]) -> None:
        self._see: Callable[[bool], None] | None = see

    def on_chain_start(
        self, serialized: dict[str, Any] | None, inputs: Any, *, parent_run_id: UUID | None = None, **_: Any
    ) -> None:
        """Hear of a Runnable; `inputs` are None or a `Command` where a graph goes on."""
        if self._see is not None and parent_run_id is None:
            see, self._see = self._see, None
            see(inputs is None or isinstance(inputs, Command))


_listening: ContextVar[Listener | None] = ContextVar("agent_hedge_listening", default=None)
register_configure_hook(_listening, inheritable=False)


def listen(see: Callable[[bool], None]) -> Callable[[], None]:
    """Listen in this context; return what ends it."""
    token = _listening.set(Listener(see))

    def stop() -> None:
        with suppress(ValueError):  # left in another context than it was entered in
            _listening.reset(token)

    return stop
