"""Runs one guarded call for its caller, in the caller's own thread, task and context.

Only the ledger's words cross to the loop that owns the store. A claim that nobody uses any more, because its caller
was cancelled meanwhile, is withdrawn.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from agent_hedge.core.ports import Portal
from agent_hedge.core.stores import Claim
from agent_hedge.errors import EffectBarred, EffectInDoubt, EffectStillRunning, StoreUnavailable
from agent_hedge.tools.answers import Answer
from agent_hedge.tools.calls import Call, Permit, Replay
from agent_hedge.tools.crossing import cross, start
from agent_hedge.tools.effect import fitting
from agent_hedge.tools.ledger import Ledger
from agent_hedge.tools.refusals import raised

T = TypeVar("T")

Ask = Callable[[EffectInDoubt], Answer | None]
"""Asks a person about a call in doubt (it may raise, to come back with the answer); None: there is nobody to ask."""

Prove = Callable[[Sequence[Claim]], Sequence[str]]
AsyncProve = Callable[[Sequence[Claim]], Awaitable[Sequence[str]]]
"""Looks for claims that are missing in the history; returns the keys of those the checkpointer has kept."""

Told = Callable[[str, str], object]
"""Hears the name of a tool and what the ledger has answered, in the words of `core.events.Claimed`."""

NOTHING: Mapping[str, Any] = {}


def nobody(_: EffectInDoubt) -> None:
    """Ask nobody: the call stays in doubt."""


def nothing_kept(_: Sequence[Claim]) -> Sequence[str]:
    """Prove nothing."""
    return ()


def tell_nobody(tool: str, answer: str) -> None:
    """Say it to nobody."""


async def anothing_kept(_: Sequence[Claim]) -> Sequence[str]:
    """Prove nothing."""
    return ()


class Guarded:
    """A ledger and the way to it. Without a portal the ledger lives on the caller's own loop (async callers only)."""

    def __init__(self, ledger: Ledger, portal: Portal | None, told: Told = tell_nobody) -> None:
        self.ledger = ledger
        self._portal = portal
        self._told = told

    def run(
        self,
        call: Call,
        body: Callable[[str], T],
        *,
        arguments: Mapping[str, Any] = NOTHING,
        ask: Ask = nobody,
        prove: Prove = nothing_kept,
    ) -> T | Replay:
        """Run `body(effect key)` in this thread, once. Return its result, or the `Replay` of an earlier execution.

        Raises what `Ledger.admit` raises, and `EffectInDoubt` from an error of the tool that leaves it in doubt.
        """
        portal = self._portal
        assert portal is not None, "a sync call needs a background loop"
        ledger = self.ledger
        while True:
            try:
                permit = portal.call(lambda: ledger.admit(call))
                break
            except EffectInDoubt as doubt:
                if _abandoned(doubt):
                    self._told(call.tool, "in_doubt")
                    return Replay(None, kept=False, abandoned=True)
                if (missing := _missing(doubt)) and len(kept := prove(missing)) == len(missing):
                    portal.call(functools.partial(ledger.clear, call, kept))
                    continue
                answer: Answer | None = "happened" if _happened(_verdict(call, doubt, arguments)) else ask(doubt)
                if answer is None:
                    self._told(call.tool, _word(doubt))
                    raise
            except (EffectBarred, StoreUnavailable) as refused:
                self._told(call.tool, _word(refused))
                raise
            portal.call(functools.partial(ledger.take_answer, call.key, answer))
        self._told(call.tool, _word(permit))
        if isinstance(permit, Replay):
            return permit
        ledger.sent(permit)
        try:
            value = body(permit.key)
        except BaseException as error:
            failure = error
            portal.call(lambda: ledger.failed(permit, failure))
            self._raise_doubt(permit, error)
            raise
        portal.call(lambda: ledger.done(permit, value))
        return value

    async def arun(
        self,
        call: Call,
        body: Callable[[str], Awaitable[T]],
        *,
        arguments: Mapping[str, Any] = NOTHING,
        ask: Ask = nobody,
        prove: AsyncProve = anothing_kept,
    ) -> T | Replay:
        """Like `run`, for a coroutine function."""
        portal, ledger = self._portal, self.ledger
        while True:
            try:
                permit = await cross(portal, lambda: ledger.admit(call), undo=ledger.withdraw)
                break
            except EffectInDoubt as doubt:
                if _abandoned(doubt):
                    self._told(call.tool, "in_doubt")
                    return Replay(None, kept=False, abandoned=True)
                if (missing := _missing(doubt)) and len(kept := await prove(missing)) == len(missing):
                    await cross(portal, functools.partial(ledger.clear, call, kept))
                    continue
                verdict = _verdict(call, doubt, arguments)
                if inspect.isawaitable(verdict):
                    verdict = await verdict
                answer: Answer | None = "happened" if _happened(verdict) else ask(doubt)
                if answer is None:
                    self._told(call.tool, _word(doubt))
                    raise
            except (EffectBarred, StoreUnavailable) as refused:
                self._told(call.tool, _word(refused))
                raise
            await cross(portal, functools.partial(ledger.take_answer, call.key, answer))
        self._told(call.tool, _word(permit))
        if isinstance(permit, Replay):
            return permit
        ledger.sent(permit)
        try:
            value = await body(permit.key)
        except asyncio.CancelledError as error:
            failure: BaseException = error
            start(portal, lambda: ledger.failed(permit, failure))  # who was told to stop does not wait for a store
            self._raise_doubt(permit, error)
            raise
        except BaseException as error:
            failure = error
            await cross(portal, lambda: ledger.failed(permit, failure))
            self._raise_doubt(permit, error)
            raise
        await cross(portal, lambda: ledger.done(permit, value))
        return value

    def _raise_doubt(self, permit: Permit, error: BaseException) -> None:
        """Raise `EffectInDoubt` for an error of the tool after which nobody knows whether it happened.

        What is no `Exception` (an exit, an interrupt), and control flow of a framework, goes its own way: the claim is
        in doubt all the same.
        """
        call = permit.call
        if not call.single or isinstance(error, call.spec.not_started):
            return
        self._told(call.tool, "in_doubt")
        if not isinstance(error, Exception) or is_control_flow(error):
            return
        raise raised(call, error) from error


def _abandoned(doubt: EffectInDoubt) -> bool:
    return bool(getattr(doubt, "abandoned", False))


def _missing(doubt: EffectInDoubt) -> Sequence[Claim]:
    found: Sequence[Claim] = getattr(doubt, "missing", ())
    return found


def _verdict(call: Call, doubt: EffectInDoubt, arguments: Mapping[str, Any]) -> object:
    """Ask the tool's verifier, which may only say that it happened; without one: None."""
    verify, claim = call.spec.verify, getattr(doubt, "claim", None)
    if verify is None or claim is None:
        return None
    return verify(claim, **fitting(verify, arguments, after=1))


def _happened(verdict: object) -> bool:
    """Only a plain yes counts (an awaitable that a sync caller cannot await is none)."""
    if inspect.iscoroutine(verdict):
        verdict.close()
    return verdict is True


def _word(answer: object) -> str:
    match answer:
        case Permit():
            return "run"
        case Replay():
            return "replayed"
        case EffectStillRunning():
            return "running"
        case EffectInDoubt():
            return "in_doubt"
        case EffectBarred():
            return "barred"
        case _:
            return "store_lost"


def is_control_flow(error: BaseException) -> bool:
    """Whether an error is a framework's way to pause or route (LangGraph's `GraphBubbleUp`), known by its ancestry."""
    return any(base.__name__ == "GraphBubbleUp" for base in type(error).__mro__)
