"""Makes a hedged chat model from what the user gave: checks the members, warns of what differs, opens the lanes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, Protocol

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage

from agent_hedge.adapters.langchain.judge import Accepts
from agent_hedge.adapters.langchain.limits import RateLimitGate
from agent_hedge.adapters.langchain.members import Member, as_member
from agent_hedge.adapters.langchain.model import HedgedChatModel, Lanes
from agent_hedge.adapters.langchain.parity import differences, tool_support
from agent_hedge.adapters.langchain.private import first_line
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import EffectSource, Gate, Portal, Refused
from agent_hedge.core.step import StepKey
from agent_hedge.engine.lane import Lane
from agent_hedge.errors import ConfigurationError
from agent_hedge.targets import Target

NODE = "chat"
"""The step key of calls outside any graph node."""

_CARRIED = ("callbacks", "tags", "metadata", "cache")
_VERSIONS = ("lc_versions",)


class OpenLane(Protocol):
    """Opens a lane for these targets with the hedger's settings."""

    def __call__(
        self,
        key: StepKey,
        targets: Sequence[Target[Any]],
        *,
        commit_on_token: bool,
        barred: Refused | None,
        extra_gates: Sequence[Gate],
    ) -> Lane: ...


def chat_model(
    given: Sequence[object],
    open_lane: OpenLane,
    portal: Portal,
    *,
    family: str | None,
    parity: Literal["warn", "strict"],
    accept: Callable[[AIMessage], bool] | Literal["schema"] | None,
    accept_on: Literal["final"] | None,
    trigger: Literal["first", "total"],
    keeps_content: bool = False,
    effects: EffectSource | None = None,
) -> HedgedChatModel:
    """Return the hedged model over `given`; see `Hedger.chat_model`."""
    _check_choice("parity", parity, ("warn", "strict"))
    _check_choice("accept_on", accept_on, (None, "final"))
    _check_choice("trigger", trigger, ("first", "total"))
    if family is not None and (not isinstance(family, str) or not family):
        raise ConfigurationError(f"family must be a name, got {family!r}")
    if accept is not None and accept != "schema" and not callable(accept):
        raise ConfigurationError(f"accept must be 'schema' or a function of an AIMessage, got {accept!r}")
    if accept_on is not None and accept is None:
        raise ConfigurationError(f"accept_on={accept_on!r} says when to ask accept=, and there is none")
    if not given:
        raise ConfigurationError("chat_model() needs at least one model; it was given none")
    members = _named_apart([as_member(one, _init) for one in given])
    _check_members(members, family, parity)
    for member in members:
        member.copies.check()
    targets = [member.target for member in members]
    if len(members) == 1 and members[0].target.copies == 1:
        warnings.warn(
            f"chat_model() has one target with one copy ({members[0].name!r}): there is nowhere to hedge to. "
            "Give a second model, or Target(..., copies=n) for n places behind one address.",
            stacklevel=3,
        )
    model_name = str(members[0].model._get_ls_params(**members[0].bound).get("ls_model_name") or members[0].name)
    key = StepKey(node=NODE, model=model_name)
    gates = [RateLimitGate(members)] if any(member.model.rate_limiter is not None for member in members) else []
    unseen = (
        None if trigger == "total" else Refused(Reason.NO_FIRST_CHUNK, "say trigger='total' to hedge whole answers")
    )

    def lane(*, commit_on_token: bool, barred: Refused | None = None) -> Lane:
        return open_lane(key, targets, commit_on_token=commit_on_token, barred=barred, extra_gates=gates)

    lanes = Lanes(lane(commit_on_token=True), lane(commit_on_token=False), lane(commit_on_token=False, barred=unseen))
    return HedgedChatModel.over(
        members,
        lanes,
        portal,
        judge=Accepts(accept) if callable(accept) else None,
        buffers=accept_on == "final",
        checks_schema=accept == "schema",
        keeps_content=keeps_content,
        effects=effects,
    )


def _init(name: str) -> BaseChatModel:
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise ConfigurationError(
            f"a member given by name ({name!r}) needs langchain's init_chat_model: pip install langchain"
        ) from error
    try:
        model: BaseChatModel = init_chat_model(name)
    except Exception as error:  # an unknown provider, a package or a key that is missing: each has its own type
        raise ConfigurationError(f"member {name!r} cannot be made: {first_line(error)}") from error
    return model


def _named_apart(members: Sequence[Member]) -> list[Member]:
    """Refuse two targets of one name; number the default names that collide."""
    seen: dict[str, int] = {}
    result = []
    for member in members:
        count = seen[member.name] = seen.get(member.name, 0) + 1
        if count > 1:
            if member.declared:
                raise ConfigurationError(f"two targets have the name {member.name!r}")
            member = Member(Target(f"{member.name}#{count}"), member.model, member.bound)
        result.append(member)
    return result


def _check_members(members: Sequence[Member], family: str | None, parity: str) -> None:
    primary = members[0]
    for member in members[1:]:
        if tool_support(member) != tool_support(primary):
            with_tools, without = (primary, member) if tool_support(primary) else (member, primary)
            raise ConfigurationError(f"member {with_tools.name!r} supports tools and {without.name!r} does not")
        for carried in _CARRIED:
            value = _carries(member, carried)
            if value is not None and value != _carries(primary, carried):
                raise ConfigurationError(
                    f"member {member.name!r} carries {carried} of its own, which would never be heard: "
                    "put them on the primary, whose are the hedged model's"
                )
    found = list(differences(members, family=family))
    if found and parity == "strict":
        raise ConfigurationError("members differ: " + "; ".join(found))
    for difference in found:
        warnings.warn(f"members of a hedged model differ in {difference}", stacklevel=4)


def _carries(member: Member, name: str) -> Any:
    value = getattr(member.model, name, None)
    if name == "metadata" and value:  # what the packages themselves put there is no setting
        return {key: part for key, part in value.items() if key not in _VERSIONS} or None
    return value


def _check_choice(name: str, value: object, known: Sequence[object]) -> None:
    if value not in known:
        raise ConfigurationError(f"{name} must be one of {', '.join(map(repr, known))}, got {value!r}")
