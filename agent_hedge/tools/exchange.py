"""Operator entries as plain data: for review in git, and back into the store."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_hedge.core.checks import check_digest
from agent_hedge.core.stores import EffectRow
from agent_hedge.errors import ConfigurationError
from agent_hedge.tools.effect import EffectSpec
from agent_hedge.tools.judge import OPERATOR, row_of, same, spec_of

FORMAT = 1
_OWN = frozenset({"namespace", "name", "note", "schema_hash"})


@dataclass(frozen=True, slots=True)
class Change:
    """One difference between a file and the store: what there is and what is wanted (None: nothing)."""

    namespace: str
    name: str
    before: EffectRow | None
    after: EffectRow | None

    @property
    def kind(self) -> str:
        """``add``, ``change`` or ``withdraw``."""
        if self.before is None:
            return "add"
        return "withdraw" if self.after is None else "change"


def exported(rows: Iterable[EffectRow]) -> dict[str, Any]:
    """Return the operator's entries, in an order that makes small diffs."""
    mine = sorted((row for row in rows if row.source == OPERATOR), key=lambda row: (row.namespace, row.name))
    return {"format": FORMAT, "tools": [plain(row) for row in mine]}


def plain(row: EffectRow) -> dict[str, Any]:
    """Return one entry without what is at its default."""
    found: dict[str, Any] = {"name": row.name, "effect": row.effect.value}
    if row.namespace:
        found = {"namespace": row.namespace, **found}
    if not row.repeat_allowed:
        found["repeat_allowed"] = False
    if row.rules:
        found["rules"] = {name: dict(cases) for name, cases in row.rules.items()}
    found |= dict(row.settings or {})
    for name in ("note", "schema_hash"):
        if value := getattr(row, name):
            found[name] = value
    return found


def imported(data: object) -> list[EffectRow]:
    """Read what `exported` wrote; raise `ConfigurationError` for anything else, and for a tool named twice."""
    if not isinstance(data, Mapping) or data.get("format") != FORMAT or not isinstance(data.get("tools"), list):
        raise ConfigurationError(f'not an export of tools: expected {{"format": {FORMAT}, "tools": [...]}}')
    rows: dict[tuple[str, str], EffectRow] = {}
    for number, one in enumerate(data["tools"], 1):
        try:
            row = _row(one)
        except ConfigurationError as error:
            raise ConfigurationError(f"tool {number}: {error}") from None
        if (row.namespace, row.name) in rows:
            raise ConfigurationError(f"tool {number}: named a second time")
        rows[row.namespace, row.name] = row
    return list(rows.values())


def _row(one: object) -> EffectRow:
    if not isinstance(one, Mapping) or "effect" not in one or "name" not in one:
        raise ConfigurationError("an entry needs a name and an effect")
    own = {name: one.get(name, "") for name in _OWN}
    if not all(isinstance(value, str) for value in own.values()):
        raise ConfigurationError("namespace, name, note and schema_hash are texts")
    if own["schema_hash"]:
        check_digest(own["schema_hash"], "schema_hash")
    if unknown := set(one) - _OWN - set(EffectSpec.__dataclass_fields__):
        raise ConfigurationError(f"no such setting of a tool: {', '.join(sorted(map(str, unknown)))}")
    spec = EffectSpec(**{name: value for name, value in one.items() if name not in _OWN})
    row = row_of(spec, own["namespace"], own["name"], OPERATOR, own["schema_hash"], own["note"])
    spec_of(row)
    return row


def differences(stored: Sequence[EffectRow], wanted: Sequence[EffectRow], *, prune: bool) -> list[Change]:
    """Return what has to change; `prune`: entries the file does not name are withdrawn."""
    have = {(row.namespace, row.name): row for row in stored if row.source == OPERATOR}
    want = {(row.namespace, row.name): row for row in wanted}
    changes = [
        Change(*key, have.get(key), row) for key, row in want.items() if key not in have or not same(have[key], row)
    ]
    if prune:
        changes += [Change(*key, row, None) for key, row in have.items() if key not in want]
    return sorted(changes, key=lambda change: (change.namespace, change.name))
