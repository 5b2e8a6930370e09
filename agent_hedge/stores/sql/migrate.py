"""Bringing a database to the tables of this release, and back.

One transaction per command, entered through a lock that concurrent commands queue at (an advisory lock on PostgreSQL,
`BEGIN IMMEDIATE` on SQLite). Alembic keeps the running migration in module globals, so within a process one command
runs at a time, on an event loop of its own.
"""

from __future__ import annotations

import asyncio
import io
import re
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, MetaData, Table, column, func, inspect, select, table, text
from sqlalchemy.exc import SQLAlchemyError

from agent_hedge.errors import ConfigurationError, StoreUnavailable
from agent_hedge.stores.sql import sqlite as files
from agent_hedge.stores.sql.connect import make_engine
from agent_hedge.stores.sql.faults import LOST, described
from agent_hedge.stores.sql.schema import VERSION_TABLE, effect_claims, metadata, store_meta
from agent_hedge.stores.sql.url import Store, check_schema, shown, sqlite_path, store_url

_ADVISORY_LOCK = 0x6167656E74_68
"""Any number nobody else locks: "agenth" in ASCII."""
_ALEMBIC = threading.Lock()
_COMMAND_S = 300.0
OLDEST_CODE = "0001"
"""The oldest release (by its head revision) that may go on running on these tables: adjacent releases share them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What `check` found. `problems` is empty when this release can use the database."""

    store: str
    revision: str | None
    head: str
    uuid: str = ""
    problems: list[str] = field(default_factory=list)


@cache
def scripts() -> Path:
    """Return the folder of the migrations: inside the package in a wheel, at the top of the repository otherwise."""
    here = Path(__file__).parent / "migrations"
    top = Path(__file__).parents[3] / "migrations"
    for folder in (here, top):
        if (folder / "env.py").is_file():
            return folder
    raise ConfigurationError("the migrations of agent_hedge are missing from this installation")


@cache
def head() -> str:
    """Return the newest revision."""
    found = ScriptDirectory(str(scripts())).get_current_head()
    if found is None:
        raise ConfigurationError("the migrations of agent_hedge are missing from this installation")
    return found


def upgrade(store: Store, *, schema: str | None = None, revision: str = "head") -> Status:
    """Create what is missing (a missing SQLite file too) and migrate; safe to run from many processes at once."""
    url = store_url(store)
    check_schema(schema, url)
    if url.get_backend_name() == "sqlite":
        path = sqlite_path(url)
        if not path.exists():
            create_sqlite(path, revision)
        files.examine(path)
    return _command(store, schema, lambda connection: _upgrade(connection, schema, revision))


def downgrade(store: Store, revision: str, *, schema: str | None = None, force: bool = False) -> Status:
    """Migrate back to `revision` (``base`` drops every table).

    Without its claim an effect could happen again, so to drop the table of claims while it holds any needs `force`.
    """
    _must_exist(store)
    return _command(store, schema, lambda connection: _downgrade(connection, schema, revision, force))


def check(store: Store, *, schema: str | None = None) -> Status:
    """Return whether this release can use the database, and what is missing; changes nothing."""
    _must_exist(store)
    return _command(store, schema, lambda connection: None)


def upgrade_sql(store: Store, *, schema: str | None = None, revision: str = "head") -> str:
    """Return the statements of an upgrade, for review or for a database administrator to run.

    From nothing, or, where `revision` is ``FROM:TO``, from there.
    """
    url = store_url(store)
    check_schema(schema, url)
    out = io.StringIO()
    config = _config(None, schema)
    config.output_buffer = out
    config.attributes["dialect"] = url.get_backend_name()
    with _ALEMBIC:
        _alembic(command.upgrade, config, revision, sql=True)
    if ":" in revision:
        return out.getvalue()
    meta = _with_schema(store_meta, schema)
    for row in _birth_rows():
        insert = meta.insert().values(row)
        out.write(f"\n{insert.compile(dialect=url.get_dialect()(), compile_kwargs={'literal_binds': True})};\n")
    prologue = f"CREATE SCHEMA IF NOT EXISTS {schema};\n\n" if schema else ""
    return prologue + out.getvalue()


def grants(role: str, *, schema: str | None = None) -> str:
    """Return the least a role needs at run time: rows of all tables, and nothing of their definition."""
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,62}", role):
        raise ConfigurationError("a role is named by lower-case letters, digits and underscores, 63 at most")
    prefix = f"{schema}." if schema else ""
    names = ", ".join(f"{prefix}{name}" for name in sorted(metadata.tables))
    return "\n".join(
        [
            f"GRANT USAGE ON SCHEMA {schema or 'public'} TO {role};",
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {names} TO {role};",
            f"GRANT SELECT ON {prefix}{VERSION_TABLE} TO {role};",
            f"GRANT USAGE ON SEQUENCE {prefix}tool_effect_history_id_seq TO {role};",
        ]
    )


def create_sqlite(path: Path, revision: str = "head") -> None:
    """Create and migrate a new SQLite database under its final name in one step."""

    def fill(draft: Path) -> None:
        _command(f"sqlite:///{draft}", None, lambda connection: _upgrade(connection, None, revision))

    files.give_birth(path, fill)


def _must_exist(store: Store) -> None:
    url = store_url(store)
    if url.get_backend_name() == "sqlite":
        path = sqlite_path(url)
        if not path.exists():
            raise ConfigurationError(f"{path} does not exist; create it with: agent-hedge db upgrade")
        files.examine(path)


# --- inside the transaction


def _command(store: Store, schema: str | None, work: Any) -> Status:
    url = store_url(store)
    check_schema(schema, url)
    with _ALEMBIC, ThreadPoolExecutor(1) as thread:  # the caller's thread may be running a loop of its own
        try:
            return thread.submit(lambda: asyncio.run(_transaction(store, schema, work))).result()
        except (SQLAlchemyError, *LOST) as error:
            failure = described(error)
    raise StoreUnavailable(f"The database command failed and changed nothing ({failure}).")


async def _transaction(store: Store, schema: str | None, work: Any) -> Status:
    url = store_url(store)
    engine = make_engine(store, timeout=_COMMAND_S if url.get_backend_name() == "sqlite" else 10.0)
    try:
        async with engine.begin() as connection:
            if url.get_backend_name() == "postgresql":
                await connection.execute(select(func.pg_advisory_xact_lock(_ADVISORY_LOCK)))
            await connection.run_sync(work)
            return await connection.run_sync(_status, url, schema)
    finally:
        await engine.dispose()


def _upgrade(connection: Connection, schema: str | None, revision: str) -> None:
    found = inspect(connection)
    if schema and not found.has_schema(schema):
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    if not found.has_table(VERSION_TABLE, schema=schema):
        taken = sorted(set(metadata.tables) & set(found.get_table_names(schema=schema)))
        if taken:
            raise ConfigurationError(
                f"the database already has tables of another owner named {', '.join(taken)}; "
                "give agent_hedge a schema (PostgreSQL) or a file (SQLite) of its own"
            )
    _alembic(command.upgrade, _config(connection, schema), revision)
    meta = _with_schema(store_meta, schema)
    present = set(connection.execute(select(meta.c.name)).scalars())
    for row in _birth_rows():
        if row["name"] not in present:
            connection.execute(meta.insert().values(row))


def _downgrade(connection: Connection, schema: str | None, revision: str, force: bool) -> None:
    if _revision(connection, schema) is None:
        raise ConfigurationError("the database holds no agent_hedge tables")
    kept = [] if force else _claims_kept(connection, schema)
    _alembic(command.downgrade, _config(connection, schema), revision)
    if kept and not inspect(connection).has_table(effect_claims.name, schema=schema):  # undone by the transaction
        raise ConfigurationError(
            f"this drops the claims of side effects ({', '.join(kept)}); "
            "without them an effect could happen twice. Look at them (agent-hedge ledger list), then use --force"
        )


def _claims_kept(connection: Connection, schema: str | None) -> list[str]:
    """Count the claims of each state but `failed`, whose effect is known not to have happened: ``3 done``..."""
    if not inspect(connection).has_table(effect_claims.name, schema=schema):
        return []
    claims = _with_schema(effect_claims, schema)
    counted = select(claims.c.state, func.count()).where(claims.c.state != "failed").group_by(claims.c.state)
    return [f"{number} {state}" for state, number in connection.execute(counted.order_by(claims.c.state))]


def _status(connection: Connection, url: Any, schema: str | None) -> Status:
    found = inspect(connection)
    if _revision(connection, schema) is None:
        return Status(store=shown(url), revision=None, head=head(), problems=["no agent_hedge tables"])
    revision, meta = read_version(connection, schema)
    problems = []
    try:
        check_version(revision, meta, "agent-hedge db upgrade")
    except ConfigurationError as error:
        problems.append(str(error))
    if revision == head():
        for name, wanted in metadata.tables.items():
            if not found.has_table(name, schema=schema):
                problems.append(f"table {name} is missing")
                continue
            columns = {item["name"] for item in found.get_columns(name, schema=schema)}
            problems += [f"column {name}.{item.name} is missing" for item in wanted.c if item.name not in columns]
    return Status(store=shown(url), revision=revision, head=head(), uuid=meta.get("uuid") or "", problems=problems)


def read_version(connection: Connection, schema: str | None) -> tuple[str | None, dict[str, str]]:
    """Return the revision of a database (None: it holds no tables of ours) and its `store_meta` texts."""
    revision = _revision(connection, schema)
    if revision is None or not inspect(connection).has_table("store_meta", schema=schema):
        return revision, {}
    meta = _with_schema(store_meta, schema)
    rows = connection.execute(select(meta.c.name, meta.c.text)).all()
    return revision, {name: value for name, value in rows if value is not None}


def _revision(connection: Connection, schema: str | None) -> str | None:
    if not inspect(connection).has_table(VERSION_TABLE, schema=schema):
        return None
    version = table(VERSION_TABLE, column("version_num"), schema=schema)
    revision: str | None = connection.execute(select(version.c.version_num)).scalar()
    return revision


def check_version(revision: str | None, meta: Mapping[str, str], upgrade_command: str) -> None:
    """Raise `ConfigurationError` unless this release can use a database at `revision`."""
    if revision == head() and meta.get("uuid"):
        return
    if revision is not None and revision > head():
        if meta.get("oldest_code", revision) <= head():
            return
        raise ConfigurationError(f"the database (revision {revision}) is newer than this release can use: {head()}")
    raise ConfigurationError(
        f"the database is at revision {revision}, this release needs {head()}; run: {upgrade_command}"
    )


def _with_schema(found: Table, schema: str | None) -> Table:
    return found.to_metadata(MetaData(), schema=schema) if schema else found


def _birth_rows() -> list[dict[str, Any]]:
    return [
        {"name": "uuid", "text": str(uuid4()), "number": None},
        {"name": "oldest_code", "text": OLDEST_CODE, "number": None},
        {"name": "effects_revision", "text": None, "number": 0},
    ]


def _config(connection: Connection | None, schema: str | None) -> Config:
    config = Config()
    config.set_main_option("script_location", str(scripts()).replace("%", "%%"))
    config.attributes.update(connection=connection, schema=schema)
    return config


def _alembic(verb: Any, *arguments: Any, **options: Any) -> None:
    try:
        verb(*arguments, **options)
    except CommandError as error:
        raise ConfigurationError(f"cannot migrate: {error}") from None
