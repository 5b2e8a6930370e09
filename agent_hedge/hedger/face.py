"""The hedger's whole face."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from agent_hedge.core import checks
from agent_hedge.core.step import StepKey
from agent_hedge.hedger.base import running_clock
from agent_hedge.hedger.functions import Functions
from agent_hedge.hedger.models import Models
from agent_hedge.latency import LatencyBook


class Hedger(Functions, Models):
    """Hedges the steps of agents. One per process is usual; usable at once, closeable, ``async with``.

    Args:
        store: a database URL, or None: everything in memory.
        policy: when the next attempt is due; the default learns, and plans runs that have a deadline (`Planned()`);
            a node's own policy comes first.
        budget: the fleet's purses; the default spends at most 5 % of the logical requests on hedges.
        nodes: policies by node or key, e.g. ``{"summarise": Never()}``.
        mode: ``on``, ``shadow`` (decide and record, dispatch no hedge) or ``off``; the environment's
            ``AGENT_HEDGE_MODE`` may only be stricter.
        share: the runs that may hedge, as a ratio; `holdout`: the runs that are decided and not hedged.
        fleet: the name switches know this fleet by.
        bar: ``unit`` bars what a tool that must not run twice runs in; ``downstream`` every node that leads to one.
        deadline: seconds a `run` may take where it names none; `extra_attempts`: hedges a run may use.
        stay: seconds that a run stays at the winner of a hedge, whatever it meets there: how long slowness lasts.
        observers: hear every event.
        telemetry: spans and metrics for the OpenTelemetry SDK of the application, and log records; without an SDK and
            a handler it costs next to nothing.
        capture_content: whether spans show what chat models were asked and answered; by default what the environment's
            ``OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT`` says, and no without it.
        accounting: which steps are recorded in the store, ``all``, ``hedged`` or ``off``; by default all where there
            is a store.
        headers: send each attempt's ``traceparent`` to its provider, where there is a trace.
        deadline_headers: headers that tell providers how long each answer is waited for, and in which form: ``grpc``,
            ``seconds``, ``milliseconds`` (left), ``epoch``, ``iso`` (the instant), e.g. ``{"grpc-timeout": "grpc"}``.
        on_in_doubt: what a guarded call in doubt does in LangGraph: ``raise``, or ``interrupt`` and ask a person.
        results: whether results of guarded calls are kept (a repeated call then gets them); `serde`: their codec.
        schema: the PostgreSQL schema of the store's tables.

    Raises:
        ConfigurationError: a value that cannot be meant, named.
    """

    @classmethod
    def from_env(cls, **settings: Any) -> Self:
        """Return a hedger configured by ``AGENT_HEDGE_STORE``, ``_SHARE`` and ``_FLEET``; an argument comes first.

        ``AGENT_HEDGE_MODE`` is always heard: the strictest of argument and environment holds.
        """
        environ = os.environ
        if "store" not in settings and (store := environ.get("AGENT_HEDGE_STORE")):
            settings["store"] = store
        if "fleet" not in settings and (fleet := environ.get("AGENT_HEDGE_FLEET")):
            settings["fleet"] = fleet
        if "share" not in settings and (share := environ.get("AGENT_HEDGE_SHARE")):
            settings["share"] = _ratio_in_text("AGENT_HEDGE_SHARE", share)
        return cls(**settings)

    # --- learning and looking -------------------------------------------------------------------------------------

    def prime(self, source: str | Path | LatencyBook, *, key: str | None = None, target: str | None = None) -> None:
        """Learn from a CSV of latencies (column ``ttft_ms`` or ``ttft_s``) or from another book, for a warm start."""
        if isinstance(source, LatencyBook):
            self.book.merge(source)
        else:
            self.book.prime_csv(source, running_clock()(), key=StepKey(node=key) if key else None, target=target)

    def status(self) -> dict[str, Any]:
        """Return what is known now: mode, counts of the last 60 minutes, learning per key and target."""
        now = running_clock()()
        mode, source = self.modes.in_force()
        learning = {
            f"{key} @ {target}": "{} of {}".format(*self.book.learning(key, target, now)) for key, target in self._keys
        }
        return {
            "mode": str(mode),
            "mode_by": source,
            "last_60_minutes": self._fleet.counts(now)._asdict(),
            "budget": self.budget.counts(now)._asdict(),
            "learning": learning,
            "abandoned": self._loops.abandoned,
        }


def _ratio_in_text(name: str, text: str) -> float:
    try:
        return checks.ratio(name, float(text))
    except ValueError:  # no number, or none that is a ratio
        return checks.ratio(name, text)
