"""Drives the serving model with the event loop's clock: one timer, no task, no sleep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from agent_hedge.testing.serving import Fact, Notice, Record, Serving, Stall


class Listener(Protocol):
    """Whoever answers a request; `client_id` is the id its client gave it."""

    client_id: str

    def hear(self, fact: Fact) -> None:
        """Take a fact about the request."""
        ...


class Pump:
    """Brings the model to now, hands each fact to the listener of its request, and sets the timer to what is due.

    `changed` is called whenever something may have changed.
    """

    def __init__(self, serving: Serving, changed: Callable[[], None]) -> None:
        self.serving = serving
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._listeners: dict[str, Listener] = {}
        self._busy = False

    @property
    def now(self) -> float:
        """Seconds on the loop's clock (on Linux the monotonic clock that all processes share)."""
        return self._loop.time()

    @property
    def live(self) -> int:
        """Requests inside the engine."""
        return len(self._listeners)

    def ids(self, client_id: str) -> list[str]:
        """Return the engine's ids of the live requests that carry this id of a client."""
        return [name for name, listener in self._listeners.items() if listener.client_id == client_id]

    def submit(
        self,
        id: str,  # noqa: A002
        listener: Listener,
        *,
        prompt_tokens: int,
        completion_tokens: int,
        key: str,
        stall: Stall | None,
        breaks_after: int | None,
    ) -> Record:
        """Hand a request to the model; call `kick` when its listener is ready to hear facts."""
        record = self.serving.arrive(
            id,
            self.now,
            prompt_tokens=prompt_tokens,
            completion_tokens=completion_tokens,
            key=key,
            stall=stall,
            breaks_after=breaks_after,
        )
        if record.ending is None:
            self._listeners[id] = listener
        return record

    def abort(self, id: str) -> bool:  # noqa: A002
        """Take a request out of the model."""
        found = self.serving.abort(id, self.now)
        self.kick()
        return found

    def disconnect(self, id: str, notice: Notice, after: float) -> None:  # noqa: A002
        """Tell the model that a client is gone."""
        self.serving.disconnect(id, self.now, notice, after)
        self.kick()

    def kick(self) -> None:
        """Let the model catch up. A call from inside a listener is left to the round that is under way."""
        if self._busy:
            return
        self._busy = True
        try:
            while facts := self.serving.advance(self.now):
                for fact in facts:
                    listener = self._listeners[fact.id] if fact.ending is None else self._listeners.pop(fact.id)
                    listener.hear(fact)
        finally:
            self._busy = False
        self._arm()
        self._changed()

    def stop(self) -> None:
        """Forget every request and the timer."""
        self._listeners.clear()
        self._busy = True
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        due = self.serving.due
        if self._timer is not None:
            if due == self._timer.when() and not self._timer.cancelled():
                return
            self._timer.cancel()
        self._timer = None if due is None else self._loop.call_at(due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.kick()
