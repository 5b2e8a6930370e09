"""What every part of the hedger stands on: its construction, its lanes, its stores, its end."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, cast

import anyio.to_thread

from agent_hedge.core import checks
from agent_hedge.core.classify import classify
from agent_hedge.core.ports import Classifier, Codec, Gate, HedgePolicy, Observer, Refused
from agent_hedge.core.scope import Run, StepContext, run_scope, step_scope
from agent_hedge.core.step import Effect, StepKey
from agent_hedge.engine.background import Background
from agent_hedge.engine.lane import Lane
from agent_hedge.engine.loops import Loops
from agent_hedge.engine.spawn import TrioSpawner, clock_of, in_trio
from agent_hedge.errors import ConfigurationError
from agent_hedge.gates import (
    CapGate,
    ControlGate,
    DeadlineGate,
    DrainGate,
    EffectGate,
    Fleet,
    FleetBudget,
    Health,
    Meter,
    ModeGate,
    Modes,
    StoreGate,
    dearest,
)
from agent_hedge.gates.mode import ENVIRONMENT
from agent_hedge.hedger.observing import Observing
from agent_hedge.hedger.settings import (
    check_flags,
    check_store,
    checked_budget,
    checked_codec,
    checked_count,
    checked_nodes,
    checked_observers,
    checked_policy,
    checked_seconds,
)
from agent_hedge.hedger.shared import Shared
from agent_hedge.latency import FirstCalls, LatencyBook
from agent_hedge.observers.accounting import Accounts
from agent_hedge.planning.planner import Planner
from agent_hedge.planning.price import Price
from agent_hedge.policies import Fixed, Planned
from agent_hedge.targets import SPELL_S, DeadlineHeaders, Independent, Stay, Target, as_targets, places
from agent_hedge.tools.registry import Registry

if TYPE_CHECKING:
    from agent_hedge.adapters.langgraph.adapter import GraphAdapter
    from agent_hedge.adapters.langgraph.guard import Guard
    from agent_hedge.stores.sql import Store
    from agent_hedge.tools.ledger import Ledger


class Clients(Protocol):
    """Connections that belong to run loops."""

    async def close_here(self) -> None:
        """Close those of the running loop."""
        ...


class Base:
    """The parts a hedger is composed of. `Hedger` says what the settings mean."""

    def __init__(
        self,
        store: Store | None = None,
        *,
        policy: HedgePolicy | None = None,
        budget: FleetBudget | None = None,
        nodes: Mapping[str, HedgePolicy] | None = None,
        mode: str = "on",
        share: float = 1.0,
        holdout: float = 0.0,
        fleet: str = "",
        bar: Literal["unit", "downstream"] = "unit",
        deadline: float | None = None,
        extra_attempts: int | None = None,
        stay: float = SPELL_S,
        observers: Sequence[Observer] = (),
        telemetry: bool = True,
        capture_content: bool | None = None,
        accounting: Accounts | None = None,
        headers: bool = True,
        deadline_headers: Mapping[str, str] | None = None,
        on_in_doubt: Literal["raise", "interrupt"] = "raise",
        results: bool = True,
        serde: Codec | None = None,
        schema: str | None = None,
    ) -> None:
        check_store(store, schema)
        check_flags(telemetry=telemetry, headers=headers, results=results)
        if on_in_doubt not in ("raise", "interrupt"):
            raise ConfigurationError(f"on_in_doubt must be 'raise' or 'interrupt', got {on_in_doubt!r}")
        self._ledger_settings: dict[str, Any] = {"codec": checked_codec(serde), "keep_results": results}
        self._on_in_doubt: Literal["raise", "interrupt"] = on_in_doubt
        self._tool_guard: Guard | None = None
        self._ledger: Ledger | None = None
        self._making = threading.RLock()
        self.policy = checked_policy("policy", policy) if policy is not None else Planned()
        self.nodes = checked_nodes(nodes)
        self.budget = checked_budget(budget)
        self.modes = Modes(mode, share=share, holdout=holdout, fleet=fleet)
        if bar not in ("unit", "downstream"):
            raise ConfigurationError(f"bar must be 'unit' or 'downstream', got {bar!r}")
        self.bar: Literal["unit", "downstream"] = bar
        self._graph_adapter: GraphAdapter | None = None
        self.deadline = checked_seconds("deadline", deadline)
        self.extra_attempts = checked_count("extra_attempts", extra_attempts)
        self.book = LatencyBook()
        self._latency = FirstCalls(self.book)
        self._fleet = Fleet(self.budget.share)
        self._health = Health()
        route = Stay(checks.seconds("stay", stay))
        self._chooser = Independent(self._health, sticky=route)
        self._loops = Loops()
        self._background = Background()
        self._shared = Shared(
            store,
            schema,
            background=self._background,
            modes=self.modes,
            health=self._health,
            dearest=lambda: dearest(map(self._price, list(self._targets))),
        )
        self._shared.on_change = self._registry_changed
        self._targets: dict[str, Target[Any]] = {}
        self._observing = Observing(
            checked_observers(observers),
            accounting=accounting,
            telemetry=telemetry,
            capture_content=capture_content,
            headers=headers,
            store=None if store is None else str(getattr(store, "url", store)),  # an engine by its address
            steps=lambda: self._shared.stores.steps,
            portal=self._background,
            price=self._price,
            readings=self._readings,
            run_here=self._unscoped_run,
        )
        self._funnel = self._observing.funnel
        self._headers = self._observing.headers
        if deadline_headers is not None:
            self._headers = DeadlineHeaders(deadline_headers, lambda: running_clock()(), also=self._headers)
        self._trio: Any = None
        self._nursery: Any = None
        self._looks: tuple[Gate, ...] = (DeadlineGate(), EffectGate(), ModeGate(self.modes))
        heard: tuple[Gate, ...] = () if store is None else (StoreGate(self._shared.rounds.silence),)
        self.planner = self._plan()
        taking = (self.budget, CapGate(self._price, self.budget), ControlGate(self.modes), Meter(self._fleet), route)
        self._takes: tuple[Gate, ...] = (*heard, self._health, *taking)
        if self.planner is not None:
            self._takes += (self.planner,)
        self._keys: dict[tuple[StepKey, str], None] = {}
        self._clients: weakref.WeakSet[Clients] = weakref.WeakSet()

    def _plan(self) -> Planner | None:
        """Return what plans runs with a deadline; None without numpy (extra ``plan``): then nothing is planned."""
        if find_spec("numpy") is None or self.budget.share == 0:
            return None
        rest = LatencyBook()

        def off_loop(job: Callable[[], None]) -> None:
            self._background.start(lambda: anyio.to_thread.run_sync(job))

        return Planner(self.book, rest, rest, Price(self.budget.share), off_loop)

    def _price(self, target: str) -> Mapping[str, float] | None:
        known = self._targets.get(target)
        return None if known is None else cast("Mapping[str, float] | None", known.price)

    def _readings(self) -> Iterable[tuple[str, float, dict[str, str]]]:
        """What gauges show: the mode, what is learnt, the purses, what was given up, what is in doubt."""
        now = running_clock()()
        mode, source = self.modes.in_force()
        by = source if source in ("code", ENVIRONMENT) else "switch"  # with its reason it would be any number of series
        yield "agent_hedge.mode", 1.0, {"mode": str(mode), "by": by}
        for key, target in list(self._keys):
            known, needed = self.book.learning(key, target, now)
            labels = {"node": key.node, "model": key.model, "target": target}
            yield "agent_hedge.learning", min(1.0, known / needed) if needed else 1.0, labels
        yield "agent_hedge.book.keys", float(len(self._keys)), {}
        fleet, budget = self._fleet.counts(now), self.budget.counts(now)
        yield "agent_hedge.fleet.requests", float(fleet.requests), {}
        yield "agent_hedge.fleet.hedges", float(fleet.hedges), {}
        yield "agent_hedge.budget.left", float(budget.tokens), {}
        yield "agent_hedge.attempts.abandoned", float(self._loops.abandoned), {}
        doubts = 0 if self._ledger is None else self._ledger.counts().get("in_doubt", 0)
        yield "agent_hedge.effects.in_doubt", float(doubts), {}

    def _unscoped_run(self) -> Run | None:
        """Return the run around this code where configuration, and no scope, has opened it."""
        run = run_scope.get()
        if run is None and self._graph_adapter is not None:
            run = self._graph_adapter.graphs.run()
        return run if run is not None and run.unscoped else None

    @property
    def registry(self) -> Registry:
        """What is known of tools: `declare` and `annotate` them here, ask for an `effect`."""
        self._shared.rounds.ensure()
        return self._shared.registry

    async def _registry_changed(self) -> None:
        """Judge the graphs that were shown anew: what an operator says counts without a restart."""
        if self._graph_adapter is not None:
            await anyio.to_thread.run_sync(self._graph_adapter.graphs.judge_again)

    def lane(self, key: StepKey, targets: Iterable[Target[Any] | str], *, effect: Effect) -> Lane:
        """Return a lane with this hedger's settings: for adapters and simulators, which drive races themselves."""
        return self._lane(key, as_targets(targets), effect=effect)

    def _lane(
        self,
        key: StepKey,
        targets: Sequence[Target[Any]],
        *,
        effect: Effect,
        policy: HedgePolicy | None = None,
        timeout: float | None = None,
        classifier: Classifier = classify,
        commit_on_token: bool = False,
        barred: Refused | None = None,
        extra_gates: Sequence[Gate] = (),
        context_of: Callable[[], StepContext | None] = step_scope.get,
        run_of: Callable[[], Run | None] = run_scope.get,
        nodes: Mapping[str, HedgePolicy] | None = None,
    ) -> Lane:
        self._shared.rounds.ensure()
        for target in targets:
            known = self._targets.get(target.name)
            if known is None or (known.price is None and target.price is not None):  # whoever knows what it costs
                self._targets[target.name] = target
            self._keys[key, target.name] = None
        chosen = checked_policy("policy", policy) if policy is not None else self.policy
        looks = (*self._looks, DrainGate(context_of))
        return Lane(
            key,
            loops=self._loops,
            policy=chosen,
            chooser=self._chooser,
            candidates=places(targets),
            latency=self._latency,
            fleet=self._fleet,
            gates=(*looks, *self._takes, *extra_gates),  # a limiter's turn cannot be given back: it is asked last
            nodes=self.nodes if nodes is None else nodes,
            context_of=context_of,
            run_of=run_of,
            plans=self.planner,
            barred=barred,
            forced_policy=Fixed(0.0, attempts=2),
            forced_gates=looks,
            funnel=self._funnel,
            headers=self._headers,
            effect=effect,
            classifier=classifier,
            timeout=checked_seconds("timeout", timeout),
            commit_on_token=commit_on_token,
        )

    # --- closing --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store and stop the background loop; open calls of it are cancelled. The hedger stays usable.

        Connections that models hold for this loop are closed by `aclose` only.
        """
        self._observing.close()
        if self._background.running:
            self._background.call(self._close_clients)
        self._shared.close()
        self._background.close()

    async def aclose(self) -> None:
        """Join the losers of the running loop (at most the grace), close its connections, then close."""
        await self._loops.current().reaper.join()
        try:
            await self._close_clients()
        finally:
            self.close()

    async def _close_clients(self) -> None:
        for clients in list(self._clients):
            await clients.close_here()

    async def __aenter__(self) -> Self:
        if in_trio():
            import trio

            self._trio = trio.open_nursery()
            self._nursery = await self._trio.__aenter__()
            self._loops.open_trio(TrioSpawner(self._nursery))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        finally:
            if self._trio is not None:
                self._loops.close_trio()
                manager, self._trio = self._trio, None
                self._nursery.cancel_scope.cancel()  # what is left has been given up
                await manager.__aexit__(None, None, None)


def running_clock() -> Callable[[], float]:
    """Return the clock of the running loop, else the one asyncio loops use."""
    if in_trio():
        import trio

        return trio.lowlevel.current_clock().current_time  # unlike `trio.current_time`, for any thread
    try:
        return clock_of(asyncio.get_running_loop())
    except RuntimeError:
        return time.monotonic
