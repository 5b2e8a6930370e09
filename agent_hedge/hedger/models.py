"""Chat models: `Hedger.chat_model`, and `middleware` for agents that bring their own."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack

from agent_hedge.core.ports import Gate, HedgePolicy, Refused
from agent_hedge.core.step import Effect, StepKey
from agent_hedge.engine.lane import Lane
from agent_hedge.errors import ConfigurationError
from agent_hedge.hedger.graphs import Graphs
from agent_hedge.hedger.settings import ModelSettings, widening
from agent_hedge.hedger.tools import Tools
from agent_hedge.targets import Target

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage

    from agent_hedge.adapters.langchain.model import HedgedChatModel
    from agent_hedge.adapters.langgraph.agent_middleware import HedgeMiddleware


class Models(Graphs, Tools):
    """Hedges chat models."""

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
        from agent_hedge.adapters.langchain.described import describe

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
                classifier=widening(recover),
                commit_on_token=commit_on_token,
                barred=barred,
                extra_gates=extra_gates,
                context_of=lambda: ambient_context(lambda config: self._graphs.graphs.context(config)),
                run_of=lambda: ambient_run(lambda: self._graphs.graphs.run()),
            )

        model = chat_model(
            models,
            open_lane,
            self._background,
            family=family,
            parity=parity,
            accept=accept,
            accept_on=accept_on,
            trigger=trigger,
            keeps_content=self._observing.content,
            effects=self.registry,
        )
        for member in model._members:
            self._observing.described[member.name] = describe(member.model, member.bound)
            self._clients.add(member.copies)
        return model

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

        Raises:
            ConfigurationError: a value or a member that cannot be meant, named.
        """
        from agent_hedge.adapters.langgraph.agent_middleware import GuardedHedgeMiddleware, HedgeMiddleware

        if not targets:
            raise ConfigurationError("middleware() needs at least one further model; it was given none")
        if not isinstance(tools, bool):
            raise ConfigurationError(f"tools must be True or False (the agent has its tools), got {tools!r:.80}")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what differs from the primary is said when the primary is known
            self.chat_model(*targets, **settings)  # what cannot be meant is an error now, not at the first call

        def hedge(model: BaseChatModel) -> HedgedChatModel:
            return self.chat_model(model, *targets, **settings)

        if tools:
            return GuardedHedgeMiddleware(hedge, exit_behavior, self.guard_tool_call, self.aguard_tool_call)
        return HedgeMiddleware(hedge, exit_behavior)
