"""LangGraph: nodes, tasks and whole graphs, and what `explain` says of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, Unpack, overload

from agent_hedge.adapters.functions import in_thread
from agent_hedge.core.checks import KEY_LIMIT, NAME_LIMIT, check_text
from agent_hedge.core.ports import HedgePolicy
from agent_hedge.core.scope import Run
from agent_hedge.core.step import StepKey
from agent_hedge.engine.lane import Lane
from agent_hedge.hedger.runs import Runs
from agent_hedge.hedger.settings import NodeSettings, checked_effect, checked_policy, widening
from agent_hedge.targets import Target, as_targets

if TYPE_CHECKING:
    from agent_hedge.adapters.langgraph.adapter import GraphAdapter
    from agent_hedge.adapters.langgraph.explain import Graph
    from agent_hedge.adapters.langgraph.report import Explanation

P = ParamSpec("P")
R = TypeVar("R")
B = TypeVar("B")
N = TypeVar("N")

_NO_ACTION = object()
"""`node` is called as a decorator; None is a mistake, and must be said to be one."""


class Graphs(Runs):
    """Wraps nodes and explains graphs."""

    @overload
    def node(self, action: N, /, **settings: Unpack[NodeSettings]) -> N: ...
    @overload
    def node(self, /, **settings: Unpack[NodeSettings]) -> Callable[[N], N]: ...
    def node(self, action: Any = _NO_ACTION, /, **settings: Unpack[NodeSettings]) -> Any:
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
        if (policy := settings.get("policy")) is not None:
            checked_policy("policy", policy)
        if (key := settings.get("key")) is not None:
            check_text(key, "key", KEY_LIMIT, empty=False)
        if action is _NO_ACTION:
            return lambda decorated: self._graphs.node(decorated, **settings)
        return self._graphs.node(action, **settings)

    def task(self, fn: Callable[P, R], /) -> Callable[P, R]:
        """Return the body of a ``@task`` or ``@entrypoint`` that tells its hedged models where they stand.

        It stands below the decorator of LangGraph: ``@task`` on top of ``@hedger.task``.
        """
        wrapped: Callable[P, R] = self._graphs.node(fn)
        return wrapped

    def wrap_graph(self, builder: B) -> B:
        """Wrap every node of a `StateGraph` that holds a hedged model or is declared, in place, and return it.

        A node is declared by ``metadata={"agent_hedge": {"unit": "node", ...}}``, with the settings of `node`. The
        others run as they are; settings of a run in the configuration are read before the first of them. The graph
        counts as shown (`explain`). Wrap before compiling.

        Raises:
            ConfigurationError: what is not a builder, a declaration that cannot be meant; nothing is wrapped then.
        """
        self._shared.settle()
        self._graphs.wrap_graph(builder, self.node)  # type: ignore[arg-type]
        return builder

    def explain(self, graph: Graph, *, bar: Literal["unit", "downstream"] | None = None) -> Explanation:
        """Explain what each node of a graph may do, before it runs: hedgeable or barred, why, and which tools.

        The graph is remembered: under ``bar="downstream"`` only nodes of graphs that were shown are hedged.
        """
        self._shared.settle()
        return self._graphs.graphs.explain(graph, bar)

    @property
    def _graphs(self) -> GraphAdapter:
        if self._graph_adapter is None:
            from agent_hedge.adapters.langchain.meaning import is_meaningful
            from agent_hedge.adapters.langgraph.adapter import GraphAdapter

            self._graph_adapter = GraphAdapter(
                effects=self.registry,
                spec_of=self.registry.spec_of,
                bar=self.bar,
                open_run=self._open_run,
                open_lane=self._node_lane,
                portal=self._background,
                in_thread=in_thread,
                is_meaningful=is_meaningful,
            )
        return self._graph_adapter

    def _open_run(self, **settings: Any) -> Run:
        run = self.run(**settings).opened
        run.unscoped = True
        return run

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
            effect=checked_effect(effect),
            policy=policy,
            nodes=None if policy is None else {},
            timeout=timeout,
            classifier=passing_control_flow(widening(recover)),
            commit_on_token=commit_on_token,
        )
