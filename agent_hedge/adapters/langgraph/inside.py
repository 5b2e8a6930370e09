"""What surrounds the body of a wrapped node: its step, and the run it belongs to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from contextvars import Token
from dataclasses import replace
from types import TracebackType
from typing import Any

from langchain_core.runnables.config import var_child_runnable_config
from langgraph.errors import GraphDrained, GraphInterrupt

from agent_hedge.adapters.langgraph.graphs import Graphs
from agent_hedge.adapters.langgraph.report import Bar
from agent_hedge.adapters.langgraph.seed import Asked
from agent_hedge.core.ports import HedgePolicy
from agent_hedge.core.scope import StepContext, run_scope, step_scope


class Surroundings:
    """Made once per wrapped node; ``with surroundings():`` goes around each run of its body."""

    def __init__(
        self,
        graphs: Graphs,
        *,
        key: str | None = None,
        bar: Bar | None = None,
        policy: HedgePolicy | None = None,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._graphs = graphs
        self._key = key
        self._bar: Bar | None = bar
        self._policy = policy
        self._check = check
        """Is called before each run of the body."""

    def __call__(self) -> Inside:
        if self._check is not None:
            self._check()
        return Inside(self)

    def __deepcopy__(self, memo: object) -> Surroundings:
        """A copied graph is of the same hedger."""
        return self

    def look(self) -> tuple[Mapping[str, Any], StepContext] | None:
        """Return the ambient configuration and where its node stands; None outside any graph."""
        config = var_child_runnable_config.get()
        context = self._graphs.context(config, self._bar) if config is not None else None
        if config is None or context is None:
            return None
        if self._key is not None or self._policy is not None:
            context = replace(context, node=self._key or context.node, policy=self._policy)
        return config, context

    def run_asked_for(self) -> InRun | None:
        return in_run(self._graphs)


class Inside:
    """One run of the body. Outside any graph it does nothing."""

    __slots__ = ("_around", "_run", "_step_token", "config", "context")

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._step_token: Token[StepContext | None] | None = None
        self._run: InRun | None = None
        self.config: Mapping[str, Any] | None = None
        self.context: StepContext | None = None

    def __enter__(self) -> Inside:
        found = self._around.look()
        if found is not None:
            self.config, self.context = found
            self._run = self._around.run_asked_for()
            if self._run is not None:
                self._run.__enter__()
            self._step_token = step_scope.set(self.context)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ValueError):  # a generator may be closed in another context: there is nothing to reset there
            if self._step_token is not None:
                step_scope.reset(self._step_token)
        if self._run is not None:
            self._run.__exit__(kind, error, trace)


class InRun:
    """One run of a node's body inside the run that its configuration asks for."""

    __slots__ = ("_asked", "_token")

    def __init__(self, asked: Asked) -> None:
        self._asked = asked

    def __enter__(self) -> None:
        self._token = run_scope.set(self._asked.run)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(ValueError):  # as above
            run_scope.reset(self._token)
        self._asked.left(waits=isinstance(error, GraphInterrupt | GraphDrained))


def in_run(graphs: Graphs) -> InRun | None:
    """Return what puts code into the run its configuration asks for; None where it asks for none, or one is open.

    Raises `ConfigurationError` for settings that cannot be meant.
    """
    if run_scope.get() is not None:
        return None
    asked = graphs.run_asked_for()
    return None if asked is None else InRun(asked)


class HedgedCheck:
    """Warns once of a wrapped node in which nothing is hedged: a plain chat model inside it stays plain."""

    def __init__(self, graphs: Graphs, action: Any, name: str) -> None:
        self._graphs = graphs
        self._action = action
        self._name = name
        self._done = False

    def __call__(self) -> None:
        """Look at the first run: by then every global the body uses is there."""
        if self._done:
            return
        self._done = True
        reports = self._graphs.explain_unit(self._action).nodes
        if any(report.hedged for report in reports):
            return
        plain = [model.name for report in reports for model in report.models]
        if plain or not any(report.cannot_see for report in reports):
            what = f"its models are plain: {', '.join(dict.fromkeys(plain))}" if plain else "it holds no chat model"
            warnings.warn(
                f"the wrapped node {self._name!r} hedges nothing: {what}. Wrap a model with hedger.chat_model(...), "
                'or race the node itself: hedger.node(..., unit="node", effect=...).',
                stacklevel=5,
            )
