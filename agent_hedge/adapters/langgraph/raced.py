"""`hedger.node` at ``unit="node"``: the node itself is raced, for nodes that call SDKs directly (DESIGN 5.4).

Each attempt has a configuration of its own behind a gate of its own; the winner's gate is opened, a loser's never. The
race is decided by the first meaningful token that a probe sees, else by the first accepted result, or by the first
attempt to reach a side effect. Where hedging is refused from the start, the one attempt runs as the plain node would:
nothing is held back.
"""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphBubbleUp

from agent_hedge.adapters.langgraph.attempt import GatedAttempt, directed, isolated, overrides_of
from agent_hedge.adapters.langgraph.context import names_around, racing
from agent_hedge.adapters.langgraph.gated_callbacks import ungateable
from agent_hedge.adapters.langgraph.graphs import UNIT, Graphs, hazards
from agent_hedge.adapters.langgraph.probe import IsMeaningful
from agent_hedge.adapters.langgraph.report import SEPARATOR, Bar
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Classifier, EffectSource, Refused
from agent_hedge.core.scope import ActiveAttempt, StepContext, step_scope
from agent_hedge.core.step import Effect, Failure, StepKey
from agent_hedge.engine.lane import Lane
from agent_hedge.errors import AttemptCancelled, DeadlineExceeded

Config = Mapping[str, Any]
Body = Callable[[Config | None, Any], Awaitable[Any]]
"""Runs the node once: with a configuration of its own (None: the ambient one) and a state."""

_INSIDE = Refused(Reason.BARRED, "the node around it is raced")
_UNSEEN = Refused(Reason.NO_FIRST_CHUNK, "its first token cannot be seen; say trigger='total' to race it by its result")


@dataclass(frozen=True, slots=True, kw_only=True)
class RaceSettings:
    """What the user has said of one raced node."""

    effect: Effect
    accept: Callable[[Any], bool]
    first: Callable[[Any], bool] | None
    trigger: Literal["first", "total"]
    bar: Bar


def passing_control_flow(classify: Classifier) -> Classifier:
    """Return a classifier that knows LangGraph's control flow: an interrupt or a jump is no failure (R7)."""

    def known(error: BaseException, /) -> Failure | None:
        return None if isinstance(error, GraphBubbleUp) else classify(error)

    return known


class NodeRace:
    """The races of one wrapped node."""

    def __init__(
        self,
        action: Any,
        lane: Lane,
        graphs: Graphs,
        effects: EffectSource,
        settings: RaceSettings,
        is_meaningful: IsMeaningful,
    ) -> None:
        self._action = action
        self._lane = lane
        self._graphs = graphs
        self._effects = effects
        self._settings = settings
        self._is_meaningful = is_meaningful
        self._seen: tuple[Refused | None, bool] | None = None

    async def run(self, body: Body, state: Any, config: Config, context: StepContext) -> Any:
        """Race the node once; return the winner's result or raise what a plain node would have raised."""
        refused = self._refusal(config, context)
        verdict = step_scope.set(replace(context, verdict=refused))
        try:
            key = StepKey(node=context.node)
            if refused is not None:
                return await self._alone(body, state, config, context, key)
            return await self._raced(body, state, config, context, key)
        except AttemptCancelled as error:  # LangGraph tells a node that cancels itself by this, and names it
            raise asyncio.CancelledError from error
        finally:
            step_scope.reset(verdict)

    async def _alone(self, body: Body, state: Any, config: Config, context: StepContext, key: StepKey) -> Any:
        """One attempt, shown as it runs; no second one may follow it."""

        async def attempt(active: ActiveAttempt) -> Any:
            step_scope.set(context)
            overrides = overrides_of(active)
            if not overrides:
                return await body(None, state)
            own = directed(config, overrides)
            var_child_runnable_config.set(own)  # type: ignore[arg-type]
            return await body(own, state)

        driver = self._lane.driver(attempt, self._settings.accept, key, effect=Effect.ONCE)
        return await driver.run()

    async def _raced(self, body: Body, state: Any, config: Config, context: StepContext, key: StepKey) -> Any:
        attempts: dict[int, GatedAttempt] = {}
        around = replace(context, verdict=_INSIDE)

        async def attempt(active: ActiveAttempt) -> Any:
            own = attempts[active.number] = self._gated(config, active)
            var_child_runnable_config.set(own.config)  # type: ignore[arg-type]
            step_scope.set(around)
            racing.set(_INSIDE)
            try:
                return await body(own.config, isolated(state))
            except BaseException:
                if active.cancelled:
                    await own.close_runs()
                raise

        driver = self._lane.driver(attempt, self._settings.accept, key)
        try:
            await driver.until_committed()
            if driver.committed is not None:
                await attempts[driver.committed].open()
            result = await driver.until_answered()
            if driver.committed is not None:
                attempts[driver.committed].settle()
            return result
        except Exception as error:
            if driver.committed is None and 0 in attempts and not isinstance(error, DeadlineExceeded):
                await attempts[0].open()  # all have failed: the primary's error is shown, and what came before it
            raise
        finally:
            if driver.answer is None:
                await driver.leave()
            attempts.clear()  # they lead back to the race: a cycle would keep the graph's loop until it is collected

    def _gated(self, config: Config, active: ActiveAttempt) -> GatedAttempt:
        _, holds_graphs = self._look()
        return GatedAttempt(
            config,
            active,
            effects=self._effects,
            is_meaningful=self._is_meaningful,
            first=self._settings.first,
            may_stream=not holds_graphs,
        )

    # --- may it be raced? -------------------------------------------------------------------------------------------

    def _refusal(self, config: Config, context: StepContext) -> Refused | None:
        """Return why this execution must not be raced."""
        if (inside := racing.get()) is not None:
            return inside
        if context.resumed:
            return Refused(Reason.RESUMED)
        if context.draining():
            return Refused(Reason.DRAINING)
        if (handler := ungateable(config.get("callbacks"))) is not None:
            return Refused(Reason.BARRED, f"{type(handler).__name__} would show every attempt")
        refused, _ = self._look()
        if refused is not None and refused.reason is Reason.BARRED:
            return refused
        return self._downstream(context) or refused

    def _downstream(self, context: StepContext) -> Refused | None:
        if self._settings.bar != "downstream":
            return None
        node = context.alias.rpartition(SEPARATOR)[2].partition(":")[0] or context.node
        reports = self._graphs.report(node, names_around(context.alias), "downstream")
        if not reports:
            return Refused(Reason.GRAPH_UNSEEN, f"no node `{node}` was explained")
        reasons = [reason for report in reports for reason in hazards(report, self._settings.effect)]
        return Refused(Reason.BARRED, reasons[0]) if reasons else None

    def _look(self) -> tuple[Refused | None, bool]:
        """Look at the node itself, once: why it must not be raced, and whether it holds graphs."""
        if self._seen is None:
            explanation = self._graphs.explain_unit(self._action)
            report = explanation[UNIT]
            reasons = hazards(report, self._settings.effect)
            holds_graphs = any(SEPARATOR in each.name for each in explanation.nodes)
            speaks = self._settings.first is not None or any(each.models for each in explanation.nodes)
            refused = Refused(Reason.BARRED, reasons[0]) if reasons else None
            if refused is None and not speaks and self._settings.trigger != "total":
                refused = _UNSEEN
            if refused is not None and self._settings.effect.repeatable:  # else it has been said
                said = f"the node {self._lane.key.node!r} is never raced: {refused.detail}"
                warnings.warn(said, stacklevel=2)
            self._seen = (refused, holds_graphs)
        return self._seen
