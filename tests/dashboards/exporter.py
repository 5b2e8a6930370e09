"""Simulated hours through our metrics and OpenTelemetry's Prometheus exporter, with the log of events beside them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, Metric

from agent_hedge import Effect, Fixed, Hedger
from agent_hedge.core.events import Claimed, Fenced, Reason, RunEnded, TriggerLate
from agent_hedge.core.ports import Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.step import FOREVER, Attempt, Role, StepKey
from agent_hedge.latency import Sketch
from agent_hedge.observers.otel import Metrics
from agent_hedge.testing.scenario import Line, Site
from tests.observers.kit import play
from tests.observers.test_metrics import Log, a_wait

MINUTES = 120
STEPS = 20
"""A minute."""


class EveryThirdHedge:
    """A budget that refuses every third hedge."""

    def __init__(self) -> None:
        self.asked = 0

    def admit(self, attempt: Any, view: Any) -> Any:
        if attempt.role is not Role.HEDGE:
            return PASS
        self.asked += 1
        return Refused(Reason.FLEET_BUDGET) if self.asked % 3 == 0 else PASS


@dataclass
class Exporter:
    """The exporter of one process, and what has really happened."""

    registry: CollectorRegistry = field(default_factory=CollectorRegistry)
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def __post_init__(self) -> None:
        provider = MeterProvider([PrometheusMetricReader(registry=self.registry)])
        self._hedger = hedger = Hedger(policy=Fixed(1.0), accounting="all")
        asyncio.run(_one_step(hedger))
        metrics = Metrics(Sketch, provider)
        metrics.show(hedger._observing.readings)
        self.log = Log(metrics, self.rng)
        self._budget = EveryThirdHedge()

    def families(self) -> Iterable[Metric]:
        return self.registry.collect()

    def emitted(self) -> dict[str, set[str]]:
        """Return every name that a scrape has now, and its labels."""
        names: dict[str, set[str]] = {}
        for family in self.families():
            for sample in family.samples:
                names.setdefault(sample.name, set()).update(sample.labels)
        return names

    def minute(self, start: float) -> None:
        """Play the steps of a minute: stragglers, failures, refusals, hedges of all fates, and a missed deadline."""
        for number in range(STEPS):
            at = start + 60.0 * number / STEPS
            broken = self.rng.random() < 0.03
            lines = [Line("a", a_wait(self.rng), ConnectionError() if broken else "ok"), Line("b", a_wait(self.rng))]
            self._play("plan", at, *lines, policy=1.5, gates=[self._budget], max_attempts=2)
        self._play("write", start, Line("a", 90.0), deadline=3.0)
        self._happen(start)

    def _happen(self, at: float) -> None:
        """Tell what belongs to no race: a loop that stood still, a run that ended, a side effect that was claimed."""
        key = StepKey(node="pay", model="m")
        attempt = Attempt(number=1, role=Role.HEDGE, target=Site("b"), started_at=at, deadline=FOREVER)
        for event in (
            TriggerLate(step_id="late", key=key, at=at, late=0.05, due_at=at),
            RunEnded(at=at, run=1, steps=STEPS, hedges=1, recoveries=0, hedges_left=2, remaining=12.0),
            Fenced(step_id="fenced", key=key, at=at, attempt=attempt, passed=True),
            Claimed(at=at, tool="pay", answer="run"),
        ):
            self.log.on_event(event)

    def _play(self, node: str, at: float, *lines: Line, deadline: float = 30.0, **settings: Any) -> None:
        play(self.log, *lines, start=at, deadline=deadline, key=StepKey(node=node, model="m"), **settings)


async def _one_step(hedger: Hedger) -> None:
    async def work() -> str:
        return "ok"

    async with hedger:
        await hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a"])()
