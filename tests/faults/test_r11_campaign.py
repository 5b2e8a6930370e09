"""The product's claim (C3): 10,000 seeded schedules of crashes, cancels, zombies, lost replies and torn history.

0 duplicates, 0 payments reported done that were never made, and every last call has a typed answer. Beside it stands
what that costs: payments that nobody made and calls that end in doubt are counted too.

A campaign that finds nothing in a broken ledger is worth nothing: each of the planted bugs below has to be found.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest

from agent_hedge.core.stores import Claim, ClaimState, ClaimStore
from agent_hedge.errors import StoreUnavailable
from agent_hedge.testing.clock import run_virtual
from agent_hedge.tools import fence, torn
from agent_hedge.tools.calls import Call, Permit, Replay
from agent_hedge.tools.ledger import Ledger
from agent_hedge.tools.site import Frame
from tests.faults.world import LEASE_S, Store, World, schedule, verdict

SCHEDULES = 10_000
ENOUGH = 2_000
"""Schedules within which a planted bug has to be found."""

Make = Callable[[ClaimStore], Ledger]


def shipped(claims: ClaimStore) -> Ledger:
    return Ledger(claims, lease=LEASE_S)


def play(seed: int, make: Make = shipped) -> World:
    return run_virtual(schedule, seed, make)


def chunk(seeds: range) -> tuple[list[str], Counter[tuple[str, int, str]]]:
    wrong, seen = [], Counter[tuple[str, int, str]]()
    for seed in seeds:
        world = play(seed)
        if said := verdict(world):
            wrong.append(f"seed {seed}: {said}")
        seen[world.kind, world.happened, world.lines[-1].outcome] += 1
    return wrong, seen


def test_r11_ten_thousand_schedules(record_property: Callable[[str, object], None]) -> None:
    workers = min(4, os.cpu_count() or 1)
    parts = [range(first, min(first + 250, SCHEDULES)) for first in range(0, SCHEDULES, 250)]
    wrong: list[str] = []
    seen: Counter[tuple[str, int, str]] = Counter()
    with ProcessPoolExecutor(workers) as pool:
        for bad, found in pool.map(chunk, parts):
            wrong += bad
            seen += found
    for (kind, payments, outcome), count in sorted(seen.items()):
        record_property(f"{kind}: {payments} made, {outcome}", count)
    assert wrong == []
    assert sum(seen.values()) == SCHEDULES
    # What the other side remembers is paid in the end, always; what it does not is paid at most once, mostly.
    assert all(payments == 1 for kind, payments, _ in seen if kind == "keyed by key")
    once = {key: count for key, count in seen.items() if key[0] != "keyed by key"}
    assert sum(count for (_, payments, _), count in once.items() if payments == 1) > 0.6 * sum(once.values())


# --- planted bugs ---------------------------------------------------------------------------------------------------


class LooksThenInserts(Store):
    """The claim is looked up first, and then written."""

    async def claim(self, claim: Claim, *, lease: float) -> Claim:
        standing: Claim | None = await self.__getattr__("get")(claim.effect_key)
        if standing is not None:
            return standing
        rows = self._process.world.claims._rows
        await asyncio.sleep(0.002)
        rows.pop(claim.effect_key, None)
        row: Claim = await self.__getattr__("claim")(claim, lease=lease)
        return row


def looks_then_inserts(claims: ClaimStore) -> Ledger:
    store: Any = claims
    return Ledger(LooksThenInserts(store._process), lease=LEASE_S)  # type: ignore[arg-type]


class RunsAgainAfterTheLease(Ledger):
    """An owner whose lease has run out is dead, so the call is free (as in many idempotency libraries)."""

    def _may_run_again(self, call: Call, row: Claim) -> bool:
        return row.state is ClaimState.IN_DOUBT or row.lease_left <= 0


class ForgetsOnCancel(Ledger):
    """Who was cancelled has done nothing."""

    async def failed(self, permit: Permit, error: BaseException) -> ClaimState:
        if isinstance(error, asyncio.CancelledError):
            await self._settle(permit, ClaimState.FAILED, None, None, "")
            return ClaimState.FAILED
        return await super().failed(permit, error)


class TrustsErrors(Ledger):
    """What raises an error has done nothing."""

    async def failed(self, permit: Permit, error: BaseException) -> ClaimState:
        if isinstance(error, Exception):
            await self._settle(permit, ClaimState.FAILED, None, None, "")
            return ClaimState.FAILED
        return await super().failed(permit, error)


class NeverLooksBack(Ledger):
    """The call id names the call: there is no torn history."""

    async def _doubt(self, call: Call, live: Any, row: Claim) -> tuple[str, Sequence[Claim]]:
        return "", ()


class GoesOnWithoutAStore(Ledger):
    """Fails open."""

    async def _decide(self, call: Call, live: Any, until: float) -> Permit | Replay:
        try:
            return await super()._decide(call, live, until)
        except StoreUnavailable:
            return Permit(call, "none", 1)


class SaysDoneFirst(Ledger):
    """The row says done before the tool has run."""

    async def _mine(self, call: Call, live: Any, row: Claim) -> Permit:
        permit = await super()._mine(call, live, row)
        await self._claims.settle(permit.key, permit.attempt_id, ClaimState.DONE, result=b'"paid"')
        return permit


def of(kind: type[Ledger]) -> Make:
    return lambda claims: kind(claims, lease=LEASE_S)


def no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both attempts of a race reach the tool."""
    monkeypatch.setattr(fence, "pass_fence", lambda effect, **_: None)


def memory_confirms(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was seen in the state of the same invocation counts as kept by the checkpointer."""
    monkeypatch.setattr(torn, "_returned", lambda site, row, known, frames: known or frames is not None)


def retries_unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that runs again goes forward."""

    def forward(before: tuple[Frame, ...], now: tuple[Frame, ...], *, persistent: bool) -> bool:
        return True

    monkeypatch.setattr(torn, "goes_forward", forward)


BUGS: dict[str, tuple[Make, Callable[[pytest.MonkeyPatch], None] | None]] = {
    "look, then insert": (looks_then_inserts, None),
    "run again when the lease is over": (of(RunsAgainAfterTheLease), None),
    "a cancel proves that nothing happened": (of(ForgetsOnCancel), None),
    "an error proves that nothing happened": (of(TrustsErrors), None),
    "no torn history": (of(NeverLooksBack), None),
    "no store, no claim, and yet a dispatch": (of(GoesOnWithoutAStore), None),
    "done before it is done": (of(SaysDoneFirst), None),
    "no fence": (shipped, no_fence),
    "seen in memory is confirmed": (shipped, memory_confirms),
    "a retried node goes forward": (shipped, retries_unseen),
}


@pytest.mark.parametrize("bug", BUGS)
def test_r11_a_planted_bug_is_found(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, plant = BUGS[bug]
    if plant is not None:
        plant(monkeypatch)
    found = next((seed for seed in range(ENOUGH) if verdict(play(seed, make))), None)
    assert found is not None, f"{bug}: not found in {ENOUGH} schedules"


def test_a_schedule_is_the_same_every_time() -> None:
    first, second = play(77), play(77)
    assert (first.effects, first.lines) == (second.effects, second.lines)
