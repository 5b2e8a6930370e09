"""Make a value that satisfies a JSON schema out of a prompt: the arguments and documents of an engine without a mind.

Whole numbers and quoted strings of the prompt are used in their order, so ``magic_function(3)`` is called with 3.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

_NUMBER = re.compile(r"(?<![\w.])-?\d+(?:\.\d+)?")
_QUOTED = re.compile(r"(?<!\w)'([^']+)'(?!\w)|\"([^\"]+)\"|`([^`]+)`|“([^”]+)”|«([^»]+)»|「([^」]+)」")
_DEPTH = 8
"""Below this depth only required properties are filled and arrays stay as short as allowed: schemas may recurse."""


def quoted(text: str) -> list[str]:
    """Return the quoted strings of a text in order."""
    return [next(group for group in match if group) for match in _QUOTED.findall(text)]


class Filler:
    """Fills schemas from one prompt; `skip` are quoted words that are no values (names of tools)."""

    def __init__(self, prompt: str, skip: Collection[str] = ()) -> None:
        self._prompt = prompt
        self._numbers = [float(number) for number in _NUMBER.findall(prompt)]
        self._strings = [text for text in quoted(prompt) if text not in skip]
        self._next_number, self._next_string = count(), count()

    def fill(self, schema: Mapping[str, Any]) -> Any:
        """Return a value for the schema; ``$ref`` is looked up inside it."""
        return self._value(schema, schema, 0)

    def _value(self, schema: Any, root: Mapping[str, Any], depth: int) -> Any:
        if not isinstance(schema, Mapping):
            return None
        schema = self._resolve(schema, root)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return schema["enum"][0]
        for union in ("anyOf", "oneOf"):
            if schema.get(union):
                members = [self._resolve(member, root) for member in schema[union]]
                solid = [member for member in members if member.get("type") != "null"]
                deep = depth >= _DEPTH and len(solid) < len(members)
                return None if deep else self._value(solid[0] if solid else {"type": "null"}, root, depth)
        kind = schema.get("type")
        if isinstance(kind, list):
            kind = next((name for name in kind if name != "null"), "null")
        if kind == "object" or (kind is None and "properties" in schema):
            return self._object(schema, root, depth)
        if kind == "array":
            return self._array(schema, root, depth)
        if kind in ("integer", "number"):
            return self._number(schema, whole=kind == "integer")
        return {"boolean": True, "null": None}[kind] if kind in ("boolean", "null") else self._string()

    def _resolve(self, schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
        for _ in range(_DEPTH):
            if "$ref" not in schema:
                break
            target: Any = root
            for step in str(schema["$ref"]).lstrip("#/").split("/"):
                target = target.get(step, {}) if isinstance(target, Mapping) else {}
            schema = target | {key: value for key, value in schema.items() if key != "$ref"}
        if "allOf" not in schema:
            return schema
        merged: dict[str, Any] = {key: value for key, value in schema.items() if key != "allOf"}
        for part in schema["allOf"]:
            part = self._resolve(part, root)
            merged = {**part, **merged, "properties": {**part.get("properties", {}), **merged.get("properties", {})}}
        return merged

    def _object(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> dict[str, Any]:
        names = schema.get("properties", {})
        wanted = names if depth < _DEPTH else [name for name in schema.get("required", ()) if name in names]
        return {name: self._value(names[name], root, depth + 1) for name in wanted}

    def _array(self, schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> list[Any]:
        fixed = [self._value(item, root, depth + 1) for item in schema.get("prefixItems", ())]
        least = schema.get("minItems", 0 if fixed or depth >= _DEPTH else 1)
        items = schema.get("items", {"type": "string"})
        return fixed + [self._value(items, root, depth + 1) for _ in range(max(0, least - len(fixed)))]

    def _number(self, schema: Mapping[str, Any], *, whole: bool) -> float:
        value = self._numbers[next(self._next_number) % len(self._numbers)] if self._numbers else 1.0
        low, high = schema.get("minimum"), schema.get("maximum")
        value = value if low is None else max(value, low)
        value = value if high is None else min(value, high)
        return int(value) if whole or value == int(value) else value

    def _string(self) -> str:
        if self._strings:
            return self._strings[next(self._next_string) % len(self._strings)]
        return self._prompt.strip()[:60] or "nothing"
