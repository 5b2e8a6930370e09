"""The one way out for events. An observer that raises is logged once and never fails a step (R18, STYLE 12)."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from types import TracebackType

from agent_hedge.core.events import Event
from agent_hedge.core.ports import Observer

logger = logging.getLogger("agent_hedge.engine")


NAP = 16
"""Steps for which "nobody listens" is believed without asking again: it saves each of them a third of a microsecond."""


class Funnel:
    """All observers of a hedger. Falsy while nobody listens: then no event is made at all.

    An observer may have an attribute `idle`, true while it would do nothing with an event (no SDK behind the API, no
    handler behind the logger); it is asked again after `NAP` steps at the latest.
    """

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.observers = tuple(observers)
        self._always = any(not hasattr(observer, "idle") for observer in self.observers)
        self._logged: set[str] = set()
        self._nap = 0

    def __bool__(self) -> bool:
        if self._always:
            return True
        if self._nap > 0:
            self._nap -= 1
            return False
        for observer in self.observers:
            if not observer.idle:  # type: ignore[attr-defined]
                return True
        self._nap = NAP
        return False

    def tell(self, event: Event) -> list[AbstractContextManager[object]]:
        """Let every observer hear the event; return the context managers they gave."""
        scopes = []
        for observer in self.observers:
            try:
                scope = observer.on_event(event)
            except Exception:
                self.complain(observer)
            else:
                if scope is not None:
                    scopes.append(scope)
        return scopes

    def around(self, event: Event) -> Around:
        """Return a context manager for the attempt's own task: the observers' scopes, entered and left safely."""
        return Around(self, event)

    def complain(self, observer: object) -> None:
        name = type(observer).__name__
        if name not in self._logged:
            self._logged.add(name)
            logger.exception("observer %s raised; logged once, the step goes on", name)


class Around:
    """The scopes of all observers around one attempt. Suppresses nothing, whatever an observer's scope returns."""

    __slots__ = ("_entered", "_event", "_funnel")

    def __init__(self, funnel: Funnel, event: Event) -> None:
        self._funnel = funnel
        self._event = event
        self._entered: list[AbstractContextManager[object]] = []

    def __enter__(self) -> None:
        for scope in self._funnel.tell(self._event):
            try:
                scope.__enter__()
            except Exception:
                self._funnel.complain(scope)
            else:
                self._entered.append(scope)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for scope in reversed(self._entered):
            try:
                scope.__exit__(kind, error, trace)
            except Exception:
                if sys.exception() is not error:
                    self._funnel.complain(scope)
