"""`agent-hedge ledger` on a real file."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_hedge.cli.__main__ import app
from agent_hedge.core.stores import Claim, ClaimState
from agent_hedge.stores.sql import migrate, sql_stores
from agent_hedge.testing.suites.claims import a_claim, digest

CANARY = "canary-4711"


@pytest.fixture
def store(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    migrate.upgrade(url)

    async def fill() -> None:
        stores = sql_stores(url)
        await stores.claims.claim(a_claim("done", "a1"), lease=60)
        await stores.claims.settle(digest("done"), "a1", ClaimState.DONE, result=CANARY.encode())
        for name in ("doubt", "other"):
            await stores.claims.claim(a_claim(name, name), lease=60)
            await stores.claims.settle(digest(name), name, ClaimState.IN_DOUBT, note="its owner died")
        await stores.claims.claim(a_claim("live", "a3"), lease=600)
        await stores.claims.claim(a_claim("dead", "a4"), lease=0)
        await stores.close()

    asyncio.run(fill())
    return url


def run(*arguments: str, store: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["ledger", *arguments, "--store", store])
    assert result.exit_code == code, result.output
    return result.output


def claim_of(store: str, name: str) -> Claim:
    async def read() -> Claim | None:
        stores = sql_stores(store)
        try:
            return await stores.claims.get(digest(name))
        finally:
            await stores.close()

    found = asyncio.run(read())
    assert found is not None
    return found


def test_list_shows_states_and_no_results(store: str) -> None:
    rows: list[dict[str, Any]] = json.loads(run("list", "--json", store=store))
    assert {row["state"] for row in rows} == {"done", "in_doubt", "running", "running (owner silent)"}
    assert CANARY not in run("list", store=store)
    doubts = json.loads(run("list", "--state", "in_doubt", "--json", store=store))
    assert {row["note"] for row in doubts} == {"its owner died"}
    assert len(doubts) == 2
    assert len(json.loads(run("list", "-n", "1", "--json", store=store))) == 1


def test_show_takes_the_beginning_of_a_key(store: str) -> None:
    (row,) = json.loads(run("show", digest("doubt")[:10], "--json", store=store))
    assert (row["key"], row["state"]) == (digest("doubt"), "in_doubt")
    assert "its owner died" in run("show", digest("doubt"), store=store)
    assert CANARY not in run("show", digest("done"), store=store)


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        ("happened", ClaimState.DONE),
        ("did_not_happen", ClaimState.FAILED),
        ("abandon", ClaimState.IN_DOUBT),
    ],
)
@pytest.mark.parametrize("name", ["doubt", "dead"])
def test_r11_resolve_settles_what_is_open(store: str, answer: str, state: ClaimState, name: str) -> None:
    run("resolve", digest(name)[:12], answer, store=store)
    found = claim_of(store, name)
    assert found.state is state
    assert "a person" in found.note
    assert claim_of(store, "other").confirmed  # whoever answers has seen the thread


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("resolve", digest("done"), "happened"), "nothing to resolve"),
        (("resolve", digest("live"), "did_not_happen"), "running"),
        (("resolve", digest("doubt"), "perhaps"), "an answer is one of"),
        (("show", "0" * 64), "no claim"),
        (("show", "zz"), "no claim"),
        (("fence", "--since", "yesterday"), "is no time"),
        (("fence", "--since", str(time.time() + 1e6)), "future"),
    ],
)
def test_r20_one_clear_line_and_exit_code_2(store: str, arguments: tuple[str, ...], said: str) -> None:
    output = run(*arguments, store=store, code=2)
    assert said in output
    assert len(output.strip().splitlines()) == 1


def test_r11_fence_remembers_what_a_backup_has_lost(store: str) -> None:
    (row,) = json.loads(run("fence", "--since", "2026-01-01T00:00:00+00:00", "--json", store=store))
    assert row["since"] < row["until"]


def test_r11_prune_takes_only_done_rows_of_the_age_it_is_told(store: str) -> None:
    with sqlite3.connect(store.removeprefix("sqlite:///")) as connection:  # all of them 10 days ago
        for column in ("claimed_at", "settled_at"):
            connection.execute(f"UPDATE effect_claims SET {column} = {column} - 864000")
    for days, pruned, left in (("30", 0, 5), ("9", 1, 4), ("0.001", 0, 4)):
        told = CliRunner().invoke(app, ["db", "prune", "--older-than", days, "--store", store, "--json"])
        assert json.loads(told.output)[0]["claims"] == pruned
        states = [row["state"] for row in json.loads(run("list", "--json", store=store))]
        assert len(states) == left
    assert sorted(states) == ["in_doubt", "in_doubt", "running", "running (owner silent)"]


def test_a_missing_store_is_named(tmp_path: Path) -> None:
    assert "which store?" in run("list", store="", code=2)
    assert "does not exist" in run("list", store=f"sqlite:///{tmp_path / 'no.db'}", code=2)
