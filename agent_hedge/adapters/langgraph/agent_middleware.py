"""`hedger.middleware`: hedging for a `create_agent` whose model is chosen elsewhere (its own model, or at run time).

It stands last in the list, so that it is innermost: a middleware that counts or limits model calls then sees one call,
and the model that others chose for the request is the primary. `create_agent(model=hedger.chat_model(...))` is
preferred; where the model is hedged already, this changes nothing.
"""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Literal

try:
    from langchain.agents.middleware import AgentMiddleware
    from langchain.agents.middleware.types import ModelRequest, ModelResponse, ToolCallRequest
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError("middleware() needs langchain: pip install langchain", name="langchain") from missing
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage
from langgraph.errors import GraphBubbleUp

from agent_hedge.adapters.langgraph.walk import HEDGED
from agent_hedge.errors import ConfigurationError

Hedge = Callable[[BaseChatModel], BaseChatModel]
"""Returns the hedged model of a primary."""
GuardTool = Callable[[ToolCallRequest, Callable[[ToolCallRequest], Any]], Any]
AsyncGuardTool = Callable[[ToolCallRequest, Callable[[ToolCallRequest], Awaitable[Any]]], Awaitable[Any]]

LIMIT = 64
"""Primaries whose hedged models are kept: an agent has one, or a handful that other middlewares choose from."""


class HedgeMiddleware(AgentMiddleware[Any, Any]):
    """Hedges the model calls of an agent. Calls the handler once: near ties cannot write a state twice."""

    __agent_hedge_middleware__ = True

    def __init__(self, hedge: Hedge, exit_behavior: Literal["error", "end"]) -> None:
        super().__init__()
        if exit_behavior not in ("error", "end"):
            raise ConfigurationError(f"exit_behavior must be 'error' or 'end', got {exit_behavior!r}")
        self._hedge = hedge
        self._ends = exit_behavior == "end"
        self._hedged: OrderedDict[int, tuple[BaseChatModel, BaseChatModel]] = OrderedDict()

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ModelResponse[Any] | AIMessage:
        try:
            return handler(self._with_hedged(request))
        except GraphBubbleUp:
            raise
        except Exception as error:
            if not self._ends:
                raise
            return ending(error)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ModelResponse[Any] | AIMessage:
        try:
            return await handler(self._with_hedged(request))
        except GraphBubbleUp:
            raise
        except Exception as error:
            if not self._ends:
                raise
            return ending(error)

    def _with_hedged(self, request: ModelRequest[Any]) -> ModelRequest[Any]:
        model = request.model
        if getattr(type(model), HEDGED, False):
            return request
        known = self._hedged.get(id(model))
        if known is None:
            known = self._hedged[id(model)] = (model, self._hedged_or_plain(model))
            if len(self._hedged) > LIMIT:
                self._hedged.popitem(last=False)
        return request if known[1] is model else request.override(model=known[1])

    def _hedged_or_plain(self, model: BaseChatModel) -> BaseChatModel:
        """Return the model hedged, or as it is where it cannot be: others have chosen it, and it works without us."""
        try:
            return self._hedge(model)
        except ConfigurationError as error:
            name = type(model).__name__
            warnings.warn(f"the {name} of an agent cannot be hedged, and is called as it is: {error}", stacklevel=2)
            return model


def ending(error: Exception) -> AIMessage:
    """Return the message that ends the agent: it holds nothing of the error but its type (R18)."""
    return AIMessage(f"The model could not answer ({type(error).__name__}).")


class GuardedHedgeMiddleware(HedgeMiddleware):
    """Also puts the tools behind the fence and the ledger."""

    def __init__(
        self, hedge: Hedge, exit_behavior: Literal["error", "end"], guard: GuardTool, aguard: AsyncGuardTool
    ) -> None:
        super().__init__(hedge, exit_behavior)
        self._guard = guard
        self._aguard = aguard

    @property
    def name(self) -> str:
        return HedgeMiddleware.__name__

    def wrap_tool_call(self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Any]) -> Any:
        return self._guard(request, handler)

    async def awrap_tool_call(
        self, request: ToolCallRequest, handler: Callable[[ToolCallRequest], Awaitable[Any]]
    ) -> Any:
        return await self._aguard(request, handler)
