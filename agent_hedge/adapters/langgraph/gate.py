"""What an attempt shows is held back until it has won, and dropped when it has lost (R5)."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, copy_context
from typing import Any, NamedTuple

from agent_hedge.core.scope import ActiveAttempt

logger = logging.getLogger("agent_hedge.langgraph")


class _Held(NamedTuple):
    context: Context
    show: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Gate:
    """One attempt's gate: everything passes it in order, also from worker threads.

    What is held keeps the context it was shown in: a stream writer reads the node's namespace from it.
    """

    def __init__(self, active: ActiveAttempt) -> None:
        self._active = active
        self._held: deque[_Held] = deque()
        self._lock = threading.Lock()
        self._open = False

    def holds(self, show: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Take what is to be shown, unless the gate is open: then the caller shows it at once."""
        with self._lock:
            if self._open:
                return False
            if not self._active.cancelled:
                self._held.append(_Held(copy_context(), show, args, kwargs))
            return True

    def wrap(self, show: Callable[..., Any]) -> Callable[..., Any]:
        """Return `show` behind the gate."""

        def gated(*args: Any, **kwargs: Any) -> Any:
            return None if self.holds(show, args, kwargs) else show(*args, **kwargs)

        return gated

    def wrap_async(self, show: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        """Return the coroutine function `show` behind the gate."""

        async def gated(*args: Any, **kwargs: Any) -> Any:
            return None if self.holds(show, args, kwargs) else await show(*args, **kwargs)

        return gated

    async def open(self) -> None:
        """Show what was held, in order, and let everything pass from now on."""
        while (held := self._next()) is not None:
            try:
                result = held.context.run(held.show, *held.args, **held.kwargs)
                if inspect.isawaitable(result):
                    await asyncio.ensure_future(result)
            except Exception as error:  # as LangChain's managers do: a handler never fails what it hears of
                name = getattr(held.show, "__qualname__", type(held.show).__name__)
                logger.warning("%s failed on what a winning attempt had shown: %s", name, type(error).__name__)

    def _next(self) -> _Held | None:
        with self._lock:
            if self._held:
                return self._held.popleft()
            self._open = True
            return None
