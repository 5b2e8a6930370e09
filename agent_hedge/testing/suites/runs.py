"""The contract of `RunStore`: generations, counts that never go down, a purse that is never over-granted."""

from __future__ import annotations

import asyncio

import pytest

from agent_hedge.core.ports import RunRow, RunStore


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

    async def test_saving_replaces_but_counts_never_go_down(self, runs: RunStore) -> None:
        await runs.save(RunRow(run_key="r", hedges_used=2, steps=9, remaining=5.0))
        await runs.save(RunRow(run_key="r", hedges_used=1, steps=10, recoveries_used=1, remaining=None, state="ended"))
        found = await runs.load("r")
        assert found is not None
        assert (found.hedges_used, found.steps, found.recoveries_used) == (2, 10, 1)
        assert (found.remaining, found.state) == (None, "ended")

    async def test_grants_stop_at_the_purse(self, runs: RunStore) -> None:
        await runs.save(RunRow(run_key="r", extra_attempts=5))
        assert [await runs.grant("r", 0, 3) for _ in range(3)] == [3, 2, 0]
        await runs.save(RunRow(run_key="r", extra_attempts=5, hedges_granted=0))
        assert await runs.grant("r", 0, 3) == 0
        assert await runs.grant("nobody", 0, 3) == 0
        await runs.save(RunRow(run_key="free", extra_attempts=None))
        assert await runs.grant("free", 0, 3) == 3

    async def test_concurrent_grants_never_exceed_the_purse(self, runs: RunStore) -> None:
        await runs.save(RunRow(run_key="r", extra_attempts=10))
        granted = await asyncio.gather(*(runs.grant("r", 0, 3) for _ in range(8)))
        assert sum(granted) == 10

    async def test_what_is_released_can_be_granted_again(self, runs: RunStore) -> None:
        await runs.save(RunRow(run_key="r", extra_attempts=5))
        assert await runs.grant("r", 0, 5) == 5
        await runs.save(RunRow(run_key="r", extra_attempts=5, hedges_used=1))
        await runs.release("r", 0, 3)
        assert [await runs.grant("r", 0, 2) for _ in range(3)] == [2, 1, 0]
        await runs.release("r", 0, 99)  # never below what was used
        assert await runs.grant("r", 0, 99) == 4
        await runs.release("nobody", 0, 1)

    async def test_recent_and_prune(self, runs: RunStore) -> None:
        for name in ("a", "b", "c"):
            await runs.save(RunRow(run_key=name))
            await asyncio.sleep(0.002)
        assert [row.run_key for row in await runs.recent(2)] == ["c", "b"]
        assert await runs.prune(3600) == 0
        assert await runs.prune(0.0) == 3
        assert not await runs.recent(5)
