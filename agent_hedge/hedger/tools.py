"""Tools behind the fence and the ledger: `guard_tools`, `tool_node`, `once` (R10, R11)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from agent_hedge.core.events import Claimed
from agent_hedge.core.scope import current_attempt, current_run
from agent_hedge.hedger.base import Base, running_clock

if TYPE_CHECKING:
    from langchain_core.messages import ToolMessage
    from langchain_core.tools import BaseTool
    from langgraph.prebuilt import ToolNode
    from langgraph.prebuilt.tool_node import ToolCallRequest
    from langgraph.types import Command

    from agent_hedge.adapters.langgraph.guard import Guard

P = ParamSpec("P")
R = TypeVar("R")


class Tools(Base):
    """Guards tools."""

    def guard_tools(self, tools: Iterable[BaseTool | Callable[..., Any]]) -> list[BaseTool]:
        """Return copies of LangChain tools whose own body asks the fence and the ledger first (R10, R11).

        Name, schema, description and injected arguments stay; a plain function becomes a tool. What a tool does is
        said by `tool_effect` (the registry then hears of it, as from `registry.declare`) or by the registry;
        undeclared counts as once.
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
        self,
        fn: Callable[P, R],
        /,
        *,
        key: str | Callable[..., object] | None = None,
        scope: str | None = None,
        name: str | None = None,
    ) -> Callable[P, R]: ...
    @overload
    def once(
        self,
        /,
        *,
        key: str | Callable[..., object] | None = None,
        scope: str | None = None,
        name: str | None = None,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def once(
        self,
        fn: Callable[..., Any] | None = None,
        /,
        *,
        key: str | Callable[..., object] | None = None,
        scope: str | None = None,
        name: str | None = None,
    ) -> Any:
        """Return `fn` with every call run at most once, through the ledger.

        `key` names the effect: a parameter, or a function of the arguments, within `scope` (``run``, ``tenant``,
        ``global``). Without it the node or task of LangGraph around the call does. `name` is what the key belongs to
        and the ledger shows; without it the function's own. Without a function: a decorator.
        """
        if fn is None:
            return lambda decorated: self._guard.once(decorated, key=key, scope=scope, name=name)
        return self._guard.once(fn, key=key, scope=scope, name=name)

    @property
    def _guard(self) -> Guard:
        with self._making:
            if self._tool_guard is None:
                from agent_hedge.adapters.langgraph.guard import Guard
                from agent_hedge.tools.guarded import Guarded
                from agent_hedge.tools.ledger import Ledger

                self._ledger = ledger = Ledger(self._shared.stores.claims, **self._ledger_settings)
                self._tool_guard = Guard(
                    Guarded(ledger, self._background, self._tell_claim),
                    entries=self.registry,
                    declare=self.registry.spec_of,
                    on_in_doubt=self._on_in_doubt,
                )
            return self._tool_guard

    def _tell_claim(self, tool: str, answer: str) -> None:
        """Let the observers hear what the ledger has answered."""
        if not self._funnel:
            return
        attempt, run = current_attempt(), current_run()
        self._funnel.tell(
            Claimed(
                at=running_clock()(),
                tool=tool,
                answer=answer,
                attempt=None if attempt is None else attempt.attempt,
                run=None if run is None else id(run),
            )
        )
