"""What a hedger offers to LangGraph, made once per hedger at its first use."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Literal

from langchain_core.runnables import RunnableParallel

from agent_hedge.adapters.langgraph.face import is_async, is_raced, is_wrapped
from agent_hedge.adapters.langgraph.graphs import Graphs, check_bar
from agent_hedge.adapters.langgraph.inside import HedgedCheck, Surroundings
from agent_hedge.adapters.langgraph.judge import SpecOf
from agent_hedge.adapters.langgraph.node import name_of, wrap_model_unit
from agent_hedge.adapters.langgraph.node_unit import InThread, can_be_stopped, wrap_node_unit
from agent_hedge.adapters.langgraph.private import TaskFunction
from agent_hedge.adapters.langgraph.probe import IsMeaningful
from agent_hedge.adapters.langgraph.raced import NodeRace, RaceSettings
from agent_hedge.adapters.langgraph.report import Bar
from agent_hedge.adapters.langgraph.seed import OpenRun
from agent_hedge.adapters.langgraph.wrap import Builder, WrapNode, wrap_graph
from agent_hedge.core.ports import EffectSource, HedgePolicy, Portal
from agent_hedge.core.step import Effect
from agent_hedge.engine.driver import accept_all
from agent_hedge.engine.lane import Lane
from agent_hedge.errors import ConfigurationError

OpenLane = Callable[..., Lane]
"""Opens the lane of a raced node: name, targets, and what the hedger checks (effect, policy, timeout, recover)."""

ONLY_RACED = ("targets", "accept", "first", "trigger", "timeout", "effect", "recover", "cancellable")
"""Settings of a node that mean something only where the node itself is raced."""


class GraphAdapter:
    """Wraps nodes and graphs with a hedger's settings."""

    def __init__(
        self,
        *,
        effects: EffectSource,
        spec_of: SpecOf,
        bar: Bar,
        open_run: OpenRun,
        open_lane: OpenLane,
        portal: Portal,
        in_thread: InThread,
        is_meaningful: IsMeaningful,
    ) -> None:
        self.graphs = Graphs(effects, bar, open_run, spec_of)
        self._effects = effects
        self._bar: Bar = bar
        self._open_lane = open_lane
        self._portal = portal
        self._in_thread = in_thread
        self._is_meaningful = is_meaningful

    def node(
        self,
        action: Any,
        *,
        unit: Literal["model", "node"] = "model",
        key: str | None = None,
        bar: Bar | None = None,
        policy: HedgePolicy | None = None,
        **settings: Any,
    ) -> Any:
        """Return the wrapped node; see `Hedger.node`."""
        if unit not in ("model", "node"):
            raise ConfigurationError(f"unit must be 'model' or 'node', got {unit!r}")
        check_bar(bar)
        known = {name: value for name, value in settings.items() if value is not None}
        if unknown := sorted(set(known) - set(ONLY_RACED)):
            raise ConfigurationError(f"node() does not know {', '.join(unknown)}")
        if known and unit == "model":
            raise ConfigurationError(
                f"of a node, only unit='node' knows {', '.join(sorted(known))}: models have their own"
            )
        if is_wrapped(action):
            if unit == "node" and not is_raced(action):
                self._warn(f"the node {name_of(action)!r} is wrapped already: unit='node' changes nothing here")
            return action
        if isinstance(action, Mapping):  # as `add_node` takes it
            action = RunnableParallel(action)
        if isinstance(action, TaskFunction):
            raise ConfigurationError("wrap the function below @task, not the task: @task on top of @hedger.task")
        if unit == "node":
            surroundings = Surroundings(self.graphs, key=key, bar=bar, policy=policy)
            return self._raced(action, surroundings, key, bar or self._bar, policy, **known)
        check = HedgedCheck(self.graphs, action, name_of(action))
        return wrap_model_unit(action, Surroundings(self.graphs, key=key, bar=bar, policy=policy, check=check))

    def _raced(
        self,
        action: Any,
        surroundings: Surroundings,
        key: str | None,
        bar: Bar,
        policy: HedgePolicy | None,
        *,
        effect: Effect | str = Effect.UNKNOWN,
        accept: Callable[[Any], bool] = accept_all,
        first: Callable[[Any], bool] | None = None,
        trigger: Literal["first", "total"] = "first",
        cancellable: bool = False,
        **lane_settings: Any,
    ) -> Any:
        name = key or name_of(action)
        if trigger not in ("first", "total"):
            raise ConfigurationError(f"trigger must be 'first' or 'total', got {trigger!r}")
        for what, judge in (("accept", accept), ("first", first)):
            if judge is not None and (not callable(judge) or is_async(judge)):
                raise ConfigurationError(f"{what} must be a function that returns whether it is so, got {judge!r:.80}")
        if not isinstance(cancellable, bool):
            raise ConfigurationError(f"cancellable must be True or False, got {cancellable!r:.80}")
        lane = self._open_lane(
            name, effect=effect, policy=policy, commit_on_token=accept is accept_all, **lane_settings
        )
        if not lane.effect.repeatable:
            self._warn(
                f"the node {name!r} is declared with effect {lane.effect.value!r}: it is never raced. Say "
                "effect=Effect.READ_ONLY (or IDEMPOTENT, KEYED) if running it twice is safe."
            )
        if not (can_be_stopped(action) or cancellable):
            self._warn(
                f"the node {name!r} is sync: it is never raced, since no thread can be stopped. Make it async, or say "
                "cancellable=True if its body looks at current_attempt().cancelled."
            )
        race_settings = RaceSettings(effect=lane.effect, accept=accept, first=first, trigger=trigger, bar=bar)
        race = NodeRace(action, lane, self.graphs, self._effects, race_settings, self._is_meaningful)
        return wrap_node_unit(
            action, race, surroundings, portal=self._portal, in_thread=self._in_thread, cancellable=cancellable
        )

    def wrap_graph(self, builder: Builder, wrap_node: WrapNode) -> Builder:
        """Wrap the nodes that are declared or hold a hedged model; see `Hedger.wrap_graph`."""
        return wrap_graph(builder, self.graphs, wrap_node)

    @staticmethod
    def _warn(message: str) -> None:
        warnings.warn(message, stacklevel=5)
