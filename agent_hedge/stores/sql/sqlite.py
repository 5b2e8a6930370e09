"""What is special about a database that is a file: its pragmas, its identity, its health, and its birth."""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from sqlalchemy import event
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from agent_hedge.errors import ConfigurationError, StoreUnavailable

BUSY_S = 10.0
"""How long a writer waits for the other writers of a file; the longest wait seen with 8 processes was 3 s."""
READ_ONLY = "agent_hedge_read_only"
"""Execution option: begin without taking the write lock."""


def quieten() -> None:
    """Keep aiosqlite from logging every statement with its parameters, unless its level was chosen by somebody."""
    log = logging.getLogger("aiosqlite")
    if log.level == logging.NOTSET:
        log.setLevel(logging.WARNING)


def tune(engine: AsyncEngine) -> None:
    """Make every transaction durable (WAL with full sync) and every writer take the lock at its beginning.

    A transaction that reads first and writes later fails with "database is locked" whatever the busy timeout is
    (8,591 errors in 16,000 claims, measured); ``BEGIN IMMEDIATE`` waits instead.
    """

    quieten()

    def on_connect(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions of its own
        cursor = connection.cursor()
        for pragma in (f"busy_timeout={int(BUSY_S * 1000)}", "journal_mode=WAL", "synchronous=FULL"):
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    def on_begin(connection: Connection) -> None:
        read_only = connection.get_execution_options().get(READ_ONLY)
        connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")

    event.listen(engine.sync_engine, "connect", on_connect)
    event.listen(engine.sync_engine, "begin", on_begin)


@dataclass(frozen=True, slots=True)
class FileIdentity:
    """The file that was opened. A deleted or replaced file goes on living for those who hold it open, and the same
    key would be claimed twice: once there, once in the new file."""

    path: Path
    device: int
    inode: int

    @classmethod
    def of(cls, path: Path) -> FileIdentity:
        with as_store_errors(path):
            found = path.stat()
        return cls(path, found.st_dev, found.st_ino)

    def check(self) -> None:
        """Raise `StoreUnavailable` when the path no longer leads to the file that was opened."""
        try:
            found = os.stat(self.path)  # noqa: PTH116 - twice as fast, and asked before every statement
        except OSError:
            found = None
        if found is None or (found.st_dev, found.st_ino) != (self.device, self.inode):
            raise StoreUnavailable(f"The database file {self.path.name} was deleted or replaced while in use.")


def examine(path: Path) -> None:
    """Raise when a file is no SQLite database (`ConfigurationError`), or damaged, or cannot be used now
    (`StoreUnavailable`).

    Writes into a damaged file can succeed for a long time: only a check sees it.
    """
    if path.is_dir():
        raise ConfigurationError(f"{path} is a directory, not an SQLite database")
    with as_store_errors(path), path.open("rb") as file:
        head = file.read(16)
    if head and head != b"SQLite format 3\0":
        raise ConfigurationError(f"{path} is not an SQLite database")
    try:
        with closing(
            sqlite3.connect(f"file:{path}?mode=rw".replace("#", "%23"), uri=True, timeout=BUSY_S)
        ) as connection:
            (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        problem = "" if found == "ok" else _DAMAGED[0]
    except sqlite3.Error as error:
        problem = getattr(error, "sqlite_errorname", "") or type(error).__name__
    if problem.startswith(_DAMAGED):
        raise StoreUnavailable(f"The database file {path.name} is damaged; restore it from a backup.")
    if problem:
        raise StoreUnavailable(
            f"The database file {path.name} cannot be used ({problem}): it and its directory must be writable, and "
            f"no other program may keep it locked."
        )


_DAMAGED = ("SQLITE_CORRUPT", "SQLITE_NOTADB")


@contextmanager
def as_store_errors(path: Path) -> Iterator[None]:
    """Raise what the operating system says of a path as `StoreUnavailable`."""
    try:
        yield
    except OSError as error:
        failure = error.strerror or type(error).__name__
    else:
        return
    raise StoreUnavailable(f"The database file {path} cannot be used: {failure}.")


def give_birth(path: Path, fill: Callable[[Path], None]) -> None:
    """Create a database so that no other process ever sees it half made: fill a file beside it, then link it in.

    Whoever comes second keeps what the first one made.
    """
    if not path.parent.is_dir():
        raise ConfigurationError(f"the directory {path.parent} of the SQLite store does not exist")
    draft = path.with_name(f".{path.name}.{os.getpid()}.{uuid4().hex[:8]}")
    with as_store_errors(path):
        draft.touch(exist_ok=False)  # what forbids it is said here in words, and by no driver's thread
    try:
        fill(draft)
        try:
            os.link(draft, path)
        except FileExistsError:
            pass
        except OSError:  # a file system without hard links
            if not path.exists():
                draft.rename(path)
    finally:
        for leftover in (draft, Path(f"{draft}-wal"), Path(f"{draft}-shm"), Path(f"{draft}-journal")):
            leftover.unlink(missing_ok=True)
