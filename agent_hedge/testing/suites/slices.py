"""The contract of `SliceStore`: a worker replaces its own slices and sees everybody's."""

from __future__ import annotations

import pytest

from agent_hedge.core.stores import SliceStore
from agent_hedge.errors import ConfigurationError


@pytest.mark.anyio
class SliceStoreSuite:
    """Give it a fixture `slices`: an empty store."""

    async def test_slices_of_all_workers(self, slices: SliceStore) -> None:
        await slices.put("w1", [("k", 30, b"\x00a"), ("k", 60, b"b"), ("j", 60, b"c")])
        await slices.put("w2", [("k", 60, b"d")])
        await slices.put("w1", [("k", 60, b"e"), ("k", 60, b"f")])
        await slices.put("w1", [])
        assert sorted(await slices.since(0)) == [("j", 60, b"c"), ("k", 30, b"\x00a"), ("k", 60, b"d"), ("k", 60, b"f")]
        assert {epoch for _, epoch, _ in await slices.since(60)} == {60}
        assert (await slices.since(0))[0][1] == 30

    async def test_old_slices_are_pruned(self, slices: SliceStore) -> None:
        await slices.put("w", [("k", 30, b"a"), ("k", 60, b"b")])
        assert await slices.prune(60) == 1
        assert await slices.since(0) == [("k", 60, b"b")]

    async def test_r20_names_are_checked(self, slices: SliceStore) -> None:
        for worker, key in (("w\0", "k"), ("w", "\ud800"), ("w" * 65, "k"), ("", "k")):
            with pytest.raises(ConfigurationError):
                await slices.put(worker, [(key, 0, b"")])
