"""Databases for the processes that are killed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_hedge.stores.sql import migrate
from agent_hedge.testing.postgres import PostgresServer, postgres_server


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    with postgres_server(settings={"max_connections": "200"}) as server:
        migrate.upgrade(server.url())
        yield server


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("migrated") / "ledger.db"
    migrate.upgrade(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(migrated: Path, tmp_path: Path) -> str:
    shutil.copy(migrated, tmp_path / "ledger.db")
    return f"sqlite:///{tmp_path / 'ledger.db'}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes minutes runs where it is asked for (``-m slow``)."""
    if "slow" not in str(config.getoption("markexpr")):
        skip = pytest.mark.skip(reason="slow: pytest -m slow")
        for item in items:
            if item.path.parent == Path(__file__).parent and item.get_closest_marker("slow"):
                item.add_marker(skip)
