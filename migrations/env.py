"""Alembic's entry. The connection, the schema and the dialect come from `agent_hedge.stores.sql.migrate`."""

from alembic import context

from agent_hedge.stores.sql.schema import VERSION_TABLE, metadata

given = context.config.attributes
options = {
    "target_metadata": metadata,
    "version_table": VERSION_TABLE,
    "version_table_schema": given.get("schema"),
}

if context.is_offline_mode():
    context.configure(dialect_name=given["dialect"], literal_binds=True, **options)
elif given.get("connection") is None:
    raise SystemExit("migrate with: agent-hedge db upgrade --store URL")
else:
    context.configure(connection=given["connection"], **options)

with context.begin_transaction():
    context.run_migrations()
