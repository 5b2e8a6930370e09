"""The registry: who decides, what makes an entry stale or contradictory, and what nobody may loosen (C1)."""

from __future__ import annotations

import asyncio
import csv
import itertools
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from langchain_core.tools import StructuredTool, tool

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import EffectRow
from agent_hedge.errors import ConfigurationError, StoreUnavailable
from agent_hedge.stores.memory import MemoryEffects
from agent_hedge.tools.effect import EffectSpec, namespace_of, tool_effect
from agent_hedge.tools.known import known
from agent_hedge.tools.registry import FRESH_S, Registry


def hints(**values: object) -> dict[str, Any]:
    return {"name": "t", "annotations": values}


# --- who decides


def test_nobody_has_spoken() -> None:
    registry = Registry()
    assert registry.effect("t") is Effect.UNKNOWN
    assert not registry.effect("t").repeatable
    assert registry.explain_entry("t").why == "nobody has declared it"


def test_the_operator_before_the_code_before_the_server() -> None:
    registry = Registry()
    registry.declare([hints(readOnlyHint=True)], trusted=True)
    assert registry.explain_entry("t").source == "mcp"
    assert registry.effect("t") is Effect.READ_ONLY
    registry.declare({"t": Effect.IDEMPOTENT})
    assert (registry.effect("t"), registry.explain_entry("t").source) == (Effect.IDEMPOTENT, "code")
    registry.annotate("t", Effect.ONCE, note="it sends mails")
    assert (registry.effect("t"), registry.explain_entry("t").source) == (Effect.ONCE, "operator")
    registry.annotate("t", "read_only")
    assert registry.effect("t") is Effect.READ_ONLY
    assert [row.effect.value for row in asyncio.run(registry.history("t"))] == [
        "read_only",
        "idempotent",
        "once",
        "read_only",
    ]


def test_r09_an_untrusted_hint_allows_nothing_and_tightens() -> None:
    registry = Registry()
    registry.declare([hints(readOnlyHint=True, idempotentHint=True)])
    assert registry.effect("t") is Effect.UNKNOWN
    registry.declare({"t": Effect.READ_ONLY})
    assert registry.effect("t") is Effect.READ_ONLY
    registry.declare([hints(readOnlyHint=False)])
    assert registry.effect("t") is Effect.ONCE
    assert "contradictory" in registry.explain_entry("t").why
    registry.annotate("t", Effect.READ_ONLY)
    assert registry.effect("t") is Effect.READ_ONLY


def test_keyed_in_code_stands_beside_a_server_that_is_not_idempotent_by_itself() -> None:
    registry = Registry()
    registry.declare({"t": EffectSpec(effect=Effect.KEYED, key="id")})
    registry.declare([hints(readOnlyHint=False, idempotentHint=False)], trusted=True)
    assert registry.effect("t") is Effect.KEYED


@pytest.mark.parametrize("value", [1, "true", "True", None, [], "yes"])
def test_r09_only_true_itself_is_true(value: object) -> None:
    registry = Registry()
    registry.declare([hints(readOnlyHint=value, idempotentHint=value)], trusted=True)
    assert not registry.effect("t").repeatable
    with pytest.raises(ConfigurationError):
        registry.declare([hints(readOnlyHint=True)], trusted=value)  # type: ignore[arg-type]


def test_r09_no_combination_escalates() -> None:
    """All 648: registry entry x four three-valued hints x trust. Hints never allow more than who stands above."""
    entries = [None, Effect.READ_ONLY, Effect.IDEMPOTENT, Effect.ONCE]
    tri = (True, False, None)
    seen: Counter[bool] = Counter()
    for entry, read_only, destructive, idempotent, open_world, trusted in itertools.product(
        entries, tri, tri, tri, tri, (True, False)
    ):
        registry = Registry()
        registry.declare(
            [
                hints(
                    readOnlyHint=read_only,
                    destructiveHint=destructive,
                    idempotentHint=idempotent,
                    openWorldHint=open_world,
                )
            ],
            trusted=trusted,
        )
        if entry is not None:
            registry.declare({"t": entry})
        effect = registry.effect("t")
        said = entry if entry is not None else Effect.READ_ONLY if read_only else Effect.IDEMPOTENT
        allowed = entry.repeatable if entry is not None else trusted and (read_only is True or idempotent is True)
        if effect.repeatable:
            assert allowed
            assert effect is said or (entry is Effect.READ_ONLY and effect is Effect.IDEMPOTENT)
        seen[effect.repeatable] += 1
    assert sum(seen.values()) == 648
    assert seen[True] > 100


# --- real catalogues


def catalogue() -> list[dict[str, str]]:
    path = Path(__file__).parents[3] / "shared" / "data" / "tools_read_write.csv"
    if not path.exists():
        pytest.skip("needs ../shared/data/tools_read_write.csv")
    with path.open() as file:
        return list(csv.DictReader(file))


def declared(rows: list[dict[str, str]], *, trusted: bool) -> Registry:
    word = {"True": True, "False": False, "": None}
    registry = Registry()
    for server in {row["server"] for row in rows}:
        registry.declare(
            [
                {
                    "name": row["tool"],
                    "annotations": {
                        "readOnlyHint": word[row["read_only_hint"]],
                        "destructiveHint": word[row["destructive_hint"]],
                        "idempotentHint": word[row["idempotent_hint"]],
                        "openWorldHint": word[row["open_world_hint"]],
                    },
                }
                for row in rows
                if row["server"] == server
            ],
            namespace=server,
            trusted=trusted,
        )
    return registry


def test_r09_c1_trusted_servers_make_no_write_hedgeable_but_what_they_call_idempotent() -> None:
    rows = catalogue()
    registry = declared(rows, trusted=True)
    hedgeable = [row for row in rows if registry.effect(row["tool"], row["server"]).repeatable]
    writes = [row for row in hedgeable if row["label"] == "WRITE"]
    assert all(row["idempotent_hint"] == "True" for row in writes)
    print("hedgeable writes:", *sorted(f"{row['server']}/{row['tool']}" for row in writes))
    reads = [row for row in rows if row["label"] == "READ"]
    share = sum(row["label"] == "READ" for row in hedgeable) / len(reads)
    print(f"hedgeable: {share:.1%} of {len(reads)} READ tools, {len(writes)} WRITE tools")
    assert share == 1.0
    assert len(writes) == 80


def test_r09_c1_untrusted_servers_make_nothing_hedgeable() -> None:
    rows = catalogue()
    registry = declared(rows, trusted=False)
    assert not [row for row in rows if registry.effect(row["tool"], row["server"]).repeatable]


# --- what is declared


def test_tools_of_every_kind() -> None:
    @tool_effect(Effect.READ_ONLY)
    def plain(a: int) -> int:
        return a

    @tool
    @tool_effect(Effect.IDEMPOTENT)
    def lang(a: int) -> int:
        """Put."""
        return a

    adapter = StructuredTool.from_function(
        lambda a: a,
        name="mcp_adapter",
        description="d",
        metadata={"title": None, "readOnlyHint": True, "destructiveHint": None, "idempotentHint": None, "_meta": None},
    )
    native = SimpleNamespace(
        name="mcp_native", annotations=SimpleNamespace(readOnlyHint=True), inputSchema={"type": "object"}
    )
    silent = SimpleNamespace(name="mcp_silent", annotations=None, inputSchema={})
    registry = Registry()
    registry.declare([plain, lang, adapter, native, silent, {"name": "row"}], namespace="crm", trusted=True)
    assert {name: registry.effect(name, "crm").value for name in ("plain", "lang", "mcp_adapter", "mcp_native")} == {
        "plain": "read_only",
        "lang": "idempotent",
        "mcp_adapter": "read_only",
        "mcp_native": "read_only",
    }
    assert registry.effect("mcp_silent", "crm") is registry.effect("row", "crm") is Effect.UNKNOWN
    assert registry.effect("plain") is Effect.UNKNOWN
    assert namespace_of(lang) == namespace_of(plain) == "crm"
    assert registry.explain_entry("mcp_native", "crm").rows[0].schema_hash


def test_the_method_of_an_http_operation_is_no_declaration() -> None:
    registry = Registry()
    registry.declare([{"name": "get_user", "method": "GET", "annotations": None}], trusted=True)
    assert registry.effect("get_user") is Effect.UNKNOWN


@pytest.mark.parametrize(
    "given",
    [
        {"t": "harmless"},
        {"t": 7},
        {"t": {"effect": "once", "colour": "red"}},
        {"": Effect.ONCE},
        {"a\0": Effect.ONCE},
        {"\ud800": Effect.ONCE},
        {"n" * 256: Effect.ONCE},
        {7: Effect.ONCE},
        [{"annotations": {}}],
        [{"name": "a\0b", "annotations": {}}],
        [7],
        "search",
    ],
    ids=repr,
)
def test_r20_what_is_no_declaration_is_refused_and_changes_nothing(given: Any) -> None:
    registry = Registry()
    with pytest.raises(ConfigurationError):
        registry.declare(given)
    assert registry.entries() == []


def test_r20_annotations_that_cannot_be_meant() -> None:
    registry = Registry()
    bad: dict[str, Any]
    for bad in ({"effect": "fine"}, {"effect": "once", "colour": 1}, {"effect": "once", "note": "x" * 3000}):
        with pytest.raises(ConfigurationError):
            registry.annotate("t", **bad)
    assert registry.effect("t") is Effect.UNKNOWN


def test_r09_two_different_tools_of_one_name_contradict_each_other() -> None:
    def make(effect: Effect | None, module: str) -> Any:
        def search(q: str) -> str:
            return q

        search.__module__ = module
        return tool_effect(effect)(search) if effect else search

    registry = Registry()
    registry.declare([make(Effect.READ_ONLY, "a")])
    registry.declare([make(Effect.READ_ONLY, "b")])
    assert registry.effect("search") is Effect.READ_ONLY
    registry.declare([make(Effect.ONCE, "c")])
    assert registry.effect("search") is Effect.ONCE
    other = Registry()
    other.declare([make(Effect.READ_ONLY, "a")])
    other.declare([make(None, "b")])
    assert other.effect("search") is Effect.ONCE
    assert "contradictory" in other.explain_entry("search").why


def test_the_same_function_may_be_declared_again() -> None:
    registry = Registry()
    registry.declare({"t": Effect.READ_ONLY})
    registry.declare({"t": Effect.ONCE})
    assert registry.effect("t") is Effect.ONCE
    registry.declare({"t": Effect.READ_ONLY})
    assert registry.effect("t") is Effect.READ_ONLY


# --- pins


def mcp(schema: dict[str, Any], read_only: bool = True) -> list[dict[str, Any]]:
    return [{"name": "t", "annotations": {"readOnlyHint": read_only}, "inputSchema": schema}]


ONE = {"type": "object", "properties": {"q": {"type": "string", "description": "words"}}}
SAME = {"properties": {"q": {"description": "other words", "type": "string"}}, "type": "object", "title": "T"}
OTHER = {"type": "object", "properties": {"q": {"type": "string"}, "delete": {"type": "boolean"}}}
PROSE = {"type": "object", "properties": {"q": {"type": "string"}, "description": {"type": "string"}}}


def test_r09_a_tool_whose_schema_has_changed_is_stale() -> None:
    registry = Registry()
    registry.declare(mcp(ONE), trusted=True)
    registry.declare(mcp(SAME), trusted=True)
    assert registry.effect("t") is Effect.READ_ONLY
    for changed in (OTHER, PROSE):
        registry.declare(mcp(changed), trusted=True)
        assert registry.effect("t") is Effect.ONCE
        assert "stale" in registry.explain_entry("t").why
    registry.declare(mcp(ONE), trusted=True)
    assert registry.effect("t") is Effect.READ_ONLY
    registry.declare(mcp(OTHER), trusted=True, repin=True)
    assert registry.effect("t") is Effect.READ_ONLY


@pytest.mark.parametrize("stored", [False, True])
@pytest.mark.anyio
async def test_r09_a_server_that_leaves_the_schema_out_takes_no_pin_away(stored: bool) -> None:
    registry = Registry(MemoryEffects() if stored else None, clock=Clock())
    for schema in (ONE, OTHER, None, OTHER):
        (row,) = mcp(schema or {})
        if schema is None:
            del row["inputSchema"]
        await registry.adeclare([row], namespace="s", trusted=True)
        await registry.refresh(0.0)
        if schema is OTHER:
            assert "stale" in registry.explain_entry("t", "s").why
    assert registry.effect("t", "s") is Effect.ONCE


def test_r09_an_operators_entry_is_stale_too_until_it_is_given_again() -> None:
    registry = Registry()
    registry.declare(mcp(ONE, read_only=False), trusted=True)
    registry.annotate("t", Effect.READ_ONLY)
    assert registry.effect("t") is Effect.READ_ONLY
    registry.declare(mcp(OTHER), trusted=True)
    assert registry.effect("t") is Effect.ONCE
    registry.annotate("t", Effect.READ_ONLY)
    assert registry.effect("t") is Effect.READ_ONLY


@pytest.mark.anyio
async def test_r09_an_operator_elsewhere_pins_what_the_server_has_said_last() -> None:
    """As the command line does, which has not seen the tool itself."""
    store, clock = MemoryEffects(), Clock()
    worker, elsewhere = Registry(store, clock=clock), Registry(store, clock=clock)
    await worker.adeclare(mcp(ONE, read_only=False), trusted=True)
    await worker.aannotate("t", Effect.READ_ONLY)
    await worker.adeclare(mcp(OTHER), trusted=True)
    await worker.refresh(0.0)
    assert worker.explain_entry("t").why.endswith("the operator entry; declare it with repin and annotate it again")
    await worker.awithdraw("t", source="mcp")  # its row is now newer than the operator's
    await worker.adeclare(mcp(OTHER), trusted=True, repin=True)
    await elsewhere.refresh(0.0)
    await elsewhere.aannotate("t", Effect.READ_ONLY)
    await worker.refresh(1.0)
    assert worker.effect("t") is Effect.READ_ONLY


@pytest.mark.anyio
async def test_r09_a_tool_that_says_nothing_does_not_live_on_the_word_of_another_applications() -> None:
    """Two applications share a store, and each has a tool of one name."""

    @tool_effect(Effect.READ_ONLY, key_param="token")
    @tool
    def find(words: str, token: str = "") -> str:
        """Find."""
        return words

    @tool("find")
    def book(words: str, pay: bool) -> str:
        """Find, and book what was found."""
        return words

    @tool("find")
    def same(words: str, token: str = "") -> str:
        """The one that is declared, met where its declaration is not."""
        return words

    store, clock = MemoryEffects(), Clock()
    await Registry(store, clock=clock).adeclare(find)
    other = Registry(store, clock=clock)
    await other.refresh(0.0)
    assert other.spec_of(same) is None
    assert other.effect("find") is Effect.READ_ONLY
    assert other.spec_of(book) is None
    assert other.effect("find") is Effect.ONCE
    assert "stale" in other.explain_entry("find").why
    assert known(book, "find", other).spec.key_param is None
    assert (await store.read())[1][0].effect is Effect.READ_ONLY, "the other application keeps its word"


def test_r09_a_server_that_loosens_its_word_is_not_believed_at_once() -> None:
    registry = Registry()
    registry.declare(mcp(ONE, read_only=False), trusted=True)
    registry.declare(mcp(ONE, read_only=True), trusted=True)
    assert registry.effect("t") is Effect.ONCE
    registry.declare(mcp(ONE, read_only=True), trusted=True, repin=True)
    assert registry.effect("t") is Effect.READ_ONLY


# --- rules


def test_rules_of_an_operator_count_at_call_time() -> None:
    registry = Registry()
    registry.annotate("http", Effect.ONCE, rules={"method": {"GET": "read_only"}})
    assert registry.effect("http") is Effect.ONCE
    assert registry.effect_for("http", {"method": "GET"}) is Effect.READ_ONLY
    assert registry.effect_for("http", {"method": "POST"}) is Effect.ONCE
    assert registry.effect_for("nobody", {"method": "GET"}) is Effect.UNKNOWN
    registry.annotate("http", Effect.READ_ONLY, repeat_allowed=False)
    assert registry.effect("http") is registry.effect_for("http", {}) is Effect.ONCE


# --- with a store


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Failing(MemoryEffects):
    away = False

    async def revision(self) -> int:
        if self.away:
            raise StoreUnavailable
        return await super().revision()

    async def read(self) -> Any:
        self.reads = getattr(self, "reads", 0) + 1
        return await super().read()


@pytest.mark.anyio
async def test_a_change_is_seen_by_other_processes_at_their_next_refresh() -> None:
    store, clock = MemoryEffects(), Clock()
    one, other = Registry(store, clock=clock), Registry(store, clock=clock)
    await one.refresh(0.0)
    await other.refresh(0.0)
    await one.aannotate("send", Effect.READ_ONLY, namespace="crm", note="checked", by="ops")
    assert one.effect("send", "crm") is Effect.READ_ONLY
    assert other.effect("send", "crm") is Effect.UNKNOWN
    assert await other.refresh(1.0)
    assert other.effect("send", "crm") is Effect.READ_ONLY
    await other.aannotate("send", Effect.ONCE, namespace="crm")
    assert await one.refresh(2.0)
    assert one.effect("send", "crm") is Effect.ONCE
    await one.awithdraw("send", namespace="crm")
    await other.refresh(3.0)
    assert one.effect("send", "crm") is other.effect("send", "crm") is Effect.UNKNOWN
    lines = await other.history("send", "crm")
    assert [(line.effect, line.updated_by, line.withdrawn) for line in lines] == [
        (Effect.READ_ONLY, "ops", False),
        (Effect.ONCE, "code", False),
        (Effect.ONCE, "code", True),
    ]


@pytest.mark.anyio
async def test_r09_a_snapshot_not_refreshed_for_a_minute_counts_as_unreadable() -> None:
    store, clock = Failing(), Clock()
    registry = Registry(store, clock=clock)
    registry.declare({"t": Effect.READ_ONLY})
    assert registry.effect("t") is Effect.ONCE
    assert "could not be read" in registry.explain_entry("t").why
    await registry.refresh(0.0)
    assert registry.effect("t") is Effect.READ_ONLY
    store.away = True
    clock.now = FRESH_S
    with pytest.raises(StoreUnavailable):
        await registry.refresh(clock.now)
    assert registry.effect("t") is Effect.READ_ONLY
    clock.now = FRESH_S + 0.1
    assert registry.effect("t") is registry.effect_for("t", {}) is Effect.ONCE
    assert registry.known("t").effect is Effect.READ_ONLY
    store.away = False
    await registry.refresh(clock.now)
    assert registry.effect("t") is Effect.READ_ONLY


@pytest.mark.anyio
async def test_only_a_new_revision_is_read_and_only_news_are_written() -> None:
    store, clock = Failing(), Clock()
    registry = Registry(store, clock=clock)
    await registry.adeclare({"t": Effect.READ_ONLY})
    for tick in range(5):
        await registry.refresh(float(tick))
    reads = store.reads
    assert reads <= 3
    again = Registry(store, clock=clock)
    await again.adeclare({"t": Effect.READ_ONLY})
    assert await store.revision() == 1
    await registry.refresh(6.0)
    assert store.reads == reads + 1


@pytest.mark.anyio
async def test_r09_a_pin_holds_across_processes() -> None:
    store, clock = MemoryEffects(), Clock()
    first = Registry(store, clock=clock)
    await first.adeclare(mcp(ONE), namespace="s", trusted=True)
    await first.refresh(0.0)
    assert first.effect("t", "s") is Effect.READ_ONLY
    second = Registry(store, clock=clock)
    await second.adeclare(mcp(OTHER), namespace="s", trusted=True)
    await second.refresh(0.0)
    assert second.effect("t", "s") is Effect.ONCE
    assert first.effect("t", "s") is Effect.READ_ONLY
    await second.adeclare(mcp(OTHER), namespace="s", trusted=True, repin=True)
    await second.refresh(1.0)
    await first.refresh(1.0)
    assert second.effect("t", "s") is Effect.READ_ONLY
    assert first.effect("t", "s") is Effect.ONCE


@pytest.mark.anyio
async def test_what_could_not_be_written_is_written_later() -> None:
    store, clock = Failing(), Clock()
    store.away = True
    registry = Registry(store, clock=clock)
    with pytest.raises(StoreUnavailable):
        await registry.aannotate("t", Effect.ONCE)
    store.away = False
    await registry.refresh(0.0)
    _, (row,) = await store.read()
    assert (row.name, row.source) == ("t", "operator")


@pytest.mark.anyio
async def test_r09_rows_that_make_no_sense_bar() -> None:
    store, clock = MemoryEffects(), Clock()
    registry = Registry(store, clock=clock)
    good = EffectRow(namespace="", name="t", effect=Effect.READ_ONLY, source="code")
    for name, row in {
        "problem": EffectRow(namespace="", name="t", effect=Effect.UNKNOWN, source="operator", problem="no sense"),
        "source": EffectRow(namespace="", name="t", effect=Effect.READ_ONLY, source="rumour"),
        "settings": EffectRow(
            namespace="", name="t", effect=Effect.READ_ONLY, source="operator", settings={"colour": 1}
        ),
        "rules": EffectRow(
            namespace="", name="t", effect=Effect.READ_ONLY, source="operator", rules={"a": {"b": "nice"}}
        ),
    }.items():
        await store.write([good, row], by="hand")
        await registry.refresh(0.0)
        assert registry.effect("t") is Effect.ONCE, name
        assert "unreadable" in registry.explain_entry("t").why
        await store.withdraw("", "t", row.source, by="hand")
        await registry.refresh(0.0)
        assert registry.effect("t") is Effect.READ_ONLY


def test_c10_a_verdict_is_looked_up_and_asks_no_store() -> None:
    """(That it takes less than 2 us is measured by `python -m tests.benchmarks.ledger`.)"""

    class Asked(MemoryEffects):
        async def revision(self) -> int:
            raise AssertionError("a verdict asked the store")

        read = revision  # type: ignore[assignment]

    store: Any = MemoryEffects()
    registry = Registry(store)
    asyncio.run(registry.refresh(registry._clock()))
    registry.declare({"t": Effect.READ_ONLY}, namespace="crm")
    store.__class__ = Asked
    assert registry.effect("t", "crm") is Effect.READ_ONLY
    assert registry.effect_for("t", {"x": 1}, "crm") is Effect.READ_ONLY
    assert registry.known("t", "crm").source == "code"


def test_one_langchain_tool_is_declared_by_itself() -> None:
    from langchain_core.tools import tool

    @tool_effect(Effect.READ_ONLY)
    @tool
    def look(query: str) -> str:
        """Look."""
        return query

    (entry,) = Registry().declare(look)
    assert (entry.name, entry.effect, entry.source) == ("look", Effect.READ_ONLY, "code")
