"""What counts for one tool: what it says itself, and what the registry makes of that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agent_hedge.core.step import Effect
from agent_hedge.tools.effect import EffectSpec, effect_spec, namespace_of, with_effect
from agent_hedge.tools.judge import OPERATOR, UNDECLARED, Entry


class Entries(Protocol):
    """The part of the registry that is asked before a call; from memory, never waiting."""

    @property
    def readable(self) -> bool: ...
    def known(self, name: str, namespace: str = "") -> Entry: ...


@dataclass(frozen=True, slots=True)
class Known:
    """A tool as the guard sees it. `name` is qualified by its namespace."""

    name: str
    spec: EffectSpec
    readable: bool

    def effect(self, arguments: Mapping[str, Any]) -> Effect:
        """What this call does, for the ledger: the last thing known, however old (R14)."""
        return self.spec.effect_for(arguments)

    def in_a_race(self, arguments: Mapping[str, Any]) -> Effect:
        """What this call does, for the fence: nothing old allows anything (R9)."""
        return self.spec.effect_for(arguments) if self.readable else Effect.ONCE


def known(tool: object, name: str, entries: Entries | None) -> Known:
    """Return what counts now. The operator's word comes first; what only code can say is kept beside it."""
    namespace, own = namespace_of(tool), effect_spec(tool)
    qualified = f"{namespace}/{name}" if namespace else name
    if entries is None:
        return Known(qualified, own or UNDECLARED, True)
    entry = entries.known(name, namespace)
    if entry.source == OPERATOR:
        spec = _with_callables(entry.spec, own)
    elif entry.source:
        spec = own or entry.spec
    elif entry.rows:  # stale, contradictory, unreadable, or an untrusted hint only
        # (its key still names it; the parameter that takes the key may be that of another tool)
        spec = with_effect(own or replace(entry.spec, key_param=None), Effect.ONCE)
    else:
        spec = own or UNDECLARED
    return Known(qualified, spec, entries.readable)


def _with_callables(spec: EffectSpec, own: EffectSpec | None) -> EffectSpec:
    if own is None:
        return spec
    key, scope = (spec.key, spec.scope) if spec.key is not None else (own.key, own.scope)
    return replace(
        spec,
        key=key,
        scope=scope,
        not_started=own.not_started,
        verify=own.verify,
        key_param=spec.key_param or own.key_param,
    )
