"""What a hedger shares with other processes through its store: what tools do, what is switched off, the runs.

Without a store all of it lives in memory. With one, a round a second keeps it fresh in the background; nothing that
decides about a race ever waits for it (R14).
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import time
import weakref
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import Stores
from agent_hedge.engine.background import Background
from agent_hedge.engine.rounds import Rounds
from agent_hedge.engine.runbook import AtOnce, Runbook
from agent_hedge.errors import HedgeError
from agent_hedge.gates import Health, Modes
from agent_hedge.tools.registry import Registry

if TYPE_CHECKING:
    from agent_hedge.stores.sql import Store

logger = logging.getLogger("agent_hedge.background")

SETTLE_S = 2.0
"""How long `explain` waits for the first reading of the registry, and a hedger that is closed for its last writes."""


class Shared:
    """The stores of one hedger and what is read from and written to them in the background."""

    def __init__(
        self,
        store: Store | None,
        schema: str | None,
        *,
        background: Background,
        modes: Modes,
        health: Health,
        dearest: Callable[[], float],
    ) -> None:
        self.stores = stores_of(store, schema)
        self.rounds = Rounds(background)
        self.on_change: Callable[[], Awaitable[object]] | None = None
        """Called when what counts for a tool has changed."""
        self._judged_version = 0
        self._judged: dict[tuple[str, str], tuple[Effect, bool]] = {}
        self._background = background
        self._modes = modes
        self._health = health
        self._away = store is not None
        self._waited = False
        if store is None:
            self.registry = Registry(portal=background)
            self.runbook = Runbook(self.stores.runs, AtOnce(), dearest=dearest)
            return
        self.registry = Registry(self.stores.effects, portal=background)
        self.runbook = Runbook(self.stores.runs, background, dearest=dearest)
        self.rounds.add("registry", self._read_registry)
        self.rounds.add("switches", self._read_switches)
        self.rounds.add("runs", self.runbook.flush)
        atexit.register(_write_the_rest, weakref.ref(self))

    async def _read_registry(self, now: float) -> None:
        await self.registry.refresh(now)
        if self._judged_version == self.registry.version:
            return
        self._judged_version = self.registry.version
        before, self._judged = (
            self._judged,
            {
                (entry.namespace, entry.name): (entry.effect, entry.spec.repeat_allowed)
                for entry in self.registry.entries()
            },
        )
        if self._judged != before and self.on_change is not None:
            await self.on_change()

    async def _read_switches(self, now: float) -> None:
        try:
            self._modes.set_switches(await self.stores.switches.switches())
        finally:  # what is drained until an instant comes back at that instant, with or without the store
            self._health.drain(self._modes.drained())

    def settle(self) -> None:
        """Wait, once, for the first reading of the registry: verdicts would else say that it cannot be read."""
        if self._waited or self.registry.readable:
            return
        self._waited = True
        try:
            self._background.call(lambda: _at_most(self.registry.refresh(time.monotonic())))
        except HedgeError as error:
            logger.warning("the registry cannot be read, so every tool counts as once: %s", error)

    def write_the_rest(self) -> None:
        """Write the runs that were left, within a bounded time."""
        self.runbook.closing()
        if self._away and self.runbook.unwritten and self._background.running:
            try:
                self._background.call(lambda: _at_most(self.runbook.flush()))
            except HedgeError as error:
                logger.warning("the end of some runs could not be written: %s", error)

    def close(self) -> None:
        """Write what is left, and close the stores. They open again when they are used."""
        self.rounds.stop()
        self.write_the_rest()
        if self._away and self._background.running:
            self._background.call(self.stores.close)


async def _at_most(work: Awaitable[object]) -> None:
    """Wait for the work for `SETTLE_S`; then it goes on without us."""
    task = asyncio.ensure_future(work)
    done, _ = await asyncio.wait({task}, timeout=SETTLE_S)
    if not done:
        task.add_done_callback(lambda late: late.cancelled() or late.exception())
        raise HedgeError(f"the store has not answered for {SETTLE_S:.0f} s")
    task.result()


def _write_the_rest(shared: weakref.ref[Shared]) -> None:
    if (alive := shared()) is not None:
        alive.write_the_rest()


def stores_of(store: Store | None, schema: str | None) -> Stores:
    """Return the stores of a URL or an engine (opened at first use), or of this process's memory."""
    if store is None:
        from agent_hedge.stores.memory import memory_stores

        return memory_stores()
    from agent_hedge.stores.sql import sql_stores

    return sql_stores(store, schema=schema)
