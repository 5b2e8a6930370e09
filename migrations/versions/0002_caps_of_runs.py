"""Runs carry their caps in tokens and money, and what of them is used, so that processes share them.

Revision ID: 0002
Revises: 0001

A release at 0001 may go on running on these tables: what it does not know has a default.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

COUNTED = {"tokens": sa.BigInteger, "cost": sa.Double}


def upgrade() -> None:
    schema = op.get_context().version_table_schema
    for name, kind in COUNTED.items():
        op.add_column("runs", sa.Column(name, kind(), nullable=True), schema=schema)
        for count in ("used", "granted"):
            column = sa.Column(f"{name}_{count}", kind(), nullable=False, server_default="0")
            op.add_column("runs", column, schema=schema)


def downgrade() -> None:
    schema = op.get_context().version_table_schema
    for name in COUNTED:
        for column in (f"{name}_granted", f"{name}_used", name):
            op.drop_column("runs", column, schema=schema)
