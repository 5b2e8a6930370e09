"""Every store port on SQLite and PostgreSQL (extra ``sql``), through SQLAlchemy Core and asynchronous drivers.

`sql_stores(store)` needs no I/O; the database is opened by the first operation, and again after an outage. What a
role needs at run time is printed by ``agent-hedge db upgrade --grants ROLE`` (`migrate.grants`).
"""

from __future__ import annotations

from agent_hedge.errors import ConfigurationError

try:
    import sqlalchemy  # noqa: F401
except ImportError as missing:
    raise ConfigurationError("a SQL store needs: pip install 'agent-hedge[sql]'") from missing

from agent_hedge.stores.sql.claims import SqlClaims
from agent_hedge.stores.sql.effects import SqlEffects
from agent_hedge.stores.sql.engine import Database
from agent_hedge.stores.sql.runs import SqlRuns
from agent_hedge.stores.sql.slices import SqlSlices
from agent_hedge.stores.sql.steps import SqlSteps
from agent_hedge.stores.sql.switches import SqlSwitches
from agent_hedge.stores.sql.url import Store

__all__ = ["Database", "SqlStores", "Store", "sql_stores"]


class SqlStores:
    """`Stores` of one database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.effects = SqlEffects(database)
        self.claims = SqlClaims(database)
        self.runs = SqlRuns(database)
        self.steps = SqlSteps(database)
        self.slices = SqlSlices(database)
        self.switches = SqlSwitches(database)

    async def open(self) -> None:
        """Open the database now, to hear at start what is wrong with it."""
        await self.database.open()

    async def close(self) -> None:
        """Close every connection."""
        await self.database.close()


def sql_stores(
    store: Store, *, schema: str | None = None, create: bool = True, timeout: float | None = None
) -> SqlStores:
    """Return the stores of a URL or engine; `timeout` in seconds; `create` lets a missing SQLite file be made."""
    return SqlStores(Database(store, schema=schema, create=create, timeout=timeout))
