"""The contract of `ClaimStore` (R11): one winner per key, nothing lost with a reply, nothing in doubt ever deleted."""

from __future__ import annotations

import asyncio
import hashlib
import math
from typing import Any

import pytest

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import Claim, ClaimState, ClaimStore

LIVE = 60.0
"""A lease that does not run out during a test, in seconds."""
DEAD = 0.0
"""A lease that has run out when it is given."""


def digest(text: str) -> str:
    """SHA-256 hex."""
    return hashlib.sha256(text.encode()).hexdigest()


def a_claim(key: str = "k", attempt: str = "a1", **values: Any) -> Claim:
    """Return a claim; `key` is hashed."""
    given: dict[str, Any] = {
        "effect_key": digest(key),
        "tool": "pay",
        "args_fingerprint": digest("args"),
        "owner": "p1",
        "attempt_id": attempt,
        "run_key": "run",
        "thread": "thread",
    }
    return Claim(**(given | values))


@pytest.mark.anyio
class ClaimStoreSuite:
    """Give it a fixture `claims`: an empty store."""

    async def test_a_new_key_is_claimed(self, claims: ClaimStore) -> None:
        mine = a_claim(effect=Effect.KEYED, call_id="c", principal="p", note="n")
        won = await claims.claim(mine, lease=LIVE)
        assert won.attempt_id == "a1"
        assert won.state is ClaimState.RUNNING
        assert won.claimed_at > 0
        stored = await claims.get(mine.effect_key)
        assert stored is not None
        assert (stored.tool, stored.effect, stored.call_id, stored.principal, stored.note, stored.owner) == (
            "pay",
            Effect.KEYED,
            "c",
            "p",
            "n",
            "p1",
        )
        assert (stored.run_key, stored.thread, stored.executions) == ("run", "thread", 1)
        assert 0 < stored.lease_left <= LIVE
        assert 0 <= stored.age < LIVE

    async def test_r11_a_second_claim_gets_the_row_that_stands(self, claims: ClaimStore) -> None:
        await claims.claim(a_claim(attempt="a1"), lease=LIVE)
        second = await claims.claim(a_claim(attempt="a2", args_fingerprint=digest("other")), lease=LIVE)
        assert second.attempt_id == "a1"
        assert second.args_fingerprint == digest("args")

    async def test_r11_a_claim_repeated_after_a_lost_reply_is_still_ours(self, claims: ClaimStore) -> None:
        await claims.claim(a_claim(attempt="a1"), lease=LIVE)
        again = await claims.claim(a_claim(attempt="a1"), lease=LIVE)
        assert again.attempt_id == "a1"
        assert again.executions == 1

    async def test_r11_of_concurrent_claims_one_wins(self, claims: ClaimStore) -> None:
        for key in range(10):
            rows = await asyncio.gather(*(claims.claim(a_claim(str(key), f"{key}-{n}"), lease=LIVE) for n in range(8)))
            assert len({row.attempt_id for row in rows}) == 1

    async def test_settling_stores_the_result_for_all(self, claims: ClaimStore) -> None:
        mine = await claims.claim(a_claim(), lease=LIVE)
        assert await claims.settle(mine.effect_key, "a1", ClaimState.DONE, result=b"\x00\xffok", note="fine")
        other = await claims.claim(a_claim(attempt="a2"), lease=LIVE)
        assert (other.state, other.result, other.note) == (ClaimState.DONE, b"\x00\xffok", "fine")

    async def test_settling_is_the_owners(self, claims: ClaimStore) -> None:
        mine = await claims.claim(a_claim(), lease=LIVE)
        assert not await claims.settle(mine.effect_key, "a2", ClaimState.DONE)
        assert not await claims.settle(digest("none"), "a1", ClaimState.DONE)
        stored = await claims.get(mine.effect_key)
        assert stored is not None
        assert stored.state is ClaimState.RUNNING

    async def test_settling_twice_after_a_lost_reply_is_true_and_changes_nothing(self, claims: ClaimStore) -> None:
        mine = await claims.claim(a_claim(), lease=LIVE)
        assert await claims.settle(mine.effect_key, "a1", ClaimState.DONE, result=b"1")
        assert await claims.settle(mine.effect_key, "a1", ClaimState.DONE, result=b"1")
        assert not await claims.settle(mine.effect_key, "a1", ClaimState.FAILED)
        assert not await claims.settle(mine.effect_key, "a1", ClaimState.IN_DOUBT)
        stored = await claims.get(mine.effect_key)
        assert stored is not None
        assert (stored.state, stored.result) == (ClaimState.DONE, b"1")

    async def test_r11_only_an_expired_claim_is_put_in_doubt(self, claims: ClaimStore) -> None:
        live = await claims.claim(a_claim("live"), lease=LIVE)
        dead = await claims.claim(a_claim("dead"), lease=DEAD)
        assert await claims.mark_in_doubt(live.effect_key) is None
        doubted = await claims.mark_in_doubt(dead.effect_key)
        assert doubted is not None
        assert doubted.state is ClaimState.IN_DOUBT
        assert await claims.mark_in_doubt(dead.effect_key) == doubted or doubted.state is ClaimState.IN_DOUBT
        forced = await claims.mark_in_doubt(live.effect_key, if_expired=False)
        assert forced is not None
        assert forced.state is ClaimState.IN_DOUBT
        assert await claims.mark_in_doubt(digest("none")) is None

    async def test_r11_a_done_claim_is_never_put_in_doubt(self, claims: ClaimStore) -> None:
        mine = await claims.claim(a_claim(), lease=DEAD)
        await claims.settle(mine.effect_key, "a1", ClaimState.DONE)
        assert await claims.mark_in_doubt(mine.effect_key, if_expired=False) is None

    async def test_r11_a_late_owner_moves_in_doubt_to_done(self, claims: ClaimStore) -> None:
        mine = await claims.claim(a_claim(), lease=DEAD)
        await claims.mark_in_doubt(mine.effect_key)
        assert not await claims.settle(mine.effect_key, "a2", ClaimState.DONE)
        assert await claims.settle(mine.effect_key, "a1", ClaimState.DONE, result=b"late")
        stored = await claims.get(mine.effect_key)
        assert stored is not None
        assert (stored.state, stored.result) == (ClaimState.DONE, b"late")

    async def test_a_note_can_be_put_on_a_claim_that_stays_in_doubt(self, claims: ClaimStore) -> None:
        mine = await claims.claim(a_claim(), lease=LIVE)
        for note in ("why", "", "abandoned"):
            assert await claims.settle(mine.effect_key, "a1", ClaimState.IN_DOUBT, note=note)
        stored = await claims.get(mine.effect_key)
        assert stored is not None
        assert (stored.state, stored.note) == (ClaimState.IN_DOUBT, "abandoned")

    async def test_a_lease_is_renewed_by_its_owner_while_it_runs(self, claims: ClaimStore) -> None:
        mine = await claims.claim(a_claim(), lease=DEAD)
        assert not await claims.renew(mine.effect_key, "a2", lease=LIVE)
        assert await claims.renew(mine.effect_key, "a1", lease=LIVE)
        assert await claims.mark_in_doubt(mine.effect_key) is None
        await claims.settle(mine.effect_key, "a1", ClaimState.DONE)
        assert not await claims.renew(mine.effect_key, "a1", lease=LIVE)

    async def test_r11_take_over_is_a_compare_and_set(self, claims: ClaimStore) -> None:
        await claims.claim(a_claim(), lease=DEAD)
        takers = [a_claim(attempt=f"t{n}", owner="p2") for n in range(6)]
        rows = await asyncio.gather(*(claims.take_over(t, previous_attempt="a1", lease=LIVE) for t in takers))
        winners = {row.attempt_id for row in rows}
        assert len(winners) == 1
        (winner,) = winners
        assert winner != "a1"
        stored = await claims.get(digest("k"))
        assert stored is not None
        assert (stored.executions, stored.owner, stored.state) == (2, "p2", ClaimState.RUNNING)
        assert not await claims.settle(digest("k"), "a1", ClaimState.DONE)
        assert await claims.settle(digest("k"), winner, ClaimState.DONE)

    async def test_r11_take_over_needs_the_attempt_it_replaces(self, claims: ClaimStore) -> None:
        await claims.claim(a_claim(), lease=DEAD)
        await claims.take_over(a_claim(attempt="a2"), previous_attempt="a1", lease=DEAD)
        late = await claims.take_over(a_claim(attempt="a3"), previous_attempt="a1", lease=LIVE)
        assert (late.attempt_id, late.executions) == ("a2", 2)

    async def test_take_over_repeated_after_a_lost_reply_is_still_ours(self, claims: ClaimStore) -> None:
        await claims.claim(a_claim(), lease=DEAD)
        for _ in range(2):
            taken = await claims.take_over(a_claim(attempt="a2"), previous_attempt="a1", lease=LIVE)
            assert (taken.attempt_id, taken.executions) == ("a2", 2)

    @pytest.mark.parametrize("state", [ClaimState.IN_DOUBT, ClaimState.FAILED])
    async def test_take_over_takes_rows_that_nobody_runs(self, claims: ClaimStore, state: ClaimState) -> None:
        await claims.claim(a_claim(), lease=LIVE)
        await claims.settle(digest("k"), "a1", state)
        taken = await claims.take_over(a_claim(attempt="a2"), previous_attempt="a1", lease=LIVE)
        assert (taken.attempt_id, taken.state) == ("a2", ClaimState.RUNNING)

    async def test_r11_take_over_never_takes_a_live_or_done_row(self, claims: ClaimStore) -> None:
        await claims.claim(a_claim(), lease=LIVE)
        assert (await claims.take_over(a_claim(attempt="a2"), previous_attempt="a1", lease=LIVE)).attempt_id == "a1"
        await claims.settle(digest("k"), "a1", ClaimState.DONE)
        standing = await claims.take_over(a_claim(attempt="a2"), previous_attempt="a1", lease=LIVE)
        assert (standing.attempt_id, standing.state) == ("a1", ClaimState.DONE)

    async def test_take_over_of_a_missing_row_claims_it(self, claims: ClaimStore) -> None:
        taken = await claims.take_over(a_claim(attempt="a2"), previous_attempt="a1", lease=LIVE)
        assert (taken.attempt_id, taken.executions) == ("a2", 1)

    async def test_claims_are_found_by_thread_and_by_run(self, claims: ClaimStore) -> None:
        for n in range(3):
            await claims.claim(a_claim(str(n), f"a{n}", thread="t", run_key=f"r{n % 2}"), lease=LIVE)
            await asyncio.sleep(0.001)
        await claims.claim(a_claim("x", "ax", thread="other", run_key="r0"), lease=LIVE)
        assert [claim.attempt_id for claim in await claims.of_thread("t")] == ["a0", "a1", "a2"]
        assert {claim.attempt_id for claim in await claims.of_run("r0")} == {"a0", "a2", "ax"}
        assert not await claims.of_thread("nobody")

    async def test_confirmation_is_remembered(self, claims: ClaimStore) -> None:
        await claims.claim(a_claim("1", "a1"), lease=LIVE)
        await claims.claim(a_claim("2", "a2"), lease=LIVE)
        await claims.confirm([digest("1"), digest("none")])
        await claims.confirm([])
        assert {claim.attempt_id: claim.confirmed for claim in await claims.of_thread("thread")} == {
            "a1": True,
            "a2": False,
        }

    async def test_recent_claims_by_state_without_results(self, claims: ClaimStore) -> None:
        for n in range(4):
            await claims.claim(a_claim(str(n), f"a{n}"), lease=LIVE)
            await asyncio.sleep(0.001)
        await claims.settle(digest("1"), "a1", ClaimState.DONE, result=b"secret")
        assert [claim.attempt_id for claim in await claims.recent(2)] == ["a3", "a2"]
        (done,) = await claims.recent(10, states=[ClaimState.DONE])
        assert done.attempt_id == "a1"
        assert done.result is None

    async def test_r11_running_and_in_doubt_rows_are_never_purged(self, claims: ClaimStore) -> None:
        for state in ("running", "in_doubt", "done", "failed"):
            await claims.claim(a_claim(state, state), lease=DEAD)
            if state != "running":
                await claims.settle(digest(state), state, ClaimState(state))
        assert await claims.prune(3600) == 0
        await asyncio.sleep(0.01)
        assert await claims.prune(0.001) == 2
        assert {claim.state for claim in await claims.recent(10)} == {ClaimState.RUNNING, ClaimState.IN_DOUBT}
        one = a_claim("done")
        for found in (await claims.of_thread(one.thread), await claims.of_run(one.run_key)):
            assert {claim.attempt_id for claim in found} == {"running", "in_doubt"}
        again = await claims.claim(a_claim("done", "again"), lease=LIVE)
        assert (again.attempt_id, again.executions) == ("again", 1)
        assert "again" in {claim.attempt_id for claim in await claims.of_run(one.run_key)}

    async def test_a_fence_is_remembered(self, claims: ClaimStore) -> None:
        assert await claims.fenced() is None
        fence = await claims.fence(123.5)
        assert fence.since == 123.5
        assert fence.until > 1e9
        assert await claims.fenced() == fence
        assert (await claims.fence(200.0)).since == 200.0

    async def test_long_keys_and_quotes_are_kept_as_they_are(self, claims: ClaimStore) -> None:
        hostile = "x'); DROP TABLE effect_claims;-- \u2603 " + "\U0001f600" * 100
        await claims.claim(a_claim(run_key=hostile, thread="t" * 512, tool="\u00e9" * 255), lease=LIVE)
        (found,) = await claims.of_run(hostile)
        assert (found.run_key, found.thread, found.tool) == (hostile, "t" * 512, "\u00e9" * 255)
        assert not math.isinf(found.age)
