"""How hedging is switched off, watched and drawn (R21). Deadline, recovery, fence and recording are never off."""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum

from agent_hedge.core import checks
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Permit, RaceView, Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.scope import forced
from agent_hedge.core.step import Attempt, Role
from agent_hedge.core.stores import Switch
from agent_hedge.errors import ConfigurationError

_log = logging.getLogger("agent_hedge")
_HEDGE = Role.HEDGE

ENVIRONMENT = "AGENT_HEDGE_MODE"
EVERY = ("", "*")
"""Scopes of a switch that mean every fleet, target, node or tenant."""
DRAIN = "drain"


class Mode(StrEnum):
    """What becomes of a hedge that is due."""

    ON = "on"
    SHADOW = "shadow"
    """Decided and recorded, not dispatched."""
    OFF = "off"

    @classmethod
    def of(cls, value: object, *, where: str = "mode") -> Mode:
        """Return the mode of that name; `ConfigurationError` says where the value came from."""
        try:
            return cls(str(value).strip().lower())
        except ValueError:
            raise ConfigurationError(f"{where} must be on, shadow or off, got {value!r:.80}") from None


_STRICTNESS = {Mode.ON: 0, Mode.SHADOW: 1, Mode.OFF: 2}


class Modes:
    """The mode in force: the strictest of code, environment and switches.

    `mode`: by code. `share`: the runs that may hedge, as a ratio, drawn by a hash of the run key. `holdout`: the runs
    (outside any run: steps) whose hedges are decided and then refused, as a ratio: the control group. `fleet`: the
    name under which switches know this fleet. `clock` gives epoch seconds, for the expiry of switches. The environment
    is read once. Raises `ConfigurationError` for an unknown mode and for a ratio outside [0, 1].
    """

    def __init__(
        self,
        mode: str = "on",
        *,
        share: float = 1.0,
        holdout: float = 0.0,
        fleet: str = "",
        environ: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        environ = os.environ if environ is None else environ
        self._code = Mode.of(mode)
        self._environment = Mode.of(environ.get(ENVIRONMENT) or Mode.ON, where=ENVIRONMENT)
        self.share = checks.ratio("share", share)
        self.holdout = checks.ratio("holdout", holdout)
        checks.check_text(fleet, "fleet", checks.NAME_LIMIT)
        self.fleet = fleet
        self._clock = clock
        self._switches: tuple[tuple[Switch, Mode], ...] = ()
        self._drains: tuple[Switch, ...] = ()

    def set(self, mode: str) -> None:
        """Change the mode by code."""
        self._code = Mode.of(mode)

    def set_switches(self, switches: Iterable[Switch]) -> None:
        """Take over the rows of the `switches` table. Only targets can be drained: elsewhere it means off, loudly."""
        rows, drains = [], []
        for switch in switches:
            if switch.mode != DRAIN:
                rows.append((switch, Mode(switch.mode)))
            elif switch.scope_kind == "target":
                drains.append(switch)
            else:
                _log.error("%r: only a target can be drained; hedging is off there", switch)
                rows.append((switch, Mode.OFF))
        self._switches = tuple(rows)
        self._drains = tuple(drains)

    def drained(self) -> frozenset[str]:
        """Return the targets that operators have drained, to be told to the health of targets."""
        now = self._clock()
        return frozenset(switch.scope for switch in self._drains if _stands(switch, now))

    def in_force(self, *, target: str = "", node: str = "", tenant: str = "") -> tuple[Mode, str]:
        """Return the strictest mode for this target, node and tenant (of the whole fleet without), and its source."""
        mode, source = self._code, "code"
        if _STRICTNESS[self._environment] > _STRICTNESS[mode]:
            mode, source = self._environment, ENVIRONMENT
        if self._switches:
            now = self._clock()
            names = {"fleet": self.fleet, "target": target, "node": node, "tenant": tenant}
            for switch, wanted in self._switches:
                hit = switch.scope in EVERY or switch.scope == names[switch.scope_kind]
                if hit and _STRICTNESS[wanted] > _STRICTNESS[mode] and _stands(switch, now):
                    mode, source = wanted, f"{switch.scope_kind} {switch.scope}: {switch.reason}".strip(" :")
        return mode, source

    def of(self, attempt: Attempt, view: RaceView) -> tuple[Mode, str]:
        """Return the mode in force for this attempt, and where it comes from."""
        tenant = view.run.tenant if view.run is not None else ""
        return self.in_force(target=attempt.target.name, node=view.key.node, tenant=tenant)


class ModeGate:
    """Refuses hedges where hedging is off, for batch runs, and for runs outside the `share`. Stands early."""

    extras_only = True

    def __init__(self, modes: Modes) -> None:
        self._modes = modes

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        if attempt.role is not _HEDGE:
            return PASS
        force = forced.get()
        if force is not None and not force.hedge:
            return Refused(Reason.OFF, "forced")
        mode, source = self._modes.of(attempt, view)
        if mode is Mode.OFF:
            return Refused(Reason.OFF, source)
        if view.run is not None and view.run.priority == "batch":
            return Refused(Reason.BATCH)
        if force is None and not drawn("share", view, self._modes.share):
            return Refused(Reason.SHARE)
        return PASS


class ControlGate:
    """Refuses hedges that every other gate has allowed: in shadow mode, and in the control group. Stands late.

    Placed so, what it refuses is what would have been dispatched, which is what makes the comparison fair.
    """

    extras_only = True

    def __init__(self, modes: Modes) -> None:
        self._modes = modes

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        if attempt.role is not _HEDGE:
            return PASS
        mode, source = self._modes.of(attempt, view)
        if mode is Mode.SHADOW:
            return Refused(Reason.SHADOW, source)
        if forced.get() is None and drawn("holdout", view, self._modes.holdout):
            return Refused(Reason.HOLDOUT)
        return PASS


def drawn(what: str, view: RaceView, ratio: float) -> bool:
    """Whether this run (outside any run: this step) belongs to a share `ratio` of all; the same in every process.

    Draws for different purposes (`what`) are independent of each other.
    """
    if ratio >= 1.0:
        return True
    if ratio <= 0.0:
        return False
    key = (view.run.key if view.run is not None else "") or view.step_id
    digest = hashlib.blake2b(f"{what}:{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest) < ratio * 2.0**64


def _stands(switch: Switch, now: float) -> bool:
    """Whether the switch has not expired (an expiry that is NaN never comes)."""
    return switch.until is None or not switch.until <= now
