"""The registry: what running each tool twice would do, and who says so.

Sources, in the order of their word: the operator, the code, a trusted server, an untrusted hint. The first that says
something decides. Below the operator every server may *tighten* what the code says and never loosen it; an untrusted
hint alone allows nothing. An entry pins the hash of the tool's input schema: a tool that has changed since is stale.
Unknown, stale, contradictory, unreadable: all of it counts as `ONCE` (R9).

Reads come from a snapshot in memory and never wait. With a store the snapshot is refreshed in the background by
revision; one that is older than a minute counts as unreadable.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

import anyio.to_thread

from agent_hedge.core.ports import Portal
from agent_hedge.core.step import Effect
from agent_hedge.core.stores import EffectRow, EffectStore
from agent_hedge.errors import ConfigurationError, HedgeError
from agent_hedge.tools import sources
from agent_hedge.tools.effect import EffectSpec, effect_spec, namespace_of, with_effect
from agent_hedge.tools.judge import CODE, OPERATOR, SERVER, Entry, Key, judge, row_of, rows_of, same, standing

T = TypeVar("T")

FRESH_S = 60.0
"""Age at which a snapshot counts as unreadable (R9)."""


class Registry:
    """An `EffectSource`. `clock` in seconds; `portal` runs store calls on the background loop, from any thread.

    Without a store everything lives in this object. With one, `refresh` has to be called about once a second.
    """

    def __init__(
        self,
        store: EffectStore | None = None,
        *,
        portal: Portal | None = None,
        clock: Callable[[], float] = time.monotonic,
        by: str = "code",
    ) -> None:
        self._store = store
        self._portal = portal
        self._clock = clock
        self._by = by
        self._lock = threading.RLock()
        self._stored: dict[Key, dict[str, EffectRow]] = {}
        self._local: dict[Key, dict[str, EffectRow]] = {}
        self._specs: dict[Key, EffectSpec] = {}
        self._said_by: dict[Key, str] = {}
        self._contradicted: set[Key] = set()
        self._seen_hash: dict[Key, str] = {}
        self._pending: dict[tuple[str, str, str], EffectRow] = {}
        self._repinned: set[Key] = set()
        self._history: list[EffectRow] = []
        self._entries: dict[Key, Entry] = {}
        self._effects: dict[Key, Effect] = {}
        self._revision = -1
        self.version = 0
        """Moves with every change of the entries, declared here or read from the store."""
        self._readable_until = math.inf if store is None else -math.inf

    # --- reading: from the snapshot, never waiting

    def effect(self, name: str, namespace: str = "") -> Effect:
        """Return what counts for a tool now: `ONCE` for what is stale, contradictory or unreadable."""
        if self._clock() > self._readable_until:
            return Effect.ONCE
        return self._effects.get((namespace, name), Effect.UNKNOWN)

    def effect_for(self, name: str, arguments: Mapping[str, Any], namespace: str = "") -> Effect:
        """Return what counts for a call with these arguments (R9: statically the worst, here the actual value)."""
        entry = self.known(name, namespace)
        return entry.spec.effect_for(arguments) if entry.source and self.readable else self.effect(name, namespace)

    @property
    def readable(self) -> bool:
        """Whether the snapshot is fresh enough to allow anything."""
        return self._clock() <= self._readable_until

    def known(self, name: str, namespace: str = "") -> Entry:
        """Return the last known entry, however old: what a single dispatch goes by while the store is away (R14)."""
        entry = self._entries.get((namespace, name))
        if entry is not None:
            return entry
        return Entry(namespace=namespace, name=name, effect=Effect.UNKNOWN, why="nobody has declared it")

    def explain_entry(self, name: str, namespace: str = "") -> Entry:
        """Return what counts now and why."""
        entry = self.known(name, namespace)
        if self.readable:
            return entry
        return replace(
            entry,
            effect=Effect.ONCE,
            why=f"the registry could not be read for {FRESH_S:.0f} s",
            source="",
            spec=with_effect(entry.spec, Effect.ONCE),
        )

    def entries(self) -> list[Entry]:
        """Return all entries, by namespace and name."""
        return [self.explain_entry(name, namespace) for namespace, name in sorted(self._entries)]

    # --- declaring

    def declare(
        self, tools: object, *, namespace: str = "", trusted: bool = False, repin: bool = False, note: str = ""
    ) -> list[Entry]:
        """Take in tools, a mapping ``{name: effect}``, or MCP tool objects or rows; return their entries.

        `trusted`: the operator trusts the hints of this server. `repin`: accept that their schemas have changed.
        Known here at once; a store gets it in the background.
        """
        entries = self._declare(tools, namespace, trusted, repin, note)
        if self._portal is not None and self._store is not None:
            self._portal.start(self.flush)
        return entries

    def spec_of(self, tool: object) -> EffectSpec | None:
        """Return what counts for a tool that says itself what it does, after hearing of it; None for any other.

        Of any other the schema is noted: it does not live on the word of a different tool of its name.
        """
        own = effect_spec(tool)
        if own is None:
            self._see(tool)
            return None
        try:
            return self.declare(tool, namespace=namespace_of(tool))[0].spec
        except HedgeError:  # it cannot be kept under its name; what it says still counts
            return own

    def _see(self, tool: object) -> None:
        key = namespace_of(tool), str(getattr(tool, "name", None) or getattr(tool, "__name__", ""))
        try:
            seen = sources.schema_hash_of(tool)
        except Exception:  # a tool without a schema that can be read has no pin
            return
        with self._lock:
            if seen and self._seen_hash.get(key) != seen:
                self._seen_hash[key] = seen
                self._rebuild([key])

    async def adeclare(
        self, tools: object, *, namespace: str = "", trusted: bool = False, repin: bool = False, note: str = ""
    ) -> list[Entry]:
        """Like `declare`, and wait until the store has it."""
        entries = self._declare(tools, namespace, trusted, repin, note)
        await self._on_store(self.flush)
        return entries

    def annotate(
        self, name: str, effect: Effect | str, *, namespace: str = "", note: str = "", by: str = "", **settings: Any
    ) -> Entry:
        """Say as the operator what a tool does; the last word. `settings` as in `tool_effect`.

        Returns when the store has it, where there is one and a background loop.
        """
        entry = self._annotate(name, effect, namespace, note, by, settings)
        if self._portal is not None and self._store is not None:
            self._portal.call(self.flush)
        return entry

    async def aannotate(
        self, name: str, effect: Effect | str, *, namespace: str = "", note: str = "", by: str = "", **settings: Any
    ) -> Entry:
        """Like `annotate`, for coroutines."""
        entry = self._annotate(name, effect, namespace, note, by, settings)
        await self._on_store(self.flush)
        return entry

    async def awithdraw(self, name: str, *, namespace: str = "", source: str = OPERATOR, by: str = "") -> None:
        """Take an entry away; what other sources say counts again."""
        with self._lock:
            key = namespace, name
            self._pending.pop((*key, source), None)
            row = self._local.get(key, {}).pop(source, None) or self._stored.get(key, {}).pop(source, None)
            if source == CODE:
                self._specs.pop(key, None)
                self._said_by.pop(key, None)
            if row is not None and self._store is None:
                self._history.append(replace(row, withdrawn=True, updated_by=by or self._by))
            self._rebuild([key])
        if (store := self._store) is not None:
            await self._on_store(lambda: store.withdraw(namespace, name, source, by=by or self._by))

    async def history(self, name: str, namespace: str = "") -> Sequence[EffectRow]:
        """Return every version of a tool's entries, oldest first."""
        if (store := self._store) is not None:
            return await self._on_store(lambda: store.history(namespace, name))
        return [row for row in self._history if (row.namespace, row.name) == (namespace, name)]

    def _declare(self, tools: object, namespace: str, trusted: bool, repin: bool, note: str) -> list[Entry]:
        if not isinstance(trusted, bool):
            raise ConfigurationError("trusted is True or False")
        found = sources.read(tools, namespace=namespace)
        rows = [(one, rows_of(one, namespace, trusted, note)) for one in found]  # all are checked before one counts
        with self._lock:
            for one, made in rows:
                key = namespace, one.name
                if one.schema_hash:
                    self._seen_hash[key] = one.schema_hash
                self._hear(key, one)
                for row in made:
                    self._put(row, repin=repin)
            keys = list(dict.fromkeys((namespace, one.name) for one in found))
            self._rebuild(keys)
            return [self.explain_entry(name, space) for space, name in keys]

    def _hear(self, key: Key, one: sources.Declared) -> None:
        """Notice two different tools of one name."""
        before, now = self._said_by.get(key), one.identity
        if one.spec is None:
            # A tool that says nothing must not live on the word of another tool of its name.
            if before and one.hinted is None and before not in (now, "a mapping"):
                self._contradicted.add(key)
            return
        if before is not None and before != now and self._specs.get(key) != one.spec:
            self._contradicted.add(key)
        elif before == now:
            self._contradicted.discard(key)
        self._said_by[key] = now
        self._specs[key] = one.spec

    def _annotate(
        self, name: str, effect: Effect | str, namespace: str, note: str, by: str, settings: Mapping[str, Any]
    ) -> Entry:
        try:
            spec = EffectSpec(effect=effect, **settings)  # type: ignore[arg-type]  # checked by the spec
        except TypeError:
            raise ConfigurationError(f"no such setting of a tool: {', '.join(sorted(settings))}") from None
        with self._lock:
            key = namespace, name
            row = row_of(spec, namespace, name, OPERATOR, self._seen_hash.get(key) or self._pinned(key), note)
            self._put(replace(row, updated_by=by or self._by), repin=True)
            self._rebuild([key])
            return self.explain_entry(name, namespace)

    def _pinned(self, key: Key) -> str:
        """Return the schema that is stored of a tool: what its server or its code has said last, not an operator."""
        rows = self._stored.get(key, {})
        known = (rows[source].schema_hash for source in (SERVER, CODE, OPERATOR) if source in rows)
        return next(filter(None, known), "")

    def _put(self, row: EffectRow, *, repin: bool) -> None:
        key = row.namespace, row.name
        local = self._local.setdefault(key, {})
        before = local.get(row.source)
        if row.source == SERVER:
            if repin:
                self._repinned.add(key)
            else:
                row = standing(before, row)
        local[row.source] = row
        if self._store is not None:
            self._pending[row.namespace, row.name, row.source] = row
        elif before is None or not same(before, row):
            self._history.append(row)

    # --- the store

    async def _on_store(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run a store call on the loop that owns the store."""
        if self._portal is None:
            return await work()
        return await anyio.to_thread.run_sync(self._portal.call, work)

    async def flush(self) -> None:
        """Write what was declared here and is not stored yet. Runs on the store's loop."""
        if self._store is None or not self._pending:
            return
        await self._read()
        with self._lock:
            waiting = dict(self._pending)
            rows = [row for row in map(self._to_store, waiting.values()) if row is not None]
        for by in sorted({row.updated_by for row in rows}):
            await self._store.write([row for row in rows if row.updated_by == by], by=by or self._by)
        with self._lock:
            for key, row in waiting.items():
                if self._pending.get(key) is row:
                    del self._pending[key]
                    if row.source == SERVER:
                        self._repinned.discard((row.namespace, row.name))
                    if row.source == OPERATOR:  # from now on the store's word, which another process may change
                        self._local.get((row.namespace, row.name), {}).pop(OPERATOR, None)
        if rows:
            await self._read()

    def _to_store(self, row: EffectRow) -> EffectRow | None:
        """Return what of a waiting row is news for the store."""
        key = row.namespace, row.name
        stored = self._stored.get(key, {}).get(row.source)
        if row.source == SERVER and key not in self._repinned:
            row = standing(stored, row)
        return row if stored is None or not same(stored, row) else None

    async def refresh(self, now: float) -> bool:
        """Flush, and read the store again when its revision has moved. `now` on the registry's clock.

        Returns whether anything changed. Raises `StoreUnavailable`; the snapshot then ages.
        """
        if self._store is None:
            return False
        changed = await self._read()
        self._readable_until = now + FRESH_S
        await self.flush()
        return changed

    async def _read(self) -> bool:
        if self._store is None or await self._store.revision() == self._revision:
            return False
        revision, rows = await self._store.read()
        stored: dict[Key, dict[str, EffectRow]] = {}
        for row in rows:
            stored.setdefault((row.namespace, row.name), {})[row.source] = row
        with self._lock:
            keys = [*self._stored, *stored, *self._local]
            self._stored, self._revision = stored, revision
            self._rebuild(dict.fromkeys(keys))
        return True

    # --- judging

    def _rebuild(self, keys: Iterable[Key]) -> None:
        entries = dict(self._entries)
        for key in keys:
            entry = self._judge(key)
            if entry is None:
                entries.pop(key, None)
            else:
                entries[key] = entry
        self._entries = entries
        self._effects = {key: entry.effect for key, entry in entries.items()}
        self.version += 1

    def _judge(self, key: Key) -> Entry | None:
        stored, local = self._stored.get(key, {}), self._local.get(key, {})
        rows = {**stored, **local}
        if not rows and key not in self._contradicted:
            return None
        if SERVER in stored and SERVER in local and key not in self._repinned:
            rows[SERVER] = standing(stored[SERVER], local[SERVER])
        return judge(
            key,
            rows,
            seen_hash=self._seen_hash.get(key, ""),
            contradicted=key in self._contradicted,
            code=self._specs.get(key),
        )
