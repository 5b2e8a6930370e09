"""The observers a hedger makes for itself: the books, OpenTelemetry where it is installed, and log records."""

from __future__ import annotations

import atexit
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, get_args

from agent_hedge.core.ports import Headers, Observer, Portal
from agent_hedge.core.scope import Run
from agent_hedge.core.stores import StepStore
from agent_hedge.engine.funnel import Funnel
from agent_hedge.errors import ConfigurationError, HedgeError
from agent_hedge.latency import Sketch
from agent_hedge.observers.accounting import Accounting, Accounts
from agent_hedge.observers.described import NOTHING, Described
from agent_hedge.observers.logging import Logging
from agent_hedge.observers.recorder import Recorder
from agent_hedge.observers.spool import Spool, folder_of

if TYPE_CHECKING:
    from agent_hedge.observers.otel import OpenTelemetry, Reading

logger = logging.getLogger("agent_hedge.accounting")

Readings = Callable[[], Iterable[tuple[str, float, dict[str, str]]]]
"""What the gauges show now: name, value, labels."""


class Observing:
    """All observers of one hedger, the user's first."""

    def __init__(
        self,
        given: Sequence[Observer],
        *,
        accounting: Accounts | None,
        telemetry: bool,
        capture_content: bool | None,
        headers: bool,
        store: str | None,
        steps: Callable[[], StepStore],
        portal: Portal,
        price: Callable[[str], Mapping[str, float] | None],
        readings: Readings,
        run_here: Callable[[], Run | None],
    ) -> None:
        self.described: dict[str, Described] = {}
        """What is known of each target, for spans; filled by whoever wraps it."""
        self._portal = portal
        self._readings = readings
        self._run_here = run_here
        self.books = self._books(_checked(accounting, store), store, steps, price)
        if capture_content is not None and not isinstance(capture_content, bool):
            raise ConfigurationError(f"capture_content must be True, False or None, got {capture_content!r:.80}")
        self.telemetry = self._telemetry(capture_content) if telemetry else None
        self.content = self.telemetry is not None and self.telemetry.content
        """Whether spans show what was said."""
        own: list[Any] = [self.books, self.telemetry, Logging() if telemetry else None]
        self.funnel = Funnel([*given, *(observer for observer in own if observer is not None)])
        if self.telemetry is not None:
            self.telemetry.look_again()  # the funnel has asked it once; an SDK may be set up from now on
        self.headers: Headers | None = self.telemetry.headers if self.telemetry is not None and headers else None

    def _books(
        self,
        accounting: Accounts,
        store: str | None,
        steps: Callable[[], StepStore],
        price: Callable[[str], Mapping[str, float] | None],
    ) -> Accounting | None:
        if accounting == "off":
            return None
        spool = None if store is None else Spool(folder_of(store))
        books = Accounting(Recorder(steps, self._portal, spool), accounts=accounting, prices=price)
        atexit.register(_flush_at_exit, weakref.ref(self))
        return books

    def _telemetry(self, content: bool | None) -> OpenTelemetry | None:
        try:
            from agent_hedge.observers.otel import OpenTelemetry
        except ModuleNotFoundError:  # the extra is not installed
            return None
        return OpenTelemetry(
            Sketch,
            describe=lambda name: self.described.get(name, NOTHING),
            content=content,
            run_here=self._run_here,
            portal=self._portal,
            readings=self.readings,
        )

    def readings(self) -> Iterable[Reading]:
        """Read every gauge."""
        from agent_hedge.observers.otel import Reading

        readings = [Reading(*reading) for reading in self._readings()]
        if self.books is not None:
            readings.append(Reading("agent_hedge.records.waiting", self.books.recorder.waiting, {}))
            readings.append(Reading("agent_hedge.records.dropped", self.books.recorder.dropped, {}))
        return readings

    def flush(self) -> None:
        """Ship what is in the books. A store that does not answer leaves it on the spool for the next start."""
        if self.books is not None and self.books.waiting:
            try:
                self._portal.call(self.books.flush)
            except HedgeError as error:
                logger.warning("what is in the books could not be stored now: %s", error)

    def close(self) -> None:
        """Flush, and let go of the spool; spans of runs that nobody will leave end now."""
        if self.telemetry is not None:
            self.telemetry.close()
        self.flush()
        if self.books is not None:
            self.books.recorder.close()


def _checked(accounting: object, store: str | None) -> Accounts:
    """Without a word: everything where there is a store to look it up in, else nothing."""
    if accounting is None:
        return "off" if store is None else "all"
    if accounting not in get_args(Literal["all", "hedged", "off"]):
        raise ConfigurationError(f"accounting must be 'all', 'hedged' or 'off', got {accounting!r}")
    return accounting  # type: ignore[return-value]


def _flush_at_exit(observing: weakref.ref[Observing]) -> None:
    if (alive := observing()) is not None and alive.books is not None:
        with suppress(Exception):  # the interpreter is going down, and the spool has it all
            alive.flush()
