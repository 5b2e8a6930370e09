"""What names a side effect: the effect key, and the fingerprint of its arguments. Both are SHA-256 hex.

Nothing readable goes into a row: PostgreSQL quotes keys in its errors, and an index has its limits (2,704 bytes).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Any


def effect_key(*parts: object) -> str:
    """Return the key of a side effect named by these parts, in this order."""
    return _digest([_plain(part) for part in parts])


def fingerprint(tool: str, arguments: Mapping[str, Any]) -> str:
    """Return what tells one set of arguments of a tool from another.

    A value without a readable form of its own counts by its type alone: an address would differ in every process.
    """
    return _digest([tool, _plain(arguments)])


def plain_text(value: object) -> str:
    """Return a value as text that is the same in every process."""
    return json.dumps(_plain(value), sort_keys=True)


def _digest(value: object) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: object) -> object:
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else repr(value)  # 5 and 5.0 are one amount
    if isinstance(value, bytes | bytearray):
        return ["bytes", hashlib.sha256(value).hexdigest()]
    if isinstance(value, Mapping):
        return {_word(key): _plain(item) for key, item in value.items()}
    if isinstance(value, AbstractSet):
        return ["set", *sorted((_plain(item) for item in value), key=lambda item: json.dumps(item, sort_keys=True))]
    if isinstance(value, Sequence):
        return [_plain(item) for item in value]
    dump = getattr(value, "model_dump", None)
    if callable(dump):
        return _plain(dump())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain({field.name: getattr(value, field.name) for field in dataclasses.fields(value)})
    if type(value).__str__ is not object.__str__ or type(value).__repr__ is not object.__repr__:
        return [type(value).__name__, str(value)]  # dates, decimals, UUIDs, paths
    return [type(value).__name__]


def _word(key: object) -> str:
    return key if isinstance(key, str) else json.dumps(_plain(key), sort_keys=True)
