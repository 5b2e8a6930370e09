"""The contract of `EffectStore`: revisions that only grow, one row per source, a history that forgets nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import EffectRow, EffectStore


def an_entry(name: str = "pay", effect: Effect = Effect.ONCE, **values: Any) -> EffectRow:
    """Return an operator's row."""
    given: dict[str, Any] = {"namespace": "", "name": name, "effect": effect, "source": "operator"}
    return EffectRow(**(given | values))


@pytest.mark.anyio
class EffectStoreSuite:
    """Give it a fixture `effects`: a store without rows."""

    async def test_a_row_comes_back_whole(self, effects: EffectStore) -> None:
        row = an_entry(
            namespace="crm",
            trusted=False,
            repeat_allowed=False,
            schema_hash="f" * 64,
            rules={"method": {"GET": "read_only"}},
            settings={"key": "order_id", "scope": "tenant"},
            note="seen \u2713",
        )
        revision = await effects.write([row], by="ops")
        read_revision, (stored,) = await effects.read()
        assert read_revision == revision == await effects.revision()
        assert (stored.namespace, stored.name, stored.effect, stored.source) == ("crm", "pay", Effect.ONCE, "operator")
        assert (stored.trusted, stored.repeat_allowed, stored.schema_hash) == (False, False, "f" * 64)
        assert stored.rules == {"method": {"GET": "read_only"}}
        assert stored.settings == {"key": "order_id", "scope": "tenant"}
        assert (stored.note, stored.updated_by, stored.revision, stored.problem) == ("seen \u2713", "ops", revision, "")
        assert stored.updated_at > 1e9

    async def test_every_write_is_a_new_revision(self, effects: EffectStore) -> None:
        before = await effects.revision()
        assert await effects.write([], by="ops") == before
        first = await effects.write([an_entry("a"), an_entry("b")], by="ops")
        second = await effects.write([an_entry("a", Effect.READ_ONLY)], by="ops")
        assert before < first < second
        _, rows = await effects.read()
        assert {row.name: (row.effect, row.revision) for row in rows} == {
            "a": (Effect.READ_ONLY, second),
            "b": (Effect.ONCE, first),
        }

    async def test_sources_stand_side_by_side(self, effects: EffectStore) -> None:
        await effects.write([an_entry(source=source) for source in ("operator", "code", "mcp")], by="x")
        _, rows = await effects.read()
        assert sorted(row.source for row in rows) == ["code", "mcp", "operator"]

    async def test_history_keeps_every_version_and_the_withdrawal(self, effects: EffectStore) -> None:
        await effects.write([an_entry(effect=Effect.ONCE)], by="a")
        await effects.write([an_entry(effect=Effect.READ_ONLY)], by="b")
        revision = await effects.withdraw("", "pay", "operator", by="c")
        assert revision == await effects.revision()
        assert await effects.withdraw("", "pay", "operator", by="c") == revision
        _, rows = await effects.read()
        assert not rows
        lines = await effects.history("", "pay")
        assert [(line.effect, line.updated_by, line.withdrawn) for line in lines] == [
            (Effect.ONCE, "a", False),
            (Effect.READ_ONLY, "b", False),
            (Effect.READ_ONLY, "c", True),
        ]
        assert not await effects.history("other", "pay")

    async def test_concurrent_writers_get_revisions_of_their_own(self, effects: EffectStore) -> None:
        got = await asyncio.gather(*(effects.write([an_entry(f"t{n}")], by="x") for n in range(12)))
        assert len(set(got)) == 12
        revision, rows = await effects.read()
        assert revision == max(got)
        assert len(rows) == 12
