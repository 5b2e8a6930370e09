"""Names and rows that mean harm (C9, R20): refused before SQL, or read as barred; nothing secret is stored or said."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from sqlalchemy import text

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import EffectRow, RunRow, Switch
from agent_hedge.errors import ConfigurationError, StoreUnavailable
from agent_hedge.stores.sql import SqlStores
from agent_hedge.stores.sql.schema import metadata
from agent_hedge.testing.suites.claims import a_claim, digest

CANARY = "canary-8f1c"
HOSTILE = ["a\0b", "\ud800", "n" * 600, 7, None, b"x"]
SQL = pytest.mark.parametrize("sql", ["sqlite", "psycopg", "asyncpg"], indirect=True)


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_r20_hostile_names_never_become_rows(name: Any) -> None:
    makers: list[Any] = [
        lambda: EffectRow(namespace="", name=name, effect=Effect.ONCE, source="code"),
        lambda: EffectRow(namespace=name, name="t", effect=Effect.ONCE, source="code"),
        lambda: RunRow(run_key=name),
        lambda: Switch(scope_kind="node", scope=name, mode="off"),
        lambda: a_claim(thread=name),
        lambda: a_claim(tool=name),
        lambda: a_claim(principal=name),
    ]
    for make in makers:
        with pytest.raises(ConfigurationError) as caught:
            make()
        assert len(str(caught.value)) < 120


@pytest.mark.parametrize("key", ["", "order-17", "F" * 64, "f" * 63, "f" * 64 + "\n"])
def test_r20_only_digests_are_keys(key: str) -> None:
    with pytest.raises(ConfigurationError):
        a_claim(effect_key=key)
    if key:
        with pytest.raises(ConfigurationError):
            a_claim(args_fingerprint=key)


@pytest.mark.parametrize(("field", "value"), [("scope_kind", "planet"), ("mode", "maybe")])
def test_r20_switches_take_known_words(field: str, value: str) -> None:
    with pytest.raises(ConfigurationError):
        Switch(**({"scope_kind": "fleet", "scope": "", "mode": "on"} | {field: value}))  # type: ignore[arg-type]


@SQL
@pytest.mark.anyio
async def test_r09_rows_written_by_hand_that_make_no_sense_are_unknown(sql: SqlStores) -> None:
    bad: dict[str, dict[str, Any]] = {
        "enum": {"effect": "READ_ONLY"},
        "empty": {"effect": ""},
        "json": {"rules": "{not json"},
        "rule": {"rules": '{"method": {"GET": "harmless"}}'},
        "list": {"settings": "[1]"},
        "truth": {"trusted": 7},
        "truth2": {"repeat_allowed": -1},
        "name\tÿ": {"effect": "nonsense"},
    }
    base: dict[str, Any] = {
        "namespace": "",
        "source": "operator",
        "effect": "read_only",
        "repeat_allowed": 1,
        "trusted": 1,
        "schema_hash": "",
        "rules": None,
        "settings": None,
        "note": "",
        "revision": 1,
        "updated_at": 1.0,
        "updated_by": "hand",
    }
    names = ", ".join([*base, "name"])
    values = ", ".join(f":{name}" for name in [*base, "name"])
    async with sql.database.engine.begin() as connection:
        for name, change in bad.items():
            await connection.execute(
                text(f"INSERT INTO tool_effects ({names}) VALUES ({values})"), {**base, **change, "name": name}
            )
        await connection.execute(text(f"INSERT INTO tool_effects ({names}) VALUES ({values})"), {**base, "name": "ok"})
    _, rows = await sql.effects.read()
    assert len(rows) == len(bad) + 1
    for row in rows:
        assert (row.effect, bool(row.problem)) == (
            (Effect.READ_ONLY, False) if row.name == "ok" else (Effect.UNKNOWN, True)
        )


@SQL
@pytest.mark.anyio
async def test_r21_a_switch_that_makes_no_sense_is_off(sql: SqlStores) -> None:
    async with sql.database.engine.begin() as connection:
        for kind, scope, mode in (("target", "eu", "perhaps"), ("planet", "earth", "on")):
            await connection.execute(
                text(
                    "INSERT INTO switches (scope_kind, scope, mode, reason, updated_at) "
                    f"VALUES ('{kind}', '{scope}', '{mode}', '', 0)"
                )
            )
    found = {(s.scope_kind, s.scope, s.mode) for s in await sql.switches.switches()}
    assert found == {("target", "eu", "off"), ("fleet", "", "off")}


@SQL
@pytest.mark.anyio
async def test_r11_a_claim_that_makes_no_sense_is_never_free(sql: SqlStores) -> None:
    await sql.claims.claim(a_claim("state"), lease=0)
    await sql.claims.claim(a_claim("tool", "a2"), lease=0)
    async with sql.database.engine.begin() as connection:
        await connection.execute(
            text(f"UPDATE effect_claims SET state = 'perhaps' WHERE effect_key = '{digest('state')}'")
        )
        await connection.execute(text(f"UPDATE effect_claims SET tool = '' WHERE effect_key = '{digest('tool')}'"))
    standing = await sql.claims.claim(a_claim("state", "a9"), lease=60)
    assert (standing.attempt_id, standing.state.value) == ("a1", "in_doubt")
    with pytest.raises(StoreUnavailable, match="makes no sense"):
        await sql.claims.claim(a_claim("tool", "a9"), lease=60)


@SQL
@pytest.mark.anyio
async def test_r18_secrets_stay_out_of_rows_logs_and_errors(sql: SqlStores, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        claim = a_claim(digest(CANARY), args_fingerprint=digest(f"args {CANARY}"))
        await sql.claims.claim(claim, lease=60)
        async with sql.database.engine.begin() as connection:
            await connection.execute(text("ALTER TABLE runs RENAME TO runs_away"))
        try:
            with pytest.raises(StoreUnavailable) as caught:
                await sql.runs.save(RunRow(run_key=CANARY))
        finally:
            async with sql.database.engine.begin() as connection:
                await connection.execute(text("ALTER TABLE runs_away RENAME TO runs"))
        error: BaseException | None = caught.value
        while error is not None:
            assert CANARY not in f"{error!r}{error.__dict__}"
            error = error.__cause__ or error.__context__
        dump = []
        async with sql.database.engine.connect() as connection:
            for name in metadata.tables:
                dump += [str(tuple(row)) for row in await connection.execute(text(f"SELECT * FROM {name}"))]
        await asyncio.sleep(0)
    assert CANARY not in "".join(dump)
    assert CANARY not in caplog.text
    assert CANARY not in repr(sql.database)
