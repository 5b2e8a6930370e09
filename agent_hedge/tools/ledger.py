"""The ledger (R11): claim -> dispatch -> settle, at most one execution of a side effect per key.

    (none) ── claim ──► running ── settle ──► done
                          │  ├─ proof that nothing happened ──► failed ── claim again ──► running
                          │  └─ an error, a cancel ──► in doubt ◄── the owner is dead
                          └── (the owner, late) ─────────────────► done

1. No claim, no dispatch. The row is durable before the tool starts.
2. A live duplicate waits and gets the result of the call that runs.
3. A `ONCE` call in doubt is never run again by itself. `IDEMPOTENT` and `KEYED` ones are, with the same key, while it
   is younger than the other side's memory of it.
4. The same key with other arguments, or for another principal, is refused.
5. A claim is made first and then compared with its neighbours (`torn`): of two that meet, each sees the other.
6. A claim that was made and not dispatched is withdrawn; where that fails, this process remembers that it sent nothing.

Everything here runs on one loop, the one that owns the store; `guarded` brings callers of any thread or loop to it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import secrets
import socket
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent_hedge.core.ports import Codec
from agent_hedge.core.step import Effect
from agent_hedge.core.stores import Claim, ClaimState, ClaimStore
from agent_hedge.errors import (
    ConfigurationError,
    EffectBarred,
    EffectInDoubt,
    StoreUnavailable,
)
from agent_hedge.tools.answers import DID_NOT_HAPPEN, Answer, resolve
from agent_hedge.tools.calls import SINGLE, Call, Permit, Replay, name_call
from agent_hedge.tools.effect import EffectSpec
from agent_hedge.tools.leases import Leases
from agent_hedge.tools.refusals import check_same, in_doubt, still_running
from agent_hedge.tools.results import JsonCodec, NotKept
from agent_hedge.tools.site import Frame, Site
from agent_hedge.tools.torn import ABANDONED, examine, merged

logger = logging.getLogger("agent_hedge.ledger")

LEASE_S = 10.0
"""How long a silent owner counts as alive. Renewed at a third of it: two renewals may be lost."""
RETENTION_S = 86_400.0
"""How long the other side is trusted to remember a key where nothing is declared (Stripe: at least 24 h)."""
POLL_S = (0.02, 1.0)
"""First and longest pause between looks at a row that another process runs."""
TRACES = 10_000
"""Claims of this process whose place in the run is remembered; older ones count as another process's."""


@dataclass(eq=False, slots=True)
class _Live:
    """An execution of this process, from before its claim until its row is settled."""

    call: Call
    order: int
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    result: Replay | None = None


class Ledger:
    """Guards side effects with a `ClaimStore`. `lease`, `poll` in seconds; `keep_results=False` stores none."""

    def __init__(
        self,
        claims: ClaimStore,
        *,
        codec: Codec | None = None,
        keep_results: bool = True,
        lease: float = LEASE_S,
        poll: tuple[float, float] = POLL_S,
    ) -> None:
        if not lease > 0:
            raise ConfigurationError("the lease of a claim must be positive")
        self._claims = claims
        self._codec = codec or JsonCodec()
        self._keep_results = keep_results
        self._lease = lease
        self._poll = poll
        self._counts: Counter[str] = Counter()
        self._born_again()

    def _born_again(self) -> None:
        """Become another incarnation: at the start, and in the child of a fork."""
        self._pid = os.getpid()
        self.incarnation = f"{socket.gethostname()[:64]}/{self._pid}/{secrets.token_hex(8)}"
        self._order = itertools.count()
        self._live: dict[str, _Live] = {}
        self._unsent: dict[str, str] = {}
        self._traces: OrderedDict[str, tuple[Frame, ...]] = OrderedDict()
        self._leases = Leases(self._claims, self._lease)
        self._late: set[asyncio.Task[None]] = set()

    def counts(self) -> dict[str, int]:
        """Return what has happened to calls in this process: run, replayed, joined, in doubt, barred, withdrawn."""
        return dict(self._counts)

    def call(
        self, tool: str, spec: EffectSpec, arguments: Mapping[str, Any], site: Site, *, effect: Effect | None = None
    ) -> Call:
        """Name a call of `tool` with these arguments (`name_call`)."""
        return name_call(tool, spec, arguments, site, effect=effect, incarnation=self.incarnation)

    # --- claiming -------------------------------------------------------------------------------------------------

    async def admit(self, call: Call) -> Permit | Replay:
        """Claim a call. Return the right to dispatch it, or the result of the execution that there was.

        Raises `EffectInDoubt`, `EffectStillRunning`, `EffectBarred`, `StoreUnavailable`; then nothing was dispatched.
        """
        if self._pid != os.getpid():
            self._born_again()
        until = asyncio.get_running_loop().time() + call.site.remaining
        while (running := self._live.get(call.key)) is not None:
            check_same(call, running.call.args_fingerprint, running.call.site.principal)
            if not running.ended.is_set() and not await _within(running.ended, until):
                raise still_running(call, self.incarnation, 0.0)
            if running.result is not None:
                self._counts["joined"] += 1
                return running.result
        live = self._live[call.key] = _Live(call, next(self._order))
        try:
            decided = await self._decide(call, live, until)
        except BaseException as error:
            self._end(live)
            if isinstance(error, EffectInDoubt | EffectBarred):
                self._counts["in_doubt" if isinstance(error, EffectInDoubt) else "barred"] += 1
            raise
        if isinstance(decided, Replay):
            self._counts["replayed"] += 1
            self._end(live)
        return decided

    async def _decide(self, call: Call, live: _Live, until: float) -> Permit | Replay:
        attempt_id = self._unsent.get(call.key) or secrets.token_hex(16)
        claim = call.claimed(owner=self.incarnation, attempt_id=attempt_id)
        self._unsent[call.key] = attempt_id  # until it is dispatched; the reply to a claim can be lost
        while len(self._unsent) > TRACES:  # an old one that is forgotten is in doubt
            del self._unsent[next(iter(self._unsent))]
        row = await self._claims.claim(claim, lease=self._lease)
        pause = self._poll[0]
        while True:
            if row.attempt_id == attempt_id and row.state is ClaimState.RUNNING:
                return await self._mine(call, live, row)
            check_same(call, row.args_fingerprint, row.principal)
            if row.attempt_id == self._unsent.get(call.key) and row.state in (ClaimState.RUNNING, ClaimState.IN_DOUBT):
                await self._claims.settle(row.effect_key, row.attempt_id, ClaimState.FAILED)
                attempt_id = secrets.token_hex(16)
                claim, row = call.claimed(owner=self.incarnation, attempt_id=attempt_id), await self._again(row)
            elif row.state is ClaimState.DONE:
                return self._replay(row)
            elif row.state is ClaimState.FAILED or self._may_run_again(call, row):
                self._unsent[call.key] = attempt_id
                previous = row.attempt_id
                row = await self._claims.take_over(claim, previous_attempt=previous, lease=self._lease)
            elif row.state is ClaimState.IN_DOUBT:
                raise in_doubt(call, row, row.note or "its owner died or lost track of it")
            elif row.owner == self.incarnation or row.lease_left <= 0:
                # In this process nobody runs it: every execution here stands in `_live`.
                doubted = await self._claims.mark_in_doubt(row.effect_key, if_expired=row.owner != self.incarnation)
                row = doubted or await self._again(row)
            else:
                left = until - asyncio.get_running_loop().time()
                if left <= 0:
                    raise still_running(call, row.owner, row.age)
                await asyncio.sleep(min(pause, left, row.lease_left + 0.001))
                pause = min(pause * 2, self._poll[1])
                row = await self._again(row)

    async def _again(self, row: Claim) -> Claim:
        found = await self._claims.get(row.effect_key)
        if found is None:
            raise StoreUnavailable("A claim has vanished from the store; nothing was dispatched.")
        return found

    async def _mine(self, call: Call, live: _Live, row: Claim) -> Permit:
        """Our claim stands. Look at its neighbours before it counts."""
        self._traces[call.key] = call.site.frames
        self._traces.move_to_end(call.key)
        while len(self._traces) > TRACES:
            self._traces.popitem(last=False)
        self._leases.hold(call.key, row.attempt_id)
        try:
            if row.lease_left <= self._lease / 2:
                await self._claims.renew(call.key, row.attempt_id, lease=self._lease)
            doubt, missing = await self._doubt(call, live, row)
            if doubt:
                await self._claims.settle(call.key, row.attempt_id, ClaimState.IN_DOUBT, note=doubt)
                self._unsent.pop(call.key, None)
                raise in_doubt(call, row, doubt, missing)
        except BaseException:
            self._leases.drop(call.key)
            raise
        self._counts["run"] += 1
        return Permit(call, row.attempt_id, row.executions)

    async def _doubt(self, call: Call, live: _Live, row: Claim) -> tuple[str, Sequence[Claim]]:
        if row.note == DID_NOT_HAPPEN:
            return "", ()
        if call.single and call.site.born < math.inf:
            fence = await self._claims.fenced()
            if fence is not None and call.site.born <= fence.until:
                return "claims of that time may have been lost with a restored backup", ()
        if call.declared or call.spec.at_least_once or not (call.single or call.effect is Effect.KEYED):
            return "", ()
        lists = []
        if call.site.thread:
            lists.append(await self._claims.of_thread(call.site.thread))
        if call.run_key != call.site.thread:
            lists.append(await self._claims.of_run(call.run_key))

        def later(key: str) -> bool:
            other = self._live.get(key)
            return other is not None and other.order > live.order

        rows = []
        for other in merged(*lists):
            if other.attempt_id == self._unsent.get(other.effect_key) and other.effect_key not in self._live:
                await self._forget(other)  # its reply was lost; it was never sent
            else:
                rows.append(other)
        found = examine(row, call.site, rows, trace=self._traces.get, later=later)
        if found.seen:
            await self._claims.confirm(found.seen)
        return found.doubt, found.missing

    async def _forget(self, unsent: Claim) -> None:
        """Free a claim of ours that was made while its caller heard of an outage."""
        await self._claims.settle(unsent.effect_key, unsent.attempt_id, ClaimState.FAILED)
        self._unsent.pop(unsent.effect_key, None)

    def _may_run_again(self, call: Call, row: Claim) -> bool:
        """Whether a call in doubt, or one whose owner is dead, may be run again with the same key."""
        dead = row.state is ClaimState.IN_DOUBT or (row.state is ClaimState.RUNNING and row.lease_left <= 0)
        if not dead or row.note == ABANDONED:
            return False
        if call.spec.at_least_once:
            return True
        repeatable = call.effect in (Effect.IDEMPOTENT, Effect.KEYED) and row.effect not in SINGLE
        return repeatable and call.spec.repeat_allowed and row.age < (call.spec.retention or RETENTION_S)

    def _replay(self, row: Claim) -> Replay:
        if row.result is None:
            return Replay(None, kept=False)
        try:
            return Replay(self._codec.decode(row.result))
        except Exception:
            pass
        logger.warning("a stored result of %s cannot be read", row.tool)
        return Replay(None, kept=False)

    # --- settling -------------------------------------------------------------------------------------------------

    async def withdraw(self, permit: Permit | Replay) -> None:
        """Give back a permit that was not used."""
        if isinstance(permit, Replay):
            return
        self._counts["withdrawn"] += 1
        self._leases.drop(permit.key)
        live = self._live.get(permit.key)
        try:
            await self._claims.settle(permit.key, permit.attempt_id, ClaimState.FAILED)
            self._unsent.pop(permit.key, None)
        except StoreUnavailable:
            pass  # `_unsent` still says that nothing was sent
        finally:
            if live is not None:
                self._end(live)

    def sent(self, permit: Permit) -> None:
        """The tool starts now. From any thread."""
        self._unsent.pop(permit.key, None)

    async def done(self, permit: Permit, value: object) -> None:
        """The tool has returned. Never raises for the store: the caller has its result, the row follows."""
        data, note = self._encoded(value)
        await self._settle(permit, ClaimState.DONE, Replay(value), data, note)

    async def failed(self, permit: Permit, error: BaseException) -> ClaimState:
        """The tool has raised, or was cancelled. Return what is known now: failed (nothing happened), or in doubt."""
        safe = not permit.call.single or isinstance(error, permit.call.spec.not_started)
        state = ClaimState.FAILED if safe else ClaimState.IN_DOUBT
        note = "" if safe else f"the tool raised {type(error).__name__}"
        if not safe:
            self._counts["in_doubt"] += 1
        await self._settle(permit, state, None, None, note)
        return state

    def _encoded(self, value: object) -> tuple[bytes | None, str]:
        if not self._keep_results:
            return None, ""
        try:
            return self._codec.encode(value), ""
        except NotKept:
            return None, f"the result, a {type(value).__name__}, has no stored form"
        except Exception:
            pass
        return None, "the result could not be stored"

    async def _settle(
        self, permit: Permit, state: ClaimState, result: Replay | None, data: bytes | None, note: str
    ) -> None:
        self._leases.drop(permit.key)
        live = self._live.get(permit.key)
        if live is not None:
            live.result = result
        try:
            await self._claims.settle(permit.key, permit.attempt_id, state, result=data, note=note)
        except StoreUnavailable:
            self._settle_later(permit, state, data, note, live)
            return
        if live is not None:
            self._end(live)

    def _settle_later(
        self, permit: Permit, state: ClaimState, data: bytes | None, note: str, live: _Live | None
    ) -> None:
        """Say it as soon as the store is back. Until then this process goes by what it knows."""
        if live is not None and live.result is not None:
            live.ended.set()

        async def insist() -> None:
            pause = self._poll[0]
            while True:
                await asyncio.sleep(pause)
                pause = min(pause * 2, self._lease)
                try:
                    await self._claims.settle(permit.key, permit.attempt_id, state, result=data, note=note)
                    break
                except StoreUnavailable:
                    continue
            if live is not None:
                self._end(live)

        task = asyncio.get_running_loop().create_task(insist())
        self._late.add(task)
        task.add_done_callback(self._late.discard)

    def _end(self, live: _Live) -> None:
        if self._live.get(live.call.key) is live:
            del self._live[live.call.key]
        live.ended.set()

    # --- answers --------------------------------------------------------------------------------------------------

    async def answer(self, key: str, answer: Answer) -> Claim:
        """Settle a claim in doubt by what a person, or a verifier that saw it happen, says. Return the row.

        Whoever answers has seen the thread: its settled claims no longer have to be in the history.
        """
        return await resolve(self._claims, key, answer)

    async def take_answer(self, key: str, answer: Answer) -> None:
        """Like `answer`, for a call that is asked about again: where its claim was settled meanwhile, that counts."""
        try:
            await self.answer(key, answer)
        except ConfigurationError:
            row = await self._claims.get(key)
            if row is None or row.state is ClaimState.IN_DOUBT:
                raise

    async def clear(self, call: Call, kept: Sequence[str]) -> None:
        """Free a call that was in doubt only for claims missing in its history: `kept` are in the checkpointer.

        It was not dispatched, so its own claim is free again.
        """
        await self._claims.confirm(kept)
        row = await self._claims.get(call.key)
        if row is not None and row.owner == self.incarnation:
            await self._claims.settle(call.key, row.attempt_id, ClaimState.FAILED)


async def _within(event: asyncio.Event, until: float) -> bool:
    """Wait for an event until an instant of the running loop; tell whether it came."""
    waiter = asyncio.ensure_future(event.wait())
    try:
        left = until - asyncio.get_running_loop().time()
        await asyncio.wait({waiter}, timeout=None if left == float("inf") else max(0.0, left))
        return event.is_set()
    finally:
        waiter.cancel()
