"""What the caller of a guarded tool hears when its call is not run, or may have been (R11)."""

from __future__ import annotations

from collections.abc import Sequence

from agent_hedge.core.stores import Claim
from agent_hedge.errors import EffectBarred, EffectInDoubt, EffectStillRunning
from agent_hedge.tools.calls import Call
from agent_hedge.tools.torn import ABANDONED


def check_same(call: Call, args_fingerprint: str, principal: str) -> None:
    """Raise `EffectBarred` where the key was claimed with other arguments, or for another principal."""
    if principal != call.site.principal:
        raise EffectBarred(
            f"This call of {call.tool} was claimed for another principal; nothing was dispatched.",
            key=call.key,
            tool=call.tool,
            reason="principal",
        )
    if args_fingerprint != call.args_fingerprint:
        raise EffectBarred(
            f"{call.tool} was called before under the same key with other arguments; nothing was dispatched.",
            key=call.key,
            tool=call.tool,
            reason="arguments",
        )


def in_doubt(call: Call, row: Claim, why: str, missing: Sequence[Claim] = ()) -> EffectInDoubt:
    """The call may repeat what has happened; it was not run. `missing`: claims that its history does not know."""
    return EffectInDoubt(
        f"Whether {call.tool} has happened is not known: {why}. It was not run now. {_settle(call)}",
        key=call.key,
        tool=call.tool,
        owner=row.owner,
        age=row.age,
        reason=why,
        abandoned=row.note == ABANDONED,
        claim=row,
        missing=tuple(missing),
    )


def raised(call: Call, error: BaseException) -> EffectInDoubt:
    """The call was run, and its tool has raised: it may have happened before that."""
    why = f"it raised {type(error).__name__}"
    return EffectInDoubt(
        f"Whether {call.tool} has happened is not known: {why}. {_settle(call)}",
        key=call.key,
        tool=call.tool,
        owner="",
        age=0.0,
        reason=f"the tool raised {type(error).__name__}",
        abandoned=False,
        claim=None,
        missing=(),
    )


def still_running(call: Call, owner: str, age: float) -> EffectStillRunning:
    """The same call runs elsewhere, and there is no more time to wait for its result. `age` in seconds."""
    return EffectStillRunning(
        f"{call.tool} is still running elsewhere and the deadline has passed; it was not run again.",
        key=call.key,
        tool=call.tool,
        owner=owner,
        age=age,
        reason="running",
        abandoned=False,
        claim=None,
        missing=(),
    )


def _settle(call: Call) -> str:
    return f"Settle it with: agent-hedge ledger resolve {call.key}"
