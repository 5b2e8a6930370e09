"""What a driver's error means. Its text stays behind: it can quote values, keys and host names of the database."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

LOST = (OSError, EOFError, PoolTimeout, TimeoutError)
"""Errors of the way to the database, beside those that `DBAPIError` wraps."""

_TRY_AGAIN = ("08", "40001", "40P01", "53300", "57P")
"""SQLSTATE: connection exceptions, serialization, deadlock, too many connections, (re)starting."""


def described(error: BaseException) -> str:
    """Name an error by its type and code: ``OperationalError/SQLITE_FULL``, ``ConnectionRefusedError``."""
    origin = getattr(error, "orig", None) or error
    code = getattr(origin, "sqlite_errorname", None) or sqlstate(error)
    return f"{type(origin).__name__}/{code}" if code else type(origin).__name__


def sqlstate(error: BaseException) -> str:
    """Return the SQLSTATE of an error, or an empty string."""
    origin = getattr(error, "orig", None) or error
    for candidate in (origin, getattr(origin, "__cause__", None)):
        code = getattr(candidate, "sqlstate", None)
        if isinstance(code, str):
            return code
    return ""


def passing(error: BaseException) -> bool:
    """Whether the same statement may succeed on another connection a moment later."""
    if isinstance(error, LOST):
        return True
    if not isinstance(error, DBAPIError):
        return False
    if error.connection_invalidated:
        return True
    code = sqlstate(error)
    return code.startswith(_TRY_AGAIN) if code else isinstance(error, InterfaceError | OperationalError)
