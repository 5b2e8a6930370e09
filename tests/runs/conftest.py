"""Runs in a store: an SQLite file of the test's own, and PostgreSQL."""

from __future__ import annotations

import pytest

from tests.stores.conftest import postgres, sqlite_template, sqlite_url

__all__ = ["postgres", "sqlite_template", "sqlite_url"]


@pytest.fixture(params=["sqlite", "psycopg"])
def store_url(request: pytest.FixtureRequest) -> str:
    """The URL of a migrated store, on each backend."""
    if request.param == "sqlite":
        return str(request.getfixturevalue("sqlite_url"))
    return str(request.getfixturevalue("postgres").url())
