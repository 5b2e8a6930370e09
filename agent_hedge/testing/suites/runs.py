"""The contract of `RunStore`: generations, counts that are added up, a purse that is never over-granted."""

from __future__ import annotations

import asyncio

import pytest

from agent_hedge.core.ports import Block
from agent_hedge.core.stores import RunRow, RunStore


@pytest.mark.anyio
class RunStoreSuite:
    """Give it a fixture `runs`: an empty store."""

    async def test_the_newest_generation_is_loaded(self, runs: RunStore) -> None:
        assert await runs.load("r") is None
        await runs.save(RunRow(run_key="r", generation=0, state="ended"))
        await runs.save(
            RunRow(run_key="r", generation=1, deadline_epoch=1.5, remaining=2.5, extra_attempts=3, sticky_target="eu")
        )
        found = await runs.load("r")
        assert found is not None
        assert (found.generation, found.deadline_epoch, found.remaining) == (1, 1.5, 2.5)
        assert (found.extra_attempts, found.state, found.sticky_target) == (3, "open", "eu")
        assert found.updated_at > 1e9

    async def test_saving_replaces_and_counts_are_added_up(self, runs: RunStore) -> None:
        """Two processes serve one run, and each says what it has used itself."""
        await runs.save(RunRow(run_key="r", hedges_used=2, steps=9, remaining=5.0, tokens_used=100, cost_used=0.5))
        more = {"steps": 1, "recoveries_used": 1, "tokens_used": 20, "cost_used": 0.25}
        await runs.save(RunRow(run_key="r", hedges_used=1, remaining=None, state="ended", **more))  # type: ignore[arg-type]
        found = await runs.load("r")
        assert found is not None
        assert (found.hedges_used, found.steps, found.recoveries_used) == (3, 10, 1)
        assert (found.tokens_used, found.cost_used) == (120, 0.75)
        assert (found.remaining, found.state) == (None, "ended")

    async def test_grants_stop_at_the_purse(self, runs: RunStore) -> None:
        await runs.save(RunRow(run_key="r", extra_attempts=5))
        assert [(await runs.grant("r", 0, Block(3))).hedges for _ in range(3)] == [3, 2, 0]
        await runs.save(RunRow(run_key="r", extra_attempts=5, hedges_granted=0))
        assert await runs.grant("r", 0, Block(3)) == Block()
        assert await runs.grant("nobody", 0, Block(3)) == Block()
        await runs.save(RunRow(run_key="free", extra_attempts=None))
        assert await runs.grant("free", 0, Block(3, 10**9, 1e9)) == Block(3, 10**9, 1e9)

    async def test_each_part_of_a_grant_stops_at_its_own_cap(self, runs: RunStore) -> None:
        await runs.save(RunRow(run_key="r", extra_attempts=5, tokens=2_500, cost=0.75))
        assert await runs.grant("r", 0, Block(2, 2_000, 0.5)) == Block(2, 2_000, 0.5)
        assert await runs.grant("r", 0, Block(2, 2_000, 0.5)) == Block(2, 500, 0.25)
        assert await runs.grant("r", 0, Block(2, 2_000, 0.5)) == Block(1)
        found = await runs.load("r")
        assert found is not None
        assert (found.tokens, found.cost) == (2_500, 0.75)
        assert (found.hedges_granted, found.tokens_granted, found.cost_granted) == (5, 2_500, 0.75)

    async def test_concurrent_grants_never_exceed_the_purse(self, runs: RunStore) -> None:
        await runs.save(RunRow(run_key="r", extra_attempts=10, tokens=700, cost=1.0))
        granted = await asyncio.gather(*(runs.grant("r", 0, Block(3, 100, 0.25)) for _ in range(8)))
        assert sum(one.hedges for one in granted) == 10
        assert sum(one.tokens for one in granted) == 700
        assert sum(one.cost for one in granted) == 1.0

    async def test_what_is_released_can_be_granted_again(self, runs: RunStore) -> None:
        await runs.save(RunRow(run_key="r", extra_attempts=5, tokens=50, cost=5.0))
        everything = Block(5, 50, 5.0)
        assert await runs.grant("r", 0, everything) == everything
        await runs.save(RunRow(run_key="r", extra_attempts=5, tokens=50, cost=5.0, hedges_used=1, tokens_used=10))
        await runs.release("r", 0, Block(3, 30, 3.0))
        assert [await runs.grant("r", 0, Block(2, 20, 2.0)) for _ in range(3)] == [
            Block(2, 20, 2.0),
            Block(1, 10, 1.0),
            Block(),
        ]
        await runs.release("r", 0, Block(99, 99, 99.0))  # never below what was used
        assert await runs.grant("r", 0, Block(99, 99, 99.0)) == Block(4, 40, 5.0)
        await runs.release("nobody", 0, Block(1))

    async def test_recent_and_prune(self, runs: RunStore) -> None:
        for name in ("a", "b", "c"):
            await runs.save(RunRow(run_key=name))
            await asyncio.sleep(0.002)
        assert [row.run_key for row in await runs.recent(2)] == ["c", "b"]
        assert await runs.prune(3600) == 0
        assert await runs.prune(0.0) == 3
        assert not await runs.recent(5)
