"""One call of a guarded tool: what names it, and what may become of it.

A call is named by its arguments where `key=` is declared; else by where it stands (run, places of the graphs around it)
and by its tool call id, or its number within the place.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import Claim
from agent_hedge.errors import EffectBarred
from agent_hedge.tools.effect import EffectSpec
from agent_hedge.tools.keys import effect_key, fingerprint
from agent_hedge.tools.site import Site

SINGLE = frozenset({Effect.ONCE, Effect.UNKNOWN})
"""Effects of which a second execution is another effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One call of a guarded tool: what is run, what names it, where it stands."""

    tool: str
    effect: Effect
    spec: EffectSpec
    key: str
    declared: bool
    """The key comes from the arguments (``key=``) and decides alone."""
    args_fingerprint: str
    run_key: str
    site: Site

    @property
    def single(self) -> bool:
        """Whether a second execution is never started by itself."""
        return self.effect in SINGLE and not self.spec.at_least_once

    def claimed(self, *, owner: str, attempt_id: str) -> Claim:
        """Return the claim of this call by a process."""
        return Claim(
            effect_key=self.key,
            tool=self.tool,
            args_fingerprint=self.args_fingerprint,
            owner=owner,
            attempt_id=attempt_id,
            effect=self.effect,
            run_key=self.run_key,
            thread=self.site.thread,
            call_id="" if self.declared else self.site.call_id,
            principal=self.site.principal,
        )


@dataclass(frozen=True, slots=True)
class Permit:
    """The right to dispatch once. `key` is what a `KEYED` tool is given."""

    call: Call
    attempt_id: str
    executions: int

    @property
    def key(self) -> str:
        return self.call.key


@dataclass(frozen=True, slots=True)
class Replay:
    """It has been done before, and is not done again. `kept` is False where no result was stored.

    `abandoned`: a person has given it up; whether it happened is not known.
    """

    value: object
    kept: bool = True
    abandoned: bool = False


def name_call(
    tool: str,
    spec: EffectSpec,
    arguments: Mapping[str, Any],
    site: Site,
    *,
    effect: Effect | None = None,
    incarnation: str,
) -> Call:
    """Name a call of `tool` with these arguments. `effect`: what counts for it, where the registry knows more.

    Where no run and no thread is known, the graph around the call, or else this `incarnation` of the process, stands
    for the run. Raises `EffectBarred` when the call cannot be named.
    """
    alone = f"{incarnation}/{site.frames[0].execution}" if site.frames else incarnation
    run_key = site.run_key or site.thread or alone
    declared = spec.key_of(arguments, tool=tool)
    if declared is not None:
        key = effect_key("declared", spec.scope, _scope(spec, site, run_key), tool, declared)
    elif site.place_key:
        key = effect_key("place", run_key, site.generation, site.places, tool, site.place_key)
    elif site.call_id:
        key = effect_key("call", run_key, site.generation, site.places, tool, site.call_id)
    else:  # nothing names it from outside: it is one of its own
        key = effect_key("unnamed", secrets.token_hex(16))
    return Call(
        tool=tool,
        effect=effect or spec.effect_for(arguments),
        spec=spec,
        key=key,
        declared=declared is not None,
        args_fingerprint=fingerprint(tool, arguments),
        run_key=run_key,
        site=site,
    )


def _scope(spec: EffectSpec, site: Site, run_key: str) -> str:
    if spec.scope == "run":
        return run_key
    if spec.scope == "global":
        return ""
    if not site.tenant:
        raise EffectBarred("scope='tenant' needs a tenant (hedger.run(tenant=...)); nothing was dispatched.")
    return site.tenant
