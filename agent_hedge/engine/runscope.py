"""Opens a run around code: a context variable, one deadline, two purses; joins the run's losers when it ends."""

from __future__ import annotations

from contextvars import Token
from types import TracebackType

from agent_hedge.core.scope import Run, run_scope
from agent_hedge.engine.loops import Loops


class RunScope:
    """What `Hedger.run` returns: ``with`` or ``async with`` it, once. Entering gives the `Run`."""

    def __init__(self, run: Run, loops: Loops) -> None:
        self._run = run
        self._loops = loops
        self._token: Token[Run | None] | None = None

    def __enter__(self) -> Run:
        self._token = run_scope.set(self._run)
        return self._run

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        run_scope.reset(self._token)

    async def __aenter__(self) -> Run:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, trace)
        await self._loops.current().reaper.join(self._run)
