"""Claims in SQL. A winning claim is one durable statement; who won is read from RETURNING.

(On PostgreSQL the row count of an INSERT is -1 under SQLAlchemy.) Leases and ages are counted on the clock the row was
made on; a row of another boot of the host has no living owner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Double,
    Insert,
    Integer,
    LargeBinary,
    Text,
    Update,
    and_,
    bindparam,
    case,
    delete,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import Claim, ClaimState, Fence
from agent_hedge.errors import ConfigurationError, StoreUnavailable
from agent_hedge.stores.sql.engine import Database
from agent_hedge.stores.sql.schema import effect_claims as t
from agent_hedge.stores.sql.schema import store_meta

_FINAL = (ClaimState.DONE, ClaimState.FAILED)
_WITHOUT_RESULT = [column for column in t.c if column is not t.c.result]
_CHUNK = 500
"""Keys in one statement."""


class SqlClaims:
    """A `ClaimStore` in SQL."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._insert = self._claiming()
        self._update = self._settling()

    # --- columns as they stand now

    def _columns(self, *, result: bool = True) -> list[ColumnElement[Any]]:
        clock = self._db.clock
        columns: list[ColumnElement[Any]] = list(t.c) if result else list(_WITHOUT_RESULT)
        return [*columns, clock.now().label("now"), clock.epoch().label("epoch")]

    def _expired(self) -> ColumnElement[bool]:
        clock = self._db.clock
        return or_(t.c.clock != clock.name, t.c.lease_until <= clock.now())

    def _seen(self, row: Mapping[str, Any]) -> Claim:
        same_clock = row["clock"] == self._db.clock.name
        age = row["now"] - row["clock_at"] if same_clock else row["epoch"] - row["claimed_at"]
        try:
            return Claim(
                effect_key=row["effect_key"],
                tool=row["tool"],
                effect=_effect(row["effect"]),
                args_fingerprint=row["args_fingerprint"],
                owner=row["owner"],
                attempt_id=row["attempt_id"],
                run_key=row["run_key"],
                thread=row["thread"],
                call_id=row["call_id"],
                principal=row["principal"],
                state=_state(row["state"]),
                confirmed=row["confirmed"] == 1,
                executions=row["executions"],
                lease_left=row["lease_until"] - row["now"] if same_clock else -math.inf,
                age=age if age >= 0 else math.inf,
                claimed_at=row["claimed_at"],
                result=row.get("result"),
                note=row["note"],
            )
        except (ConfigurationError, TypeError):
            pass
        raise StoreUnavailable("A stored claim makes no sense; nothing was dispatched.")

    # --- the port

    def _claiming(self) -> Insert:
        clock = self._db.clock
        statement: Insert = (
            self._db.insert(t)
            .values(
                state=ClaimState.RUNNING.value,
                confirmed=0,
                executions=1,
                clock=clock.name,
                clock_at=clock.now(),
                lease_until=clock.now() + bindparam("lease", type_=Double),
                claimed_at=clock.epoch(),
            )
            .on_conflict_do_nothing(index_elements=["effect_key"])
            .returning(t.c.claimed_at)
        )
        return statement

    async def claim(self, claim: Claim, *, lease: float) -> Claim:
        given = {
            "effect_key": claim.effect_key,
            "tool": claim.tool,
            "effect": claim.effect.value,
            "args_fingerprint": claim.args_fingerprint,
            "run_key": claim.run_key,
            "thread": claim.thread,
            "call_id": claim.call_id,
            "principal": claim.principal,
            "attempt_id": claim.attempt_id,
            "owner": claim.owner,
            "note": claim.note,
            "lease": lease,
        }
        while True:
            if (won := await self._db.at_once(self._insert, given)) is not None:
                return replace(
                    claim,
                    state=ClaimState.RUNNING,
                    confirmed=False,
                    executions=1,
                    lease_left=lease,
                    age=0.0,
                    claimed_at=won[0],
                    result=None,
                )
            if (standing := await self.get(claim.effect_key)) is not None:
                return standing  # else it was pruned between the two statements

    async def renew(self, effect_key: str, attempt_id: str, *, lease: float) -> bool:
        clock = self._db.clock
        statement = (
            update(t)
            .where(t.c.effect_key == effect_key, t.c.attempt_id == attempt_id, t.c.state == ClaimState.RUNNING.value)
            .values(lease_until=clock.now() + lease)
            .returning(t.c.effect_key)
        )

        async def extend(connection: AsyncConnection) -> bool:
            return (await connection.execute(statement)).first() is not None

        return await self._db.one(extend)

    def _settling(self) -> Update:
        note = bindparam("new_note", type_=Text)
        open_ = or_(
            t.c.state == ClaimState.RUNNING.value,
            and_(t.c.state == ClaimState.IN_DOUBT.value, bindparam("late", type_=Integer) == 1),
        )
        return (
            update(t)
            .where(t.c.effect_key == bindparam("key"), t.c.attempt_id == bindparam("attempt"), open_)
            .values(
                state=bindparam("new_state", type_=t.c.state.type),
                result=bindparam("new_result", type_=LargeBinary),
                settled_at=self._db.clock.epoch(),
                note=case((note == "", t.c.note), else_=note),
            )
            .returning(t.c.effect_key)
        )

    async def settle(
        self, effect_key: str, attempt_id: str, state: ClaimState, *, result: bytes | None = None, note: str = ""
    ) -> bool:
        given = {
            "key": effect_key,
            "attempt": attempt_id,
            "new_state": state.value,
            "new_result": result,
            "new_note": note,
            "late": int(state in _FINAL or bool(note)),  # a note may be put on a row that stays in doubt
        }
        if await self._db.at_once(self._update, given) is not None:
            return True
        standing = await self.get(effect_key)
        return standing is not None and (standing.attempt_id, standing.state) == (attempt_id, state)

    async def mark_in_doubt(self, effect_key: str, *, if_expired: bool = True) -> Claim | None:
        condition = and_(t.c.effect_key == effect_key, t.c.state == ClaimState.RUNNING.value)
        if if_expired:
            condition = and_(condition, self._expired())
        statement = update(t).where(condition).values(state=ClaimState.IN_DOUBT.value)

        async def move(connection: AsyncConnection) -> Claim | None:
            await connection.execute(statement)
            return await self._get(connection, effect_key)

        standing = await self._db.one(move)
        return standing if standing is not None and standing.state is ClaimState.IN_DOUBT else None

    async def take_over(self, claim: Claim, *, previous_attempt: str, lease: float) -> Claim:
        clock = self._db.clock
        free = or_(
            t.c.state.in_([ClaimState.IN_DOUBT.value, ClaimState.FAILED.value]),
            and_(t.c.state == ClaimState.RUNNING.value, self._expired()),
        )
        statement = (
            update(t)
            .where(t.c.effect_key == claim.effect_key, t.c.attempt_id == previous_attempt, free)
            .values(
                state=ClaimState.RUNNING.value,
                attempt_id=claim.attempt_id,
                owner=claim.owner,
                call_id=claim.call_id,
                executions=t.c.executions + 1,
                # the age goes on from the first claim; on another clock it is carried over
                clock_at=case(
                    (t.c.clock == clock.name, t.c.clock_at), else_=clock.now() - (clock.epoch() - t.c.claimed_at)
                ),
                clock=clock.name,
                lease_until=clock.now() + lease,
                settled_at=None,
            )
        )

        async def take(connection: AsyncConnection) -> Claim | None:
            await connection.execute(statement)
            return await self._get(connection, claim.effect_key)

        standing = await self._db.one(take)
        return standing if standing is not None else await self.claim(claim, lease=lease)

    async def confirm(self, effect_keys: Iterable[str]) -> None:
        keys = sorted(set(effect_keys))

        async def mark(connection: AsyncConnection) -> None:
            for first in range(0, len(keys), _CHUNK):
                some = keys[first : first + _CHUNK]
                await connection.execute(update(t).where(t.c.effect_key.in_(some)).values(confirmed=1))

        if keys:
            await self._db.one(mark)

    async def get(self, effect_key: str) -> Claim | None:
        return await self._db.read(lambda connection: self._get(connection, effect_key))

    async def _get(self, connection: AsyncConnection, effect_key: str) -> Claim | None:
        row = (
            (await connection.execute(select(*self._columns()).where(t.c.effect_key == effect_key))).mappings().first()
        )
        return self._seen(dict(row)) if row else None

    async def of_thread(self, thread: str) -> Sequence[Claim]:
        return await self._list(t.c.thread == thread)

    async def of_run(self, run_key: str) -> Sequence[Claim]:
        return await self._list(t.c.run_key == run_key)

    async def recent(self, limit: int, *, states: Sequence[ClaimState] = ()) -> Sequence[Claim]:
        condition = t.c.state.in_([state.value for state in states]) if states else literal(True)
        return await self._list(condition, newest=limit)

    async def _list(self, condition: ColumnElement[bool], *, newest: int | None = None) -> Sequence[Claim]:
        statement = select(*self._columns(result=False)).where(condition)
        if newest is None:
            statement = statement.order_by(t.c.claimed_at, t.c.effect_key)
        else:
            statement = statement.order_by(t.c.claimed_at.desc(), t.c.effect_key).limit(newest)

        async def rows(connection: AsyncConnection) -> list[Claim]:
            return [self._seen(dict(row)) for row in (await connection.execute(statement)).mappings()]

        return await self._db.read(rows)

    async def prune(self, older_than: float) -> int:
        statement = delete(t).where(
            t.c.state.in_([state.value for state in _FINAL]),
            t.c.settled_at < self._db.clock.epoch() - older_than,
        )

        async def remove(connection: AsyncConnection) -> int:
            return (await connection.execute(statement)).rowcount

        return await self._db.one(remove)

    async def fence(self, since: float) -> Fence:
        insert = self._db.insert(store_meta)
        epoch = self._db.clock.epoch()

        async def remember(connection: AsyncConnection) -> Fence:
            until: float = (await connection.execute(select(epoch))).scalar_one()
            for name, value in (("fence_since", since), ("fence_until", until)):
                await connection.execute(
                    insert.values(name=name, text=repr(float(value))).on_conflict_do_update(
                        index_elements=["name"], set_={"text": repr(float(value))}
                    )
                )
            return Fence(since=since, until=until)

        return await self._db.write(remember, again=True)

    async def fenced(self) -> Fence | None:
        statement = select(store_meta.c.name, store_meta.c.text).where(
            store_meta.c.name.in_(["fence_since", "fence_until"])
        )

        async def recall(connection: AsyncConnection) -> Fence | None:
            found = {row.name: row.text for row in await connection.execute(statement)}
            if len(found) < 2:
                return None
            return Fence(since=float(found["fence_since"]), until=float(found["fence_until"]))

        return await self._db.read(recall)


def _state(word: str) -> ClaimState:
    try:
        return ClaimState(word)
    except ValueError:
        return ClaimState.IN_DOUBT


def _effect(word: str) -> Effect:
    try:
        return Effect(word)
    except ValueError:
        return Effect.UNKNOWN
