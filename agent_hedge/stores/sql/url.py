"""Which database a store setting means. Passwords and query strings never reach a message."""

from __future__ import annotations

import re
from pathlib import Path

from sqlalchemy import Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine

from agent_hedge.errors import ConfigurationError

_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+pysqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
    "postgresql+psycopg_async": "postgresql+psycopg",
    "postgresql+asyncpg": "postgresql+asyncpg",
}
_ACCEPTED = "sqlite:///FILE, postgresql://, postgresql+psycopg:// or postgresql+asyncpg://"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+._-]{0,39}")
_IDENTIFIER = re.compile(r"[a-z_][a-z0-9_]{0,62}")

Store = str | URL | Engine | AsyncEngine


def store_url(store: Store) -> URL:
    """Return the URL of a store with the asynchronous driver we use for it; raise `ConfigurationError`."""
    if isinstance(store, AsyncEngine | Engine):
        url = store.url
        if url.drivername == "postgresql+psycopg2":
            url = url.set(drivername="postgresql+psycopg")
    elif isinstance(store, URL):
        url = store
    elif isinstance(store, str):
        url = _parsed(store)
    else:
        raise ConfigurationError(f"a store is a URL or an engine, not {type(store).__name__}: {_ACCEPTED}")
    driver = _DRIVERS.get(url.drivername)
    if driver is None:
        raise ConfigurationError(f"no store for the scheme {url.drivername!r}: use {_ACCEPTED}")
    url = url.set(drivername=driver)
    if driver.startswith("sqlite") and url.database in (None, "", ":memory:"):
        raise ConfigurationError("an SQLite store needs a file (sqlite:///FILE); store=None keeps it in memory")
    return url


def _parsed(text: str) -> URL:
    scheme, separator, _ = text.partition("://")
    if not separator or not _SCHEME.fullmatch(scheme):
        raise ConfigurationError(f"a store is a URL: {_ACCEPTED}")
    if scheme not in _DRIVERS:
        raise ConfigurationError(f"no store for the scheme {scheme!r}: use {_ACCEPTED}")
    try:
        return make_url(text)
    except (ArgumentError, ValueError):
        pass  # its text may quote parts of the URL, so it is not even kept as the context
    raise ConfigurationError(f"the {scheme}:// URL of the store cannot be parsed (is a special character unescaped?)")


def shown(url: URL) -> str:
    """Return how messages name a store: without password and query."""
    plain = url.set(drivername="sqlite") if url.get_backend_name() == "sqlite" else url
    return plain.set(query={}).render_as_string(hide_password=True)


def sqlite_path(url: URL) -> Path:
    """Return the absolute path of an SQLite store."""
    return Path(url.database or "").absolute()


def check_schema(schema: str | None, url: URL) -> None:
    """Refuse a schema name that would need quoting, or one for a database that has none."""
    if schema is None:
        return
    if not url.drivername.startswith("postgresql"):
        raise ConfigurationError("schema= is for PostgreSQL; an SQLite store has one file and no schemas")
    if not _IDENTIFIER.fullmatch(schema):
        raise ConfigurationError("a schema is named by lower-case letters, digits and underscores, 63 at most")
