"""The contract of `SwitchStore` (R21): one switch per scope, those past their time are gone."""

from __future__ import annotations

import time

import pytest

from agent_hedge.core.stores import Switch, SwitchStore


@pytest.mark.anyio
class SwitchStoreSuite:
    """Give it a fixture `switches`: an empty store."""

    async def test_the_last_word_of_a_scope_counts(self, switches: SwitchStore) -> None:
        await switches.set(Switch(scope_kind="fleet", scope="", mode="off", reason="incident"))
        await switches.set(Switch(scope_kind="target", scope="eu", mode="drain"))
        await switches.set(Switch(scope_kind="fleet", scope="", mode="shadow", reason="after it"))
        assert sorted((s.scope_kind, s.scope, s.mode, s.reason) for s in await switches.switches()) == [
            ("fleet", "", "shadow", "after it"),
            ("target", "eu", "drain", ""),
        ]

    async def test_a_switch_ends_by_itself(self, switches: SwitchStore) -> None:
        now = time.time()
        await switches.set(Switch(scope_kind="node", scope="a", mode="off", until=now - 1))
        await switches.set(Switch(scope_kind="node", scope="b", mode="off", until=now + 3600))
        (left,) = await switches.switches()
        assert left.scope == "b"
