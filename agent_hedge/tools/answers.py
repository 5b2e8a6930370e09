"""What a person, or a verifier, says of a call in doubt."""

from __future__ import annotations

from typing import Literal

from agent_hedge.core.stores import Claim, ClaimState, ClaimStore
from agent_hedge.errors import ConfigurationError
from agent_hedge.tools.torn import ABANDONED

Answer = Literal["happened", "did_not_happen", "abandon"]
ANSWERS: tuple[Answer, ...] = ("happened", "did_not_happen", "abandon")

HAPPENED = "a person: it happened"
DID_NOT_HAPPEN = "a person: it did not happen"


async def resolve(claims: ClaimStore, key: str, answer: Answer) -> Claim:
    """Settle a claim in doubt, or one whose owner is dead. Raises `ConfigurationError` where nothing is open."""
    if answer not in ANSWERS:
        raise ConfigurationError(f"an answer is one of {', '.join(ANSWERS)}")
    row = await claims.get(key)
    if row is None:
        raise ConfigurationError("there is no such claim")
    if row.state is ClaimState.RUNNING:
        row = await claims.mark_in_doubt(key) or row
    if row.state is not ClaimState.IN_DOUBT:
        raise ConfigurationError(f"the claim is {row.state.value}: there is nothing to resolve")
    state, note = {
        "happened": (ClaimState.DONE, HAPPENED),
        "did_not_happen": (ClaimState.FAILED, DID_NOT_HAPPEN),
        "abandon": (ClaimState.IN_DOUBT, ABANDONED),
    }[answer]
    if not await claims.settle(key, row.attempt_id, state, note=note):
        raise ConfigurationError("the claim was settled by somebody else meanwhile: look at it again")
    if row.thread:
        await claims.confirm([other.effect_key for other in await claims.of_thread(row.thread)])
    return await claims.get(key) or row
