"""All tables (DESIGN 7), as SQLAlchemy metadata without a schema name; `Database` maps one in where it is asked to.

Times ending in `_at` are epoch seconds, `lease_until` and `clock_at` are seconds on the clock named by `clock`.
Truth values are small integers and JSON is text: a row that somebody wrote by hand must be readable before it can be
judged. Nothing here holds a prompt, a completion or an argument; `effect_claims.result` holds what the ledger's codec
made of a result.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    String,
    Table,
    Text,
)
from sqlalchemy.types import TypeEngine

VERSION_TABLE = "agent_hedge_version"
"""Alembic's table. A name of its own, because the database may be the application's."""

NAME = String(255)
WORKER = String(64)
KEY = String(512)
"""An index entry of PostgreSQL holds 2,704 bytes at most, and a character takes up to 4."""
DIGEST = String(64)
WORD = String(32)

metadata = MetaData(
    naming_convention={"ix": "ix_%(table_name)s_%(column_0_N_name)s", "pk": "pk_%(table_name)s"},
)


def required(name: str, kind: TypeEngine[Any], default: str | None = None) -> Column[Any]:
    """A column that is never NULL. `default`: what a release that does not know the column leaves in it."""
    return Column(name, kind, nullable=False, server_default=default)


store_meta = Table(
    "store_meta",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("text", Text),
    Column("number", BigInteger),
)
"""`uuid`: this ledger and no other; `effects_revision`; `fence_since` and `fence_until`; `oldest_code`."""

tool_effects = Table(
    "tool_effects",
    metadata,
    Column("namespace", NAME, primary_key=True),
    Column("name", NAME, primary_key=True),
    Column("source", WORD, primary_key=True),
    required("effect", WORD),
    required("repeat_allowed", SmallInteger()),
    required("trusted", SmallInteger()),
    required("schema_hash", DIGEST),
    Column("rules", Text),
    Column("settings", Text),
    required("note", Text()),
    required("revision", BigInteger()),
    required("updated_at", Double()),
    required("updated_by", NAME),
)

tool_effect_history = Table(
    "tool_effect_history",
    metadata,
    Column("id", BigInteger().with_variant(Integer(), "sqlite"), primary_key=True, autoincrement=True),
    required("namespace", NAME),
    required("name", NAME),
    required("source", WORD),
    required("effect", WORD),
    required("repeat_allowed", SmallInteger()),
    required("trusted", SmallInteger()),
    required("schema_hash", DIGEST),
    Column("rules", Text),
    Column("settings", Text),
    required("note", Text()),
    required("revision", BigInteger()),
    required("updated_at", Double()),
    required("updated_by", NAME),
    required("withdrawn", SmallInteger()),
    Index(None, "namespace", "name"),
)

effect_claims = Table(
    "effect_claims",
    metadata,
    Column("effect_key", DIGEST, primary_key=True),
    required("tool", NAME),
    required("effect", WORD),
    required("args_fingerprint", DIGEST),
    required("run_key", KEY),
    required("thread", KEY),
    required("call_id", KEY),
    required("principal", NAME),
    required("state", WORD),
    required("confirmed", SmallInteger()),
    required("executions", Integer()),
    required("attempt_id", NAME),
    required("owner", NAME),
    required("clock", NAME),
    required("clock_at", Double()),
    required("lease_until", Double()),
    required("claimed_at", Double()),
    Column("settled_at", Double),
    Column("result", LargeBinary),
    required("note", Text()),
    Index(None, "thread"),
    Index(None, "run_key"),
    Index(None, "state", "claimed_at"),
)

runs = Table(
    "runs",
    metadata,
    Column("run_key", KEY, primary_key=True),
    Column("generation", Integer, primary_key=True, autoincrement=False),
    Column("deadline_epoch", Double),
    Column("remaining", Double),
    Column("extra_attempts", Integer),
    required("hedges_used", Integer()),
    required("hedges_granted", Integer()),
    required("recoveries_used", Integer()),
    required("steps", Integer()),
    required("state", NAME),
    required("sticky_target", NAME),
    required("updated_at", Double()),
    Column("tokens", BigInteger),
    required("tokens_used", BigInteger(), "0"),
    required("tokens_granted", BigInteger(), "0"),
    Column("cost", Double),
    required("cost_used", Double(), "0"),
    required("cost_granted", Double(), "0"),
    Index(None, "updated_at"),
)

steps = Table(
    "steps",
    metadata,
    Column("step_id", NAME, primary_key=True),
    Column("run_key", KEY),
    Column("generation", Integer),
    Column("tenant", Text),
    Column("node", Text),
    Column("step", Integer),
    Column("path", Text),
    Column("key", Text),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("elapsed_s", Double),
    Column("deadline_s", Double),
    Column("d0", Double),
    Column("trigger_s", Double),
    Column("slack_s", Double),
    Column("price", Double),
    Column("decision", Text),
    Column("reason", Text),
    Column("detail", Text),
    Column("outcome", Text),
    Column("error", Text),
    Column("winner", Text),
    Column("launched", Integer),
    Column("hedges", Integer),
    Column("ttft_s", Double),
    Column("longest_gap_s", Double),
    Column("coalesced_with", Text),
    Index(None, "run_key", "generation"),
    Index(None, "started_at"),
)

attempts = Table(
    "attempts",
    metadata,
    Column("attempt_id", NAME, primary_key=True),
    Column("step_id", NAME),
    Column("number", Integer),
    Column("role", Text),
    Column("target", Text),
    Column("domain", Text),
    Column("node", Text),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("ttft_s", Double),
    Column("outcome", Text),
    Column("error", Text),
    Column("phase", Text),
    Column("cancel_sent_s", Double),
    Column("released_s", Double),
    Column("engine_request_id", Text),
    Column("tokens_input", BigInteger),
    Column("tokens_computed", BigInteger),
    Column("computed_certainty", Text),
    Column("tokens_billed", BigInteger),
    Column("billed_certainty", Text),
    Column("cost", Double),
    Column("currency", Text),
    Column("receipt", Text),
    Index(None, "step_id"),
    Index(None, "started_at"),
)

latency_slices = Table(
    "latency_slices",
    metadata,
    Column("key", KEY, primary_key=True),
    Column("slice", BigInteger, primary_key=True, autoincrement=False),
    Column("worker", WORKER, primary_key=True),
    required("counts", LargeBinary()),
    Index(None, "slice"),
)

fleet_windows = Table(
    "fleet_windows",
    metadata,
    Column("scope", KEY, primary_key=True),
    Column("minute", BigInteger, primary_key=True, autoincrement=False),
    required("logical", BigInteger()),
    required("hedges", BigInteger()),
    required("recoveries", BigInteger()),
    required("errors", BigInteger()),
)

switches = Table(
    "switches",
    metadata,
    Column("scope_kind", WORD, primary_key=True),
    Column("scope", KEY, primary_key=True),
    required("mode", WORD),
    required("reason", Text()),
    Column("until", Double),
    required("updated_at", Double()),
)
