"""What members must have in common to be copies of one another: their answers must be exchangeable.

Equal settings and an equal seed are not equal answers: decoding is not deterministic. Parity says that the members
were asked for the same thing, no more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel

from agent_hedge.adapters.langchain.members import Member

_SETTINGS = ("temperature", "top_p", "seed", "max_tokens", "stop")


def differences(members: Sequence[Member], *, family: str | None = None) -> Iterator[str]:
    """Yield one line per setting in which a member differs from the primary, naming both values.

    A declared `family` stands for the model's name where the same model has different names.
    """
    primary = members[0]
    for member in members[1:]:
        if family is None:
            name, other = _model_name(primary), _model_name(member)
            if name != other:
                yield f"model: {primary.name} has {name!r}, {member.name} has {other!r} (the same? say family=)"
        for setting in _SETTINGS:
            mine, theirs = _setting(primary, setting), _setting(member, setting)
            if mine != theirs:
                yield f"{setting}: {primary.name} has {mine!r}, {member.name} has {theirs!r}"
        for bound in ("response_format", "tools", "tool_choice"):
            mine, theirs = primary.bound.get(bound), member.bound.get(bound)
            if mine != theirs and type(primary.model) is type(member.model):
                yield f"{bound}: bound differently on {primary.name} and {member.name}"


def tool_support(member: Member) -> bool:
    """Return whether tools can be bound to the member."""
    return type(member.model).bind_tools is not BaseChatModel.bind_tools


def _model_name(member: Member) -> str:
    return str(member.model._get_ls_params(**member.bound).get("ls_model_name") or "")


def _setting(member: Member, name: str) -> Any:
    if name in member.bound:
        return member.bound[name]
    params = member.model._get_ls_params()
    value = params.get(f"ls_{name}", getattr(member.model, name, None))
    return tuple(value) if isinstance(value, list) else value
