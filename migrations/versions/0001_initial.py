"""The first tables.

Revision ID: 0001
Revises:
"""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    schema = op.get_context().version_table_schema
    op.create_table(
        "attempts",
        sa.Column("attempt_id", sa.String(length=255), nullable=False),
        sa.Column("step_id", sa.String(length=255), nullable=True),
        sa.Column("number", sa.Integer(), nullable=True),
        sa.Column("role", sa.Text(), nullable=True),
        sa.Column("target", sa.Text(), nullable=True),
        sa.Column("domain", sa.Text(), nullable=True),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("phase", sa.Text(), nullable=True),
        sa.Column("cancel_sent_s", sa.Double(), nullable=True),
        sa.Column("released_s", sa.Double(), nullable=True),
        sa.Column("engine_request_id", sa.Text(), nullable=True),
        sa.Column("tokens_input", sa.BigInteger(), nullable=True),
        sa.Column("tokens_computed", sa.BigInteger(), nullable=True),
        sa.Column("computed_certainty", sa.Text(), nullable=True),
        sa.Column("tokens_billed", sa.BigInteger(), nullable=True),
        sa.Column("billed_certainty", sa.Text(), nullable=True),
        sa.Column("cost", sa.Double(), nullable=True),
        sa.Column("currency", sa.Text(), nullable=True),
        sa.Column("receipt", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("attempt_id", name=op.f("pk_attempts")),
        schema=schema,
    )
    op.create_index(op.f("ix_attempts_started_at"), "attempts", ["started_at"], unique=False, schema=schema)
    op.create_index(op.f("ix_attempts_step_id"), "attempts", ["step_id"], unique=False, schema=schema)
    op.create_table(
        "effect_claims",
        sa.Column("effect_key", sa.String(length=64), nullable=False),
        sa.Column("tool", sa.String(length=255), nullable=False),
        sa.Column("effect", sa.String(length=32), nullable=False),
        sa.Column("args_fingerprint", sa.String(length=64), nullable=False),
        sa.Column("run_key", sa.String(length=512), nullable=False),
        sa.Column("thread", sa.String(length=512), nullable=False),
        sa.Column("call_id", sa.String(length=512), nullable=False),
        sa.Column("principal", sa.String(length=255), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("confirmed", sa.SmallInteger(), nullable=False),
        sa.Column("executions", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.String(length=255), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.Column("clock", sa.String(length=255), nullable=False),
        sa.Column("clock_at", sa.Double(), nullable=False),
        sa.Column("lease_until", sa.Double(), nullable=False),
        sa.Column("claimed_at", sa.Double(), nullable=False),
        sa.Column("settled_at", sa.Double(), nullable=True),
        sa.Column("result", sa.LargeBinary(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("effect_key", name=op.f("pk_effect_claims")),
        schema=schema,
    )
    op.create_index(op.f("ix_effect_claims_run_key"), "effect_claims", ["run_key"], unique=False, schema=schema)
    op.create_index(
        op.f("ix_effect_claims_state_claimed_at"), "effect_claims", ["state", "claimed_at"], unique=False, schema=schema
    )
    op.create_index(op.f("ix_effect_claims_thread"), "effect_claims", ["thread"], unique=False, schema=schema)
    op.create_table(
        "fleet_windows",
        sa.Column("scope", sa.String(length=512), nullable=False),
        sa.Column("minute", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("logical", sa.BigInteger(), nullable=False),
        sa.Column("hedges", sa.BigInteger(), nullable=False),
        sa.Column("recoveries", sa.BigInteger(), nullable=False),
        sa.Column("errors", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("scope", "minute", name=op.f("pk_fleet_windows")),
        schema=schema,
    )
    op.create_table(
        "latency_slices",
        sa.Column("key", sa.String(length=512), nullable=False),
        sa.Column("slice", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("worker", sa.String(length=64), nullable=False),
        sa.Column("counts", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("key", "slice", "worker", name=op.f("pk_latency_slices")),
        schema=schema,
    )
    op.create_index(op.f("ix_latency_slices_slice"), "latency_slices", ["slice"], unique=False, schema=schema)
    op.create_table(
        "runs",
        sa.Column("run_key", sa.String(length=512), nullable=False),
        sa.Column("generation", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("deadline_epoch", sa.Double(), nullable=True),
        sa.Column("remaining", sa.Double(), nullable=True),
        sa.Column("extra_attempts", sa.Integer(), nullable=True),
        sa.Column("hedges_used", sa.Integer(), nullable=False),
        sa.Column("hedges_granted", sa.Integer(), nullable=False),
        sa.Column("recoveries_used", sa.Integer(), nullable=False),
        sa.Column("steps", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=255), nullable=False),
        sa.Column("sticky_target", sa.String(length=255), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_key", "generation", name=op.f("pk_runs")),
        schema=schema,
    )
    op.create_index(op.f("ix_runs_updated_at"), "runs", ["updated_at"], unique=False, schema=schema)
    op.create_table(
        "steps",
        sa.Column("step_id", sa.String(length=255), nullable=False),
        sa.Column("run_key", sa.String(length=512), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("tenant", sa.Text(), nullable=True),
        sa.Column("node", sa.Text(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("path", sa.Text(), nullable=True),
        sa.Column("key", sa.Text(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.Column("elapsed_s", sa.Double(), nullable=True),
        sa.Column("deadline_s", sa.Double(), nullable=True),
        sa.Column("d0", sa.Double(), nullable=True),
        sa.Column("trigger_s", sa.Double(), nullable=True),
        sa.Column("slack_s", sa.Double(), nullable=True),
        sa.Column("price", sa.Double(), nullable=True),
        sa.Column("decision", sa.Text(), nullable=True),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.Column("winner", sa.Text(), nullable=True),
        sa.Column("launched", sa.Integer(), nullable=True),
        sa.Column("hedges", sa.Integer(), nullable=True),
        sa.Column("ttft_s", sa.Double(), nullable=True),
        sa.Column("longest_gap_s", sa.Double(), nullable=True),
        sa.Column("coalesced_with", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("step_id", name=op.f("pk_steps")),
        schema=schema,
    )
    op.create_index(
        op.f("ix_steps_run_key_generation"), "steps", ["run_key", "generation"], unique=False, schema=schema
    )
    op.create_index(op.f("ix_steps_started_at"), "steps", ["started_at"], unique=False, schema=schema)
    op.create_table(
        "store_meta",
        sa.Column("name", sa.String(length=64), nullable=False),
        sa.Column("text", sa.Text(), nullable=True),
        sa.Column("number", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_store_meta")),
        schema=schema,
    )
    op.create_table(
        "switches",
        sa.Column("scope_kind", sa.String(length=32), nullable=False),
        sa.Column("scope", sa.String(length=512), nullable=False),
        sa.Column("mode", sa.String(length=32), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("until", sa.Double(), nullable=True),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("scope_kind", "scope", name=op.f("pk_switches")),
        schema=schema,
    )
    op.create_table(
        "tool_effect_history",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("namespace", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("effect", sa.String(length=32), nullable=False),
        sa.Column("repeat_allowed", sa.SmallInteger(), nullable=False),
        sa.Column("trusted", sa.SmallInteger(), nullable=False),
        sa.Column("schema_hash", sa.String(length=64), nullable=False),
        sa.Column("rules", sa.Text(), nullable=True),
        sa.Column("settings", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("updated_by", sa.String(length=255), nullable=False),
        sa.Column("withdrawn", sa.SmallInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tool_effect_history")),
        schema=schema,
    )
    op.create_index(
        op.f("ix_tool_effect_history_namespace_name"),
        "tool_effect_history",
        ["namespace", "name"],
        unique=False,
        schema=schema,
    )
    op.create_table(
        "tool_effects",
        sa.Column("namespace", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("source", sa.String(length=32), nullable=False),
        sa.Column("effect", sa.String(length=32), nullable=False),
        sa.Column("repeat_allowed", sa.SmallInteger(), nullable=False),
        sa.Column("trusted", sa.SmallInteger(), nullable=False),
        sa.Column("schema_hash", sa.String(length=64), nullable=False),
        sa.Column("rules", sa.Text(), nullable=True),
        sa.Column("settings", sa.Text(), nullable=True),
        sa.Column("note", sa.Text(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("updated_by", sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint("namespace", "name", "source", name=op.f("pk_tool_effects")),
        schema=schema,
    )


def downgrade() -> None:
    schema = op.get_context().version_table_schema
    for table in (
        "attempts",
        "effect_claims",
        "fleet_windows",
        "latency_slices",
        "runs",
        "steps",
        "store_meta",
        "switches",
        "tool_effect_history",
        "tool_effects",
    ):
        op.drop_table(table, schema=schema)
