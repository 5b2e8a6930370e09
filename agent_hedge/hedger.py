"""The hedger: composition root and public face. The only place that knows adapters, stores and defaults."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
import warnings
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload

import anyio.to_thread

from agent_hedge.adapters.functions import in_thread, is_stream, name_of, wrap_function
from agent_hedge.core.classify import classify
from agent_hedge.core.ports import (
    KEY_LIMIT,
    NAME_LIMIT,
    Classifier,
    Codec,
    Gate,
    HedgePolicy,
    Observer,
    Refused,
    Stores,
    check_text,
)
from agent_hedge.core.scope import Run, StepContext, rail, run_scope, step_scope
from agent_hedge.core.step import Effect, Failure, StepKey
from agent_hedge.engine.background import Background
from agent_hedge.engine.driver import accept_all
from agent_hedge.engine.funnel import Funnel
from agent_hedge.engine.lane import Lane
from agent_hedge.engine.loops import Loops
from agent_hedge.engine.runscope import RunScope
from agent_hedge.engine.spawn import TrioSpawner, in_trio
from agent_hedge.errors import ConfigurationError
from agent_hedge.gates import (
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
)
from agent_hedge.latency import LatencyBook
from agent_hedge.planning.planner import Planner
from agent_hedge.planning.price import Price
from agent_hedge.policies import Fixed, Planned
from agent_hedge.targets import Independent, Target, as_targets, places

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.tools import BaseTool
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    from agent_hedge.adapters.langchain.model import HedgedChatModel
    from agent_hedge.adapters.langgraph.adapter import GraphAdapter
    from agent_hedge.adapters.langgraph.agent_middleware import HedgeMiddleware
    from agent_hedge.adapters.langgraph.explain import Graph
    from agent_hedge.adapters.langgraph.guard import Guard
    from agent_hedge.adapters.langgraph.report import Explanation

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B")

STORE_SCHEMES = ("sqlite", "postgresql", "postgresql+psycopg", "postgresql+asyncpg")
TYPICAL_STEPS = 20
"""Steps of a run of which nothing is declared or learnt; sets the default purse of hedges (R13)."""


class WrapSettings(TypedDict, total=False):
    """The settings of `Hedger.wrap`; it says what they mean."""

    key: str | None
    effect: Effect
    targets: Iterable[Target[Any] | str] | Target[Any] | None
    accept: Callable[[Any], bool]
    first: Callable[[Any], bool]
    timeout: float | None
    policy: HedgePolicy | None
    recover: type[BaseException] | tuple[type[BaseException], ...]


class ModelSettings(TypedDict, total=False):
    """The settings of `Hedger.chat_model`; it says what they mean."""

    family: str | None
    parity: Literal["warn", "strict"]
    accept: Callable[[AIMessage], bool] | Literal["schema"] | None
    accept_on: Literal["final"] | None
    trigger: Literal["first", "total"]
    timeout: float | None
    policy: HedgePolicy | None
    recover: tuple[type[BaseException], ...]


class NodeSettings(TypedDict, total=False):
    """The settings of `Hedger.node`; it says what they mean."""

    unit: Literal["model", "node"]
    key: str | None
    bar: Literal["unit", "downstream"] | None
    policy: HedgePolicy | None
    effect: Effect
    targets: Iterable[Target[Any] | str] | Target[Any] | None
    accept: Callable[[Any], bool]
    first: Callable[[Any], bool]
    trigger: Literal["first", "total"]
    timeout: float | None
    recover: type[BaseException] | tuple[type[BaseException], ...]
    cancellable: bool


class Hedger:
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
        observers: hear every event.
        on_in_doubt: what a guarded call in doubt does in LangGraph: ``raise``, or ``interrupt`` and ask a person.
        results: whether results of guarded calls are kept (a repeated call then gets them); `serde`: their codec.
        schema: the PostgreSQL schema of the store's tables.

    Raises:
        ConfigurationError: a value that cannot be meant, named.
    """

    def __init__(
        self,
        store: str | None = None,
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
        observers: Sequence[Observer] = (),
        on_in_doubt: Literal["raise", "interrupt"] = "raise",
        results: bool = True,
        serde: Codec | None = None,
        schema: str | None = None,
    ) -> None:
        _check_store(store)
        if on_in_doubt not in ("raise", "interrupt"):
            raise ConfigurationError(f"on_in_doubt must be 'raise' or 'interrupt', got {on_in_doubt!r}")
        self._store = store
        self._schema = schema
        self._opened_stores: Stores | None = None
        self._ledger_settings: dict[str, Any] = {"codec": serde, "keep_results": results}
        self._on_in_doubt: Literal["raise", "interrupt"] = on_in_doubt
        self._tool_guard: Guard | None = None
        self._making = threading.RLock()
        self.policy = _checked_policy("policy", policy) if policy is not None else Planned()
        self.nodes = {name: _checked_policy(f"nodes[{name!r}]", one) for name, one in (nodes or {}).items()}
        self.budget = _checked_budget(budget)
        self.modes = Modes(mode, share=share, holdout=holdout, fleet=fleet)
        if bar not in ("unit", "downstream"):
            raise ConfigurationError(f"bar must be 'unit' or 'downstream', got {bar!r}")
        self.bar: Literal["unit", "downstream"] = bar
        self._graph_adapter: GraphAdapter | None = None
        self.deadline = _checked_seconds("deadline", deadline)
        self.extra_attempts = _checked_count("extra_attempts", extra_attempts)
        self.book = LatencyBook()
        self._fleet = Fleet(self.budget.share)
        self._health = Health()
        self._chooser = Independent(self._health)
        self._funnel = Funnel(_checked_observers(observers))
        self._loops = Loops()
        self._background = Background()
        self._trio: Any = None
        self._nursery: Any = None
        self._looks: tuple[Gate, ...] = (DeadlineGate(), EffectGate(), ModeGate(self.modes))
        self.planner = self._plan()
        self._takes: tuple[Gate, ...] = (self._health, self.budget, ControlGate(self.modes), Meter(self._fleet))
        if self.planner is not None:
            self._takes += (self.planner,)
        self._targets: dict[str, Target[Any]] = {}
        self._keys: dict[tuple[StepKey, str], None] = {}

    def _plan(self) -> Planner | None:
        """Return what plans runs with a deadline; None without numpy (extra ``plan``): then nothing is planned."""
        if find_spec("numpy") is None or self.budget.share == 0:
            return None
        rest = LatencyBook()

        def off_loop(job: Callable[[], None]) -> None:
            self._background.start(lambda: anyio.to_thread.run_sync(job))

        return Planner(self.book, rest, rest, Price(self.budget.share), off_loop)

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
            try:
                settings["share"] = float(share)
            except ValueError:
                raise ConfigurationError(f"AGENT_HEDGE_SHARE is {share!r}; it is a ratio from 0 to 1.") from None
        return cls(**settings)

    # --- functions ------------------------------------------------------------------------------------------------

    @overload
    def wrap(self, fn: Callable[P, R], /, **settings: Unpack[WrapSettings]) -> Callable[P, R]: ...
    @overload
    def wrap(self, /, **settings: Unpack[WrapSettings]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def wrap(self, fn: Callable[..., Any] | None = None, /, **settings: Unpack[WrapSettings]) -> Any:
        """Return `fn` (any async, async-generator or sync function) with every call a hedged step.

        Keyword arguments:
            key: names the steps that share one latency history (default: the function's qualified name).
            effect: what calling it twice would do; without a repeatable one it is never hedged or repeated.
            targets: the places attempts go to, as `Target`s or names; the function finds its own in
                ``current_attempt().target``. Without any, calls count as independent of each other.
            accept: whether a result is acceptable; a rejected one is a recoverable failure.
            first: for async generators, which item is the first meaningful one.
            timeout: seconds one call may take, all attempts included.
            policy: when the next attempt is due (default: the hedger's, or its ``nodes[key]``).
            recover: exception types that are recoverable beside the usual ones.

        Without a function it returns a decorator.

        Raises:
            ConfigurationError: a value that cannot be meant, named.
        """
        if fn is None:
            return lambda decorated: self._wrap(decorated, **settings)
        return self._wrap(fn, **settings)

    def _wrap(
        self,
        fn: Callable[..., Any],
        *,
        key: str | None = None,
        effect: Effect = Effect.UNKNOWN,
        targets: Iterable[Target[Any] | str] | Target[Any] | None = None,
        accept: Callable[[Any], bool] = accept_all,
        first: Callable[[Any], bool] = accept_all,
        timeout: float | None = None,
        policy: HedgePolicy | None = None,
        recover: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> Callable[..., Any]:
        name = name_of(fn) if key is None else key
        check_text(name, "key", KEY_LIMIT, empty=False)
        stream = is_stream(fn)
        _checked_judge("accept", accept, usable=not stream, instead="first")
        _checked_judge("first", first, usable=stream, instead="accept")
        effect = _checked_effect(effect)
        if not effect.repeatable:
            warnings.warn(
                f"{name!r} is wrapped with effect {effect.value!r}: it is never hedged. "
                "Say effect=Effect.READ_ONLY (or IDEMPOTENT, KEYED) if calling it twice is safe.",
                stacklevel=3,
            )
        lane = self._lane(
            StepKey(node=name),
            (Target(name[:NAME_LIMIT], copies=2),) if targets is None else as_targets(targets),
            effect=effect,
            policy=policy,
            nodes=None if policy is None else {},  # the function is the node: its own policy comes first
            timeout=timeout,
            classifier=_widened(recover),
            commit_on_token=stream,
        )
        return wrap_function(fn, lane, self._background, accept=accept, first=first)

    # --- chat models ----------------------------------------------------------------------------------------------

    def chat_model(
        self,
        *models: object,
        family: str | None = None,
        parity: Literal["warn", "strict"] = "warn",
        accept: Callable[[AIMessage], bool] | Literal["schema"] | None = None,
        accept_on: Literal["final"] | None = None,
        trigger: Literal["first", "total"] = "first",
        timeout: float | None = None,
        policy: HedgePolicy | None = None,
        recover: tuple[type[BaseException], ...] = (),
    ) -> HedgedChatModel:
        """Return a chat model over `models` (names, chat models, bound models, `Target`s); the first is the primary.

        It is used like the primary, also in `create_agent`, chains and graph nodes. The user's objects are not touched.

        Args:
            family: says that the members are the same model where its names differ.
            parity: what to do where members differ in what must match: ``warn`` or ``strict`` (an error).
            accept: judges whole answers of callers that do not stream: the first token then only disarms the trigger,
                and the losers run on (both decode) until an answer is accepted; a rejected one is a recoverable
                failure. ``schema`` judges structured output by its own parser.
            accept_on: ``final`` buffers a streaming caller's answer, so that `accept` can judge it.
            trigger: ``total`` also hedges members whose first token cannot be seen, on the time of whole answers.
            timeout: seconds one call may take, all attempts included.
            policy: when the next attempt is due; a node's own (``nodes=``) comes first.
            recover: exception types that are recoverable beside the usual ones.

        Raises:
            ConfigurationError: a value or a member that cannot be meant, named.
        """
        from agent_hedge.adapters.langchain.ambient import ambient_context, ambient_run
        from agent_hedge.adapters.langchain.build import chat_model

        def open_lane(
            key: StepKey,
            targets: Sequence[Target[Any]],
            *,
            commit_on_token: bool,
            barred: Refused | None,
            extra_gates: Sequence[Gate],
        ) -> Lane:
            return self._lane(
                key,
                targets,
                effect=Effect.READ_ONLY,
                policy=policy,
                timeout=timeout,
                classifier=_widened(recover),
                commit_on_token=commit_on_token,
                barred=barred,
                extra_gates=extra_gates,
                context_of=lambda: ambient_context(lambda config: self._graphs.graphs.context(config)),
                run_of=lambda: ambient_run(lambda: self._graphs.graphs.run()),
            )

        return chat_model(
            models,
            open_lane,
            self._background,
            family=family,
            parity=parity,
            accept=accept,
            accept_on=accept_on,
            trigger=trigger,
        )

    # --- LangGraph ------------------------------------------------------------------------------------------------

    def node(self, action: Any = None, /, **settings: Unpack[NodeSettings]) -> Any:
        """Return a node of a LangGraph graph with the same face: a function, method, callable, Runnable or graph.

        Keyword arguments:
            unit: ``model`` runs the node once and tells its hedged models where they stand; ``node`` races the node
                itself, for nodes that call SDKs directly.
            key: names the steps that share one latency history (default: the node's name).
            bar: overrides the hedger's for this node.
            policy: when the next attempt is due.

        Only with ``unit="node"``:
            effect: what running it twice would do; without a repeatable one it is never raced.
            targets: the places attempts go to; the node finds its own in ``current_attempt().target``, and a target
                whose member is a mapping puts it into the attempt's ``configurable``.
            accept: whether a result is acceptable; a rejected one is a recoverable failure.
            first: whether an item of the custom stream is the first meaningful one.
            trigger: ``total`` also races a node whose first token cannot be seen, on the time of whole results.
            timeout: seconds one execution may take, all attempts included.
            recover: exception types that are recoverable beside the usual ones.
            cancellable: a sync body looks at ``current_attempt().cancelled`` and stops.

        Without an action it returns a decorator. A hedged model in a plain node needs no wrapping.

        Raises:
            ConfigurationError: a value that cannot be meant, named.
        """
        if action is None:
            return lambda decorated: self._graphs.node(decorated, **settings)
        return self._graphs.node(action, **settings)

    def task(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """Return the body of a ``@task`` or ``@entrypoint`` that tells its hedged models where they stand.

        It stands below the decorator of LangGraph: ``@task`` on top of ``@hedger.task``.
        """
        wrapped: Callable[P, R] = self._graphs.node(fn)
        return wrapped

    # --- tools ----------------------------------------------------------------------------------------------------
    def middleware(
        self,
        *targets: object,
        tools: bool = True,
        exit_behavior: Literal["error", "end"] = "error",
        **settings: Unpack[ModelSettings],
    ) -> HedgeMiddleware:
        """Return a middleware for `create_agent` that hedges the agent's own model with these targets.

        It replaces a fallback middleware and stands last in the list. A model that is hedged already stays as it is:
        ``create_agent(model=hedger.chat_model(...))`` is preferred.

        Args:
            targets: further members, as in `chat_model`; the model of the request is the primary.
            tools: put the agent's tools behind the fence and the ledger (`guard_tool_call`).
            exit_behavior: what to do when the model cannot answer: ``error`` raises, ``end`` ends the agent with a
                message that names the type of the error.
            settings: as in `chat_model`.
        """
        from agent_hedge.adapters.langgraph.agent_middleware import GuardedHedgeMiddleware, HedgeMiddleware

        if not targets:
            raise ConfigurationError("middleware() needs at least one further model; it was given none")

        def hedge(model: BaseChatModel) -> HedgedChatModel:
            return self.chat_model(model, *targets, **settings)

        if tools:
            return GuardedHedgeMiddleware(hedge, exit_behavior, self.guard_tool_call, self.aguard_tool_call)
        return HedgeMiddleware(hedge, exit_behavior)


    def guard_tools(self, tools: Iterable[BaseTool | Callable[..., Any]]) -> list[BaseTool]:
        """Return copies of LangChain tools whose own body asks the fence and the ledger first (R10, R11).

        Name, schema, description and injected arguments stay; a plain function becomes a tool. What a tool does is
        said by `tool_effect` or the registry; undeclared counts as once.
        """
        return self._guard.tools(tools)

    def tool_node(self, tools: Sequence[BaseTool | Callable[..., Any]], **settings: Any) -> ToolNode:
        """Return a `ToolNode` over guarded tools; `settings` are its own."""
        return self._guard.tool_node(tools, **settings)

    def guard_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], ToolMessage | Command[Any]]
    ) -> ToolMessage | Command[Any]:
        """Guard one call: ``ToolNode(..., wrap_tool_call=hedger.guard_tool_call)``. Give its async twin too."""
        return self._guard.call(request, handler)

    async def aguard_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[ToolMessage | Command[Any]]]
    ) -> ToolMessage | Command[Any]:
        """Guard one call: ``ToolNode(..., awrap_tool_call=hedger.aguard_tool_call)``. Give its sync twin too."""
        return await self._guard.acall(request, handler)

    @overload
    def once(
        self, fn: Callable[P, R], /, *, key: str | Callable[..., object] | None = None, scope: str | None = None
    ) -> Callable[P, R]: ...
    @overload
    def once(
        self, /, *, key: str | Callable[..., object] | None = None, scope: str | None = None
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def once(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        key: str | Callable[..., object] | None = None,
        scope: str | None = None,
    ) -> Any:
        """Return `fn` with every call run at most once, through the ledger.

        `key` names the effect: a parameter, or a function of the arguments, within `scope` (``run``, ``tenant``,
        ``global``). Without it the node or task of LangGraph around the call does. Without a function: a decorator.
        """
        if fn is None:
            return lambda decorated: self._guard.once(decorated, key=key, scope=scope)
        return self._guard.once(fn, key=key, scope=scope)

    @property
    def _guard(self) -> Guard:
        with self._making:
            if self._tool_guard is None:
                from agent_hedge.adapters.langgraph.guard import Guard
                from agent_hedge.tools.guarded import Guarded
                from agent_hedge.tools.ledger import Ledger

                ledger = Ledger(self._stores.claims, **self._ledger_settings)
                self._tool_guard = Guard(
                    Guarded(ledger, self._background),
                    entries=getattr(self, "registry", None),
                    on_in_doubt=self._on_in_doubt,
                )
            return self._tool_guard

    @property
    def _stores(self) -> Stores:
        with self._making:
            if self._opened_stores is None:
                self._opened_stores = _stores_of(self._store, self._schema)
            return self._opened_stores

    def wrap_graph(self, builder: B) -> B:
        """Wrap every node of a `StateGraph` that holds a hedged model or is declared, in place, and return it.

        A node is declared by ``metadata={"agent_hedge": {"unit": "node", ...}}``, with the settings of `node`. The
        graph counts as shown (`explain`). Wrap before compiling.
        """
        self._graphs.wrap_graph(builder)  # type: ignore[arg-type]
        return builder

    def explain(self, graph: Graph, *, bar: Literal["unit", "downstream"] | None = None) -> Explanation:
        """Explain what each node of a graph may do, before it runs: hedgeable or barred, why, and which tools.

        The graph is remembered: under ``bar="downstream"`` only nodes of graphs that were shown are hedged.
        """
        return self._graphs.graphs.explain(graph, bar)

    @property
    def _graphs(self) -> GraphAdapter:
        if self._graph_adapter is None:
            from agent_hedge.adapters.langchain.meaning import is_meaningful
            from agent_hedge.adapters.langgraph.adapter import GraphAdapter
            from agent_hedge.adapters.langgraph.graphs import Unknown

            self._graph_adapter = GraphAdapter(
                effects=getattr(self, "registry", None) or Unknown(),
                bar=self.bar,
                open_run=lambda **settings: self.run(**settings).opened,
                open_lane=self._node_lane,
                portal=self._background,
                in_thread=in_thread,
                is_meaningful=is_meaningful,
            )
        return self._graph_adapter

    def _node_lane(
        self,
        name: str,
        *,
        effect: object,
        targets: Iterable[Target[Any] | str] | Target[Any] | None = None,
        policy: HedgePolicy | None = None,
        timeout: float | None = None,
        recover: type[BaseException] | tuple[type[BaseException], ...] = (),
        commit_on_token: bool = True,
    ) -> Lane:
        from agent_hedge.adapters.langgraph.raced import passing_control_flow

        check_text(name, "key", KEY_LIMIT, empty=False)
        return self._lane(
            StepKey(node=name),
            (Target(name[:NAME_LIMIT], copies=2),) if targets is None else as_targets(targets),
            effect=_checked_effect(effect),
            policy=policy,
            timeout=timeout,
            nodes=None if policy is None else {},
            classifier=passing_control_flow(_widened(recover)),
            commit_on_token=commit_on_token,
        )

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
        for target in targets:
            self._targets.setdefault(target.name, target)
            self._keys[key, target.name] = None
        chosen = _checked_policy("policy", policy) if policy is not None else self.policy
        looks = (*self._looks, DrainGate(context_of))
        return Lane(
            key,
            loops=self._loops,
            policy=chosen,
            chooser=self._chooser,
            candidates=places(targets),
            latency=self.book,
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
            effect=effect,
            classifier=classifier,
            timeout=_checked_seconds("timeout", timeout),
            commit_on_token=commit_on_token,
        )

    # --- runs -----------------------------------------------------------------------------------------------------

    def run(
        self,
        *,
        key: str = "",
        deadline: float | None = None,
        extra_attempts: int | None = None,
        steps: int | None = None,
        graph: str = "",
        tenant: str = "",
        principal: str = "",
        priority: str = "interactive",
    ) -> RunScope:
        """Open a run: ``async with hedger.run(deadline=30.0) as run`` (a plain ``with`` outside a loop).

        Args:
            key: names the run, for draws and reports.
            deadline: seconds from now, for all steps together; 0 is already past.
            extra_attempts: hedges of the whole run (default: a rail for the declared `steps`, else for 20).
            steps: how many LLM steps the run will have in all; undeclared, it is learnt from ended runs of `graph`.
            priority: ``interactive``, or ``batch``, which never hedges.

        A run inside a run shares the outer one's purses and cannot outlive its deadline.
        """
        check_text(key, "key", KEY_LIMIT)
        if priority not in ("interactive", "batch"):
            raise ConfigurationError(f"priority must be 'interactive' or 'batch', got {priority!r}")
        seconds = self.deadline if deadline is None else _checked_seconds("deadline", deadline)
        declared = _checked_count("steps", steps)
        purse = _checked_count("extra_attempts", extra_attempts)
        if purse is None:
            purse = self.extra_attempts
        if purse is None:
            purse = rail(declared or TYPICAL_STEPS, self.budget.share)
        clock = _clock()
        run = Run(
            key,
            clock=clock,
            deadline=clock() + seconds,
            extra_attempts=purse,
            tenant=tenant,
            principal=principal,
            priority=priority,
            parent=run_scope.get(),
            declared_steps=declared,
            graph=graph,
        )
        return RunScope(run, self._loops, self._background, self._run_ended)

    def _run_ended(self, run: Run) -> None:
        if self.planner is not None:
            self.planner.ended(run)

    # --- learning and looking -------------------------------------------------------------------------------------

    def prime(self, source: str | Path | LatencyBook, *, key: str | None = None, target: str | None = None) -> None:
        """Learn from a CSV of latencies (column ``ttft_ms`` or ``ttft_s``) or from another book, for a warm start."""
        if isinstance(source, LatencyBook):
            self.book.merge(source)
        else:
            self.book.prime_csv(source, _clock()(), key=StepKey(node=key) if key else None, target=target)

    def status(self) -> dict[str, Any]:
        """Return what is known now: mode, counts of the last 60 minutes, learning per key and target."""
        now = _clock()()
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

    # --- closing --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close the store and stop the background loop; open calls of it are cancelled. The hedger stays usable."""
        if self._opened_stores is not None and self._background.running:
            self._background.call(self._opened_stores.close)
        self._background.close()

    async def aclose(self) -> None:
        """Join the losers of the running loop (at most the grace), then close."""
        await self._loops.current().reaper.join()
        self.close()

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


def _clock() -> Callable[[], float]:
    """Return the clock of the running loop, else the one asyncio loops use."""
    if in_trio():
        import trio

        return trio.lowlevel.current_clock().current_time  # unlike `trio.current_time`, for any thread
    try:
        return asyncio.get_running_loop().time
    except RuntimeError:
        return time.monotonic


def _checked_judge(name: str, judge: object, *, usable: bool, instead: str) -> None:
    """Refuse what cannot be called, and a judge of results for a generator, or of items for anything else."""
    if not callable(judge):
        raise ConfigurationError(f"{name} must be a function that returns whether it is so, got {judge!r:.80}")
    if judge is not accept_all and not usable:
        raise ConfigurationError(f"{name}={judge!r:.80} would never be asked for this function; give {instead}=.")


def _widened(recover: type[BaseException] | tuple[type[BaseException], ...]) -> Classifier:
    if not recover:
        return classify
    types = recover if isinstance(recover, tuple) else (recover,)
    for kind in types:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigurationError(f"recover takes exception types, got {kind!r}")

    def widened(error: BaseException, /) -> Failure:
        return Failure.RECOVERABLE if isinstance(error, types) else classify(error)

    return widened


def _stores_of(store: str | None, schema: str | None) -> Stores:
    if store is None:
        from agent_hedge.stores.memory import memory_stores

        return memory_stores()
    from agent_hedge.stores.sql import sql_stores

    return sql_stores(store, schema=schema)


def _check_store(store: object) -> None:
    if store is None:
        return
    if not isinstance(store, str):
        raise ConfigurationError(f"store must be a database URL or None, got {store!r:.80}")
    scheme = store.partition("://")[0] if "://" in store else store
    if scheme not in STORE_SCHEMES:
        raise ConfigurationError(f"store has the unknown scheme {scheme!r}; known: {', '.join(STORE_SCHEMES)}")


def _checked_effect(effect: object) -> Effect:
    try:
        return Effect(effect)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(Effect)
        raise ConfigurationError(f"effect must be one of {known}, got {effect!r}") from None


def _checked_policy(name: str, policy: object) -> HedgePolicy:
    if not callable(getattr(policy, "next_launch_at", None)) or isinstance(policy, type):
        raise ConfigurationError(f"{name} must be a policy such as Quantile() or Never(), got {policy!r}")
    return policy  # type: ignore[return-value]


def _checked_budget(budget: object) -> FleetBudget:
    if budget is None:
        return FleetBudget()
    if not isinstance(budget, FleetBudget):
        raise ConfigurationError(f"budget must be a FleetBudget, got {budget!r:.80}")
    return budget


def _checked_observers(observers: Iterable[Observer]) -> list[Observer]:
    listed = list(observers)
    for observer in listed:
        if not callable(getattr(observer, "on_event", None)) or isinstance(observer, type):
            raise ConfigurationError(f"observers must each have an on_event method, got {observer!r:.80}")
    return listed


def _checked_seconds(name: str, seconds: object) -> float:
    """Return a finite number of seconds >= 0; infinity stands for None."""
    if seconds is None:
        return math.inf
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < math.inf:
        raise ConfigurationError(f"{name} must be a finite number of seconds >= 0, got {seconds!r}")
    return float(seconds)


def _checked_count(name: str, count: object) -> int | None:
    if count is None:
        return None
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ConfigurationError(f"{name} must be a whole number >= 0, got {count!r}")
    return count
