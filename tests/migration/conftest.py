"""The databases that migrations are proven on."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from agent_hedge.testing.postgres import PostgresServer, postgres_server

_NUMBERS = count()


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    with postgres_server(settings={"max_connections": "100"}) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database with nothing in it (of a file that does not exist)."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    running: PostgresServer = request.getfixturevalue("server")
    name = f"m{next(_NUMBERS)}"
    engine = create_engine(running.url(), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return running.url(database=name)
