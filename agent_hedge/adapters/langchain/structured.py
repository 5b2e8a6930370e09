"""Structured output over several members: each bound in its own way, each answer parsed by its own parser.

A provider's `with_structured_output` returns ``bound model | parser`` (with `include_raw`, the bound model inside a
map). The binding is taken out, given to the member, and the rest becomes that member's parser. With ``accept="schema"``
the parsers also judge: an answer that does not parse is a rejected answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import (
    Runnable,
    RunnableBinding,
    RunnableConfig,
    RunnableLambda,
    RunnableParallel,
    RunnableSequence,
)

from agent_hedge.adapters.langchain.call import METADATA
from agent_hedge.adapters.langchain.judge import Parses
from agent_hedge.errors import ConfigurationError

if TYPE_CHECKING:
    from agent_hedge.adapters.langchain.members import Member
    from agent_hedge.adapters.langchain.model import HedgedChatModel


def structured(model: HedgedChatModel, schema: Any, *, include_raw: bool, **kwargs: Any) -> Runnable[Any, Any]:
    """Return the hedged model bound to `schema`, followed by the parser of whichever member answered."""
    members = model._members
    chains = [member.model.with_structured_output(schema, include_raw=include_raw, **kwargs) for member in members]
    bindings = [_binding(chain, member) for chain, member in zip(chains, members, strict=True)]
    parsers = {member.name: _together(chain, _as_it_is) for chain, member in zip(chains, members, strict=True)}
    judge = Parses(parsers, include_raw=include_raw) if model._checks_schema else None
    bound = model.bound_as([dict(binding.kwargs) for binding in bindings], judge)
    if all(type(member.model) is type(members[0].model) for member in members):
        return _together(chains[0], bound)
    primary = members[0].name

    def parser_of(message: AIMessage) -> Runnable[Any, Any]:
        return parsers[message.response_metadata.get(METADATA, {}).get("target", primary)]

    def parse(message: AIMessage, config: RunnableConfig) -> Any:
        return parser_of(message).invoke(message, config)

    async def aparse(message: AIMessage, config: RunnableConfig) -> Any:
        return await parser_of(message).ainvoke(message, config)

    return bound | RunnableLambda(parse, aparse)


_as_it_is: Runnable[Any, Any] = RunnableLambda(lambda message: message)


def _binding(chain: Runnable[Any, Any], member: Member) -> RunnableBinding[Any, Any]:
    """Return the bound model that a structured-output chain begins with."""
    first = chain.first if isinstance(chain, RunnableSequence) else chain
    if isinstance(first, RunnableParallel):
        first = first.steps__.get("raw", first)
    if not isinstance(first, RunnableBinding):
        raise ConfigurationError(
            f"member {member.name!r} ({type(member.model).__name__}) builds structured output in a way "
            "that cannot be hedged: its chain does not begin with its bound model"
        )
    return first


def _together(chain: Runnable[Any, Any], model: Runnable[Any, Any]) -> Runnable[Any, Any]:
    """Return the chain with another model in the place of its bound one."""
    if not isinstance(chain, RunnableSequence):
        return model
    first = chain.first
    head: Runnable[Any, Any] = model
    if isinstance(first, RunnableParallel):
        head = RunnableParallel({**first.steps__, "raw": model})
    return RunnableSequence(head, *chain.middle, chain.last, name=chain.name)
