"""``agent-hedge db`` and ``tools``: what they do, say, and how they end."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agent_hedge.cli.__main__ import app
from agent_hedge.stores.sql import migrate

SECRET = "canary-p4ssw0rd"


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    migrate.upgrade(url)
    return url


def run(*arguments: str, store: str = "", code: int = 0, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, arguments, input=stdin, env={"AGENT_HEDGE_STORE": store, "COLUMNS": "200"})
    assert result.exit_code == code, (result.output, result.exception)
    return result


def as_json(*arguments: str, store: str, code: int = 0) -> Any:
    return json.loads(run(*arguments, "--json", store=store, code=code).stdout)


def test_only_upgrade_creates_a_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new.db"
    for command in (["tools", "list"], ["db", "prune"], ["db", "check"], ["db", "downgrade", "base"]):
        assert "agent-hedge db upgrade" in run(*command, store=url, code=2).stderr
        assert not (tmp_path / "new.db").exists(), command
    assert migrate.head() in run("db", "upgrade", "--store", url).stdout
    assert as_json("db", "check", store=url)[0]["problems"] == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["tools", "list"], "which store?"),
        (["tools", "list", "--store", f"mysql://u:{SECRET}@h/d"], "no store for the scheme 'mysql'"),
        (["db", "upgrade", "--store", f"u:{SECRET}@h/d"], "a store is a URL"),
        (["db", "upgrade", "--store", "sqlite:////no/such/folder/x.db"], "does not exist"),
        (["db", "upgrade", "--store", "sqlite:///x.db", "--schema", "a"], "schema= is for PostgreSQL"),
    ],
)
def test_r20_an_error_of_the_users_making_is_one_line_and_exit_2(arguments: list[str], says: str) -> None:
    result = run(*arguments, code=2)
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert SECRET not in result.output


def test_a_store_that_does_not_answer_is_one_line_and_exit_1() -> None:
    result = run("tools", "list", store=f"postgresql://u:{SECRET}@127.0.0.1:1/d", code=1)
    assert "cannot be opened" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert SECRET not in result.output


def test_sql_and_grants_are_printed() -> None:
    script = run("db", "upgrade", "--sql", "--schema", "ops", store="postgresql://h/d").stdout
    assert "CREATE TABLE ops.effect_claims" in script
    assert "CREATE SCHEMA IF NOT EXISTS ops" in script
    assert (
        "GRANT SELECT, INSERT, UPDATE, DELETE ON ops."
        in run("db", "upgrade", "--grants", "w", "--schema", "ops").stdout
    )


def test_down_and_up(url: str) -> None:
    run("db", "downgrade", "base", store=url)
    assert "no agent_hedge tables" in run("db", "check", store=url, code=1).stdout
    run("db", "downgrade", "base", store=url, code=2)
    run("db", "upgrade", store=url)
    assert as_json("db", "prune", store=url) == [{"claims": 0, "steps": 0, "runs": 0, "latency_slices": 0}]
    for days in ("0", "-1", "inf", "nan"):
        run("db", "prune", "--older-than", days, store=url, code=2)


def test_a_user_without_a_name_is_written_down_by_number(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs under any number."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found")

    monkeypatch.setattr("getpass.getuser", nameless)
    run("tools", "annotate", "send", "once", store=url)
    (line,) = as_json("tools", "history", "send", store=url)
    assert line["by"] == f"uid {os.getuid()}"


def test_annotate_list_history_withdraw(url: str) -> None:
    run(
        "tools",
        "annotate",
        "send",
        "once",
        "--namespace",
        "crm",
        "--note",
        "sends [bold]mail[/]",
        "--by",
        "ops",
        store=url,
    )
    run("tools", "annotate", "http", "once", "--rule", "method=GET:read_only", store=url)
    (http, send) = as_json("tools", "list", store=url)
    assert send == {
        "namespace": "crm",
        "name": "send",
        "effect": "once",
        "hedgeable": False,
        "source": "operator",
        "why": "the operator says so",
    }
    assert http["effect"] == "once"
    assert "send" in run("tools", "list", "-n", "crm", store=url).stdout
    run("tools", "annotate", "send", "--namespace", "crm", "--withdraw", "--by", "ops", store=url)
    lines = as_json("tools", "history", "send", "--namespace", "crm", store=url)
    assert [(line["change"], line["by"]) for line in lines] == [("said", "ops"), ("withdrawn", "ops")]
    assert "[bold]" in run("tools", "history", "send", "-n", "crm", store=url).stdout
    for bad in (["send", "maybe"], ["send"], ["a\0b", "once"], ["send", "once", "--rule", "nonsense"]):
        run("tools", "annotate", *bad, store=url, code=2)
    run("tools", "annotate", "send", "once", "--scope", "tenant", store=url, code=2)


def test_declare_check_and_repin(url: str, tmp_path: Path) -> None:
    listed: dict[str, list[dict[str, Any]]] = {
        "tools": [
            {"name": "get", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}},
            {"name": "send", "annotations": None, "inputSchema": {"type": "object"}},
        ]
    }
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(listed))
    entries = as_json("tools", "declare", str(file), "--namespace", "crm", "--trusted", store=url)
    assert {entry["name"]: entry["effect"] for entry in entries} == {"get": "read_only", "send": "unknown"}
    run("tools", "check", store=url)
    found = as_json("tools", "check", "--against", str(file), "--namespace", "crm", store=url, code=1)
    assert [entry["name"] for entry in found] == ["send"]
    listed["tools"][0]["inputSchema"] = {"type": "object", "properties": {"delete": {"type": "boolean"}}}
    file.write_text(json.dumps(listed))
    stale = as_json("tools", "check", "--against", str(file), "--namespace", "crm", store=url, code=1)
    assert any("stale" in entry["why"] for entry in stale)
    entries = as_json("tools", "declare", str(file), "-n", "crm", "--trusted", "--repin", store=url)
    assert entries[0]["effect"] == "read_only"
    assert as_json("tools", "list", store=url)[0]["effect"] == "read_only"


def test_export_and_apply(url: str, tmp_path: Path) -> None:
    run("tools", "annotate", "pay", "keyed", "--key", "order_id", "--scope", "tenant", "--retention", "3600", store=url)
    run("tools", "annotate", "send", "once", "--no-repeat", "--note", "mail", store=url)
    file = tmp_path / "effects.json"
    run("tools", "export", "--output", str(file), store=url)
    exported = json.loads(file.read_text())
    assert exported["tools"] == [
        {"name": "pay", "effect": "keyed", "key": "order_id", "scope": "tenant", "retention": 3600.0},
        {"name": "send", "effect": "once", "repeat_allowed": False, "note": "mail"},
    ]
    assert "no changes" in run("tools", "apply", str(file), store=url).stdout
    exported["tools"] = [
        {"name": "pay", "effect": "once"},
        {"name": "look", "effect": "read_only", "namespace": "crm", "rules": {"deep": {"true": "once"}}},
    ]
    file.write_text(json.dumps(exported))
    dry = as_json("tools", "apply", str(file), "--dry-run", "--prune", store=url)
    assert sorted((change["change"], change["name"]) for change in dry) == [
        ("add", "look"),
        ("change", "pay"),
        ("withdraw", "send"),
    ]
    assert {entry["name"] for entry in as_json("tools", "list", store=url)} == {"pay", "send"}
    run("tools", "apply", str(file), "--prune", "--by", "ci", store=url)
    assert {entry["name"]: entry["effect"] for entry in as_json("tools", "list", store=url)} == {
        "pay": "once",
        "look": "once",
    }
    assert "no changes" in run("tools", "apply", "-", "--prune", store=url, stdin=file.read_text()).stdout


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        '{"format": 2, "tools": []}',
        '{"format": 1, "tools": [{"name": "a"}]}',
        '{"format": 1, "tools": [{"name": "a", "effect": "fine"}]}',
        '{"format": 1, "tools": [{"name": "a", "effect": "once", "colour": 1}]}',
        '{"format": 1, "tools": [{"name": "a", "effect": "once"}, {"name": "a", "effect": "once"}]}',
        '{"format": 1, "tools": [{"name": 7, "effect": "once"}]}',
        '{"format": 1, "tools": [{"name": "\\u0000", "effect": "once"}]}',
        '{"format": 1, "tools": [{"name": "a", "effect": "once", "schema_hash": "abc"}]}',
        '{"format": 1, "tools": [{"name": "a", "effect": "once", "rules": {"n": {"1": "once", "1.0": 1}}}]}',
    ],
)
def test_r20_a_file_that_makes_no_sense_changes_nothing(url: str, tmp_path: Path, content: str) -> None:
    file = tmp_path / "effects.json"
    file.write_text(content)
    result = run("tools", "apply", str(file), store=url, code=2)
    assert len(result.stderr.strip().splitlines()) == 1
    if "colour" in content:
        assert result.stderr == "agent-hedge: tool 1: no such setting of a tool: colour\n"
    assert as_json("tools", "list", store=url) == []
    run("tools", "apply", str(tmp_path / "missing.json"), store=url, code=2)
