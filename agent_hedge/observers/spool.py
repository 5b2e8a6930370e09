"""A local spool: what is about to happen, written before it happens.

A line is one ``write(2)`` to a file of this process, without ``fsync``: it survives a kill of the process, not a loss
of power. A file is locked while its process lives; a file that can be locked was left behind, and belongs to whoever
finds it. A line is a list of ``[table, row]`` as JSON, and exactly what a store is given later: reading it twice does
no harm.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, Literal

try:
    import orjson
except ModuleNotFoundError:  # LangChain brings it
    orjson = None  # type: ignore[assignment]

logger = logging.getLogger("agent_hedge.accounting")

SEGMENT_BYTES = 4 << 20
"""A file larger than this takes no new ids, and is removed when all of its own have been shipped."""
EMPTY_BYTES = 64 << 10
"""A file that owes nothing is cut back to nothing once it is larger than this."""

Table = Literal["steps", "attempts"]
Row = Mapping[str, Any]

_json = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def _encoded(rows: Sequence[tuple[Table, Row]]) -> bytes:
    """Return rows as JSON. The standard library's encoder takes half of what the books take of a step."""
    if orjson is not None:
        try:
            return orjson.dumps(rows)
        except orjson.JSONEncodeError:  # half of a character in somebody's name, which the standard library escapes
            pass
    return _json.encode(rows).encode()


def folder_of(store: str) -> Path:
    """Return the folder for the spools of one store: below ``AGENT_HEDGE_SPOOL``, else the user's state folder."""
    root = os.environ.get("AGENT_HEDGE_SPOOL")
    if not root:
        state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        root = str(Path(state) / "agent-hedge" / "spool")
    return Path(root) / sha256(store.encode()).hexdigest()[:16]


class Segment:
    """One file of a spool. All lines of an id go to the file that has its first one."""

    __slots__ = ("fd", "owed", "path", "size")

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{os.getpid()}-{token_hex(6)}.jsonl"
        self.fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        fcntl.flock(self.fd, fcntl.LOCK_EX)
        self.size = self.owed = 0

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self.fd)


class Spool:
    """The spool of this process in one folder (of one store). Usable from any thread; a fork starts its own."""

    def __init__(self, folder: Path, *, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self.lost = 0
        """Lines that could not be written (disk full, folder gone): said once, never a reason to stop."""
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._current: Segment | None = None
        self._of: dict[str, Segment] = {}
        _alive.add(self)

    def write(self, key: str, rows: Sequence[tuple[Table, Row]]) -> None:
        """Write these rows as one line; they belong to the id `key`, which is owed until it is `released`."""
        data = _encoded(rows) + b"\n"
        with self._lock:
            try:
                segment = self._of.get(key) or self._owe(key)
                segment.size += os.write(segment.fd, data)
            except OSError as error:
                self.lost += 1
                if self.lost == 1:
                    logger.warning("the spool %s cannot be written (%s); said once", self.folder, error.strerror)

    def release(self, keys: Iterable[str]) -> None:
        """The store has what there is to say of these ids."""
        with self._lock:
            for key in keys:
                segment = self._of.pop(key, None)
                if segment is None:
                    continue
                segment.owed -= 1
                if segment.owed:
                    continue
                if segment is not self._current:
                    segment.remove()
                elif segment.size > EMPTY_BYTES:
                    os.ftruncate(segment.fd, 0)
                    segment.size = 0

    def close(self) -> None:
        """Let go of the files: one that owes nothing is removed, the others wait for the next start."""
        with self._lock:
            for segment in {*self._of.values(), *filter(None, (self._current,))}:
                if segment.owed:
                    os.close(segment.fd)
                else:
                    segment.remove()
            self._forget()

    def _owe(self, key: str) -> Segment:
        if self._current is None or self._current.size > self._segment_bytes:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._current = Segment(self.folder)
        self._current.owed += 1
        self._of[key] = self._current
        return self._current

    def _forget(self) -> None:
        self._current = None
        self._of = {}

    def _after_fork(self) -> None:
        """The parent's files stay the parent's: its lock is not lost by closing this copy."""
        segments = {*self._of.values(), *filter(None, (self._current,))}
        self._lock = threading.Lock()
        self._forget()
        for segment in segments:
            os.close(segment.fd)


class Orphan:
    """A file whose process is gone, locked by us: its rows, in order. `remove` it when a store has them."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path = path
        self._fd = fd

    def rows(self) -> Iterator[tuple[Table, dict[str, Any]]]:
        """Yield what can be read; the last line may be torn."""
        with os.fdopen(os.dup(self._fd), "rb") as file:
            file.seek(0)
            for line in file:
                try:
                    pairs = [(table, row) for table, row in json.loads(line)]
                except (ValueError, TypeError):
                    continue
                for table, row in pairs:
                    if table in ("steps", "attempts") and isinstance(row, dict):
                        yield table, row

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._fd)

    def leave(self) -> None:
        """Not now: whoever comes next may try."""
        os.close(self._fd)


def orphans(folder: Path) -> Iterator[Orphan]:
    """Find and lock the files in `folder` that no process holds any more."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = path.stat().st_ino == os.fstat(fd).st_ino  # else somebody was quicker: it is gone
        except OSError:
            taken = False
        if taken:
            yield Orphan(path, fd)
        else:
            os.close(fd)


_alive: weakref.WeakSet[Spool] = weakref.WeakSet()


def _after_fork() -> None:
    for spool in list(_alive):
        spool._after_fork()


os.register_at_fork(after_in_child=_after_fork)
