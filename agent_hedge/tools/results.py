"""Stored results of guarded tools: JSON, so that a row can be read by people and by the next release."""

from __future__ import annotations

import json

_TUPLE = "__agent_hedge_tuple__"


class NotKept(Exception):
    """The value has no form that would come back as it was."""


class JsonCodec:
    """The default `Codec`: JSON, with tuples told from lists. Raises `NotKept` for what would not come back equal."""

    def encode(self, value: object) -> bytes:
        """Return UTF-8 JSON."""
        try:
            data = json.dumps(_marked(value), separators=(",", ":"), ensure_ascii=True).encode()
            if self.decode(data) == value:
                return data
        except (TypeError, ValueError, RecursionError):
            pass
        raise NotKept(type(value).__name__)

    def decode(self, data: bytes) -> object:
        """Return the value."""
        return _unmarked(json.loads(data))


def _marked(value: object) -> object:
    if isinstance(value, tuple):
        return {_TUPLE: [_marked(item) for item in value]}
    if isinstance(value, list):
        return [_marked(item) for item in value]
    if isinstance(value, dict):
        return {key: _marked(item) for key, item in value.items()}
    return value


def _unmarked(value: object) -> object:
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if isinstance(value, dict):
        if len(value) == 1 and _TUPLE in value:
            return tuple(_unmarked(item) for item in value[_TUPLE])
        return {key: _unmarked(item) for key, item in value.items()}
    return value
