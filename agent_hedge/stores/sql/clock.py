"""Whose clock leases run on: the database's, never the worker's wall clock.

With the client's clock one hour ahead a live lease of 30 s could be stolen on the client's clock and not on
PostgreSQL's `clock_timestamp()` (measured). SQLite has no clock of its own, and its file lives on one host: there the
host's monotonic clock counts, together with the boot it belongs to.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import ColumnElement, Double, bindparam, cast, extract, func


class LeaseClock(Protocol):
    """Seconds for leases and epoch seconds for people, as SQL."""

    @property
    def name(self) -> str:
        """Names the time line: instants of two names cannot be compared."""
        ...

    def now(self) -> ColumnElement[float]: ...
    def epoch(self) -> ColumnElement[float]: ...


class DatabaseClock:
    """PostgreSQL's wall clock, read when the statement runs (not when the transaction began)."""

    name = "postgresql"

    def now(self) -> ColumnElement[float]:
        return cast(extract("epoch", func.clock_timestamp()), Double)

    epoch = now


class HostClock:
    """The host's monotonic clock, valid within one boot."""

    def __init__(
        self,
        *,
        monotonic: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
        boot: str | None = None,
    ) -> None:
        self._monotonic = monotonic
        self._epoch = epoch
        self.name = boot_id() if boot is None else boot

    def now(self) -> ColumnElement[float]:
        return _read(self._monotonic)

    def epoch(self) -> ColumnElement[float]:
        return _read(self._epoch)


def _read(clock: Callable[[], float]) -> ColumnElement[Any]:
    """A parameter that is read when the statement runs."""
    return bindparam(None, callable_=clock, type_=Double, unique=True)


@cache
def boot_id() -> str:
    """Return what tells this boot of the host from every other one."""
    linux = Path("/proc/sys/kernel/random/boot_id")
    if linux.exists():
        return linux.read_text().strip()
    if sys.platform == "darwin":
        asked = subprocess.run(
            ["/usr/sbin/sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=False
        )
        if asked.returncode == 0:
            return asked.stdout.strip()
    # Good to a minute: wall clock minus monotonic clock is when the monotonic clock stood at zero.
    return f"booted-{round((time.time() - time.monotonic()) / 60)}"
