"""Judging one tool, given what every source says of it. Pure: rows in, an `Entry` out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import EffectRow
from agent_hedge.errors import ConfigurationError
from agent_hedge.tools import sources
from agent_hedge.tools.effect import EffectSpec, with_effect, worst

OPERATOR, CODE, SERVER = "operator", "code", "mcp"
Key = tuple[str, str]
"""Namespace and name."""
UNDECLARED = EffectSpec()
_RENEWED = {
    OPERATOR: "declare it with repin and annotate it again",
    CODE: "declare it again",
    SERVER: "declare it with repin",
}
"""What makes a stale entry count again, by who made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the registry makes of a tool, and why.

    `effect` is what counts before a call; `spec` carries the rules and settings for the call itself. `source` is who
    decided (empty: nobody).
    """

    namespace: str
    name: str
    effect: Effect
    why: str
    source: str = ""
    spec: EffectSpec = UNDECLARED
    rows: tuple[EffectRow, ...] = ()


def judge(
    key: Key,
    rows: Mapping[str, EffectRow],
    *,
    seen_hash: str = "",
    contradicted: bool = False,
    code: EffectSpec | None = None,
) -> Entry:
    """Decide what counts for one tool, given one row per source. `code`: the spec of this process, if it has one."""
    namespace, name = key
    all_rows = tuple(rows.values())

    def entry(spec: EffectSpec, source: str, why: str) -> Entry:
        return Entry(
            namespace=namespace, name=name, effect=spec.static, why=why, source=source, spec=spec, rows=all_rows
        )

    def barred(why: str, spec: EffectSpec = UNDECLARED) -> Entry:
        return entry(with_effect(spec, Effect.ONCE), "", why)

    if broken := [row for row in all_rows if row.problem or row.source not in (OPERATOR, CODE, SERVER)]:
        return barred(f"unreadable: {broken[0].problem or 'a row of no known source'}")
    operator, written, server = (rows.get(source) for source in (OPERATOR, CODE, SERVER))
    deciding = operator or written or (server if server and server.trusted else None)
    if deciding is None:
        return Entry(
            namespace=namespace,
            name=name,
            effect=Effect.UNKNOWN,
            why="only an untrusted server speaks of it" if server else "nobody has declared it",
            rows=all_rows,
        )
    try:
        spec = code if deciding is written and code is not None else spec_of(deciding)
    except ConfigurationError:
        return barred(f"unreadable: the {deciding.source} entry holds settings that make no sense")
    if drifted(deciding.schema_hash, seen_hash):
        since = f"since the {deciding.source} entry; {_RENEWED[deciding.source]}"
        return barred(f"stale: the tool's input schema has changed {since}", spec)
    if deciding is operator:
        return entry(spec, OPERATOR, "the operator says so")
    if contradicted:
        return barred("contradictory: two different tools of this name are declared", spec)
    if deciding is server:
        return entry(spec, SERVER, "a trusted server says so")
    if server is not None and _tightens(server, spec):
        return barred("contradictory: the code allows more than the tool's own server", spec)
    return entry(spec, CODE, "the code says so")


def _tightens(server: EffectRow, spec: EffectSpec) -> bool:
    """Whether a server's word takes back what the code says. (Not idempotent by itself is what `KEYED` means.)"""
    if server.effect is Effect.ONCE and spec.static is Effect.KEYED:
        return False
    return worst(server.effect, spec.static) is not spec.static


def standing(before: EffectRow | None, now: EffectRow) -> EffectRow:
    """Return what stands of a server's word when it speaks again and nobody has accepted a change.

    With another schema the first word stays pinned (and is stale); with a looser effect the tighter one stays. A word
    without a schema takes no pin away.
    """
    if before is None:
        return now
    if drifted(before.schema_hash, now.schema_hash):
        return before
    return replace(now, effect=worst(before.effect, now.effect), schema_hash=now.schema_hash or before.schema_hash)


def drifted(pinned: str, seen: str) -> bool:
    """Whether a tool is not the one that was pinned."""
    return bool(pinned and seen and pinned != seen)


def same(one: EffectRow, other: EffectRow) -> bool:
    """Whether two rows say the same."""
    return words(one) == words(other)


def words(row: EffectRow) -> tuple[object, ...]:
    rules = {name: dict(cases) for name, cases in (row.rules or {}).items()}
    return row.effect, row.trusted, row.repeat_allowed, row.schema_hash, rules, dict(row.settings or {}), row.note


def rows_of(one: sources.Declared, namespace: str, trusted: bool, note: str) -> list[EffectRow]:
    """Return the rows a declaration makes: the code's word and the server's."""
    rows = []
    if one.spec is not None:
        rows.append(row_of(one.spec, namespace, one.name, CODE, one.schema_hash, note))
    if one.hinted is not None:
        spec = EffectSpec(effect=one.hinted)
        rows.append(replace(row_of(spec, namespace, one.name, SERVER, one.schema_hash, note), trusted=trusted))
    if not rows:  # checks the name all the same
        row_of(UNDECLARED, namespace, one.name, CODE, "", note)
    return rows


def row_of(spec: EffectSpec, namespace: str, name: str, source: str, schema_hash: str, note: str) -> EffectRow:
    """Return the row that stores a declaration."""
    return EffectRow(
        namespace=namespace,
        name=name,
        effect=spec.effect,
        source=source,
        repeat_allowed=spec.repeat_allowed,
        schema_hash=schema_hash,
        rules={
            argument: {case: effect.value for case, effect in cases.items()} for argument, cases in spec.rules.items()
        }
        or None,
        settings=spec.settings() or None,
        note=note,
    )


def spec_of(row: EffectRow) -> EffectSpec:
    """Return the declaration that a row stores; raise `ConfigurationError` when it makes no sense."""
    try:
        return EffectSpec(
            effect=row.effect,
            repeat_allowed=row.repeat_allowed,
            rules=row.rules or {},  # type: ignore[arg-type]  # checked by the spec
            **(row.settings or {}),
        )
    except TypeError:
        raise ConfigurationError("no such setting of a tool") from None
