"""The databases that migrations are proven on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from agent_hedge.testing.postgres import PostgresServer, postgres_server, system_releases


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgres_server(settings={"fsync": "off"}) as running:
        yield running


@pytest.fixture(scope="session")
def old_server() -> Iterator[PostgresServer]:
    """The oldest release the machine has: 15 is the oldest we support."""
    releases = {version: programs for version, programs in system_releases().items() if version in ("15", "16", "17")}
    if not releases:
        pytest.skip("no PostgreSQL 15 to 17 is installed on this machine")
    with postgres_server(programs=releases[min(releases)], settings={"fsync": "off"}) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql", "old postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with nothing in it (of a file that does not exist)."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    if request.param == "old postgresql" and "concurrent" in request.node.name:
        pytest.skip("long, and told from the newest release by nothing")
    running: PostgresServer = request.getfixturevalue("old_server" if "old" in request.param else "server")
    engine = create_engine(running.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text("DROP SCHEMA public CASCADE"))
        connection.execute(text("CREATE SCHEMA public"))
    engine.dispose()
    return running.url()
