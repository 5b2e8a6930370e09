"""Opens a run around code: a context variable, one deadline, two purses; joins the run's losers when it ends."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import Token
from types import TracebackType

import anyio.to_thread

from agent_hedge.core.events import RunEnded, RunStarted
from agent_hedge.core.ports import Portal
from agent_hedge.core.scope import Run, run_scope
from agent_hedge.engine.driver import NOBODY
from agent_hedge.engine.funnel import Around, Funnel
from agent_hedge.engine.loops import Loops
from agent_hedge.engine.runbook import Record
from agent_hedge.errors import HedgeError


class RunScope:
    """What `Hedger.run` returns: ``with`` or ``async with`` it, once. Entering gives the `Run`.

    `record`: its place in the store, for which entering waits a moment. `listen` hears what runs inside, where that
    decides which generation it is; it returns what stops it.
    """

    def __init__(
        self,
        run: Run,
        loops: Loops,
        portal: Portal,
        ended: Callable[[Run], None],
        funnel: Funnel = NOBODY,
        *,
        record: Record | None = None,
        listen: Callable[[Record], Callable[[], None]] | None = None,
    ) -> None:
        self._run = run
        self._record = record
        self._listen = listen
        self._stop_listening: Callable[[], None] | None = None
        self._funnel = funnel
        self._around: Around | None = None
        self._ended = ended
        self._loops = loops
        self._portal = portal
        self._token: Token[Run | None] | None = None

    @property
    def opened(self) -> Run:
        """The run, for adapters that keep it open without a scope."""
        if self._record is not None:
            self._record.unscoped = True
        return self._run

    def __enter__(self) -> Run:
        if self._record is not None:
            self._record.wait()
        return self._enter()

    def _enter(self) -> Run:
        if self._token is not None:
            raise HedgeError("A run is entered once; open another one for more work.")
        if self._record is not None and self._listen is not None and self._record.undecided:
            self._stop_listening = self._listen(self._record)
        self._token = run_scope.set(self._run)
        if self._funnel:
            self._around = self._funnel.around(_started(self._run))
            self._around.__enter__()
        return self._run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)
        if self._loops.owe(self._run):
            self._join_sync_steps()

    async def __aenter__(self) -> Run:
        if self._record is not None and not self._record.loaded:
            await anyio.to_thread.run_sync(self._record.wait, abandon_on_cancel=True)
        return self._enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._leave(error)
        await self._loops.current().reaper.join(self._run)
        if self._loops.owe(self._run):
            await anyio.to_thread.run_sync(self._join_sync_steps)

    def _leave(self, error: BaseException | None) -> None:
        assert self._token is not None
        if self._stop_listening is not None:
            self._stop_listening()
        if self._record is not None:
            self._record.close()
        if error is None:
            self._ended(self._run)
        if self._around is not None:
            self._around.__exit__(None, None, None)
            self._funnel.tell(_ended(self._run, error))
        with suppress(ValueError):  # left in another context than it was entered in: there is nothing to reset here
            run_scope.reset(self._token)

    def _join_sync_steps(self) -> None:
        """Join the losers of sync functions, which run on the background loop."""
        self._portal.call(lambda: self._loops.current().reaper.join(self._run))


def _started(run: Run) -> RunStarted:
    return RunStarted(
        at=run.opened_at,
        run=id(run),
        run_key=run.key,
        generation=run.generation,
        deadline=run.deadline,
        tenant=run.tenant,
    )


def _ended(run: Run, error: BaseException | None) -> RunEnded:
    return RunEnded(
        at=run.clock(),
        run=id(run),
        steps=run.steps,
        hedges=run.extra_attempts_used,
        recoveries=run.recoveries_used,
        hedges_left=max(0, run.extra_attempts - run.extra_attempts_used),
        remaining=run.remaining,
        error="" if error is None else type(error).__name__,
    )
