"""What a type checker must see of the public face. Checked by `test_typing.py`; it also runs nowhere and may not.

`assert_type` says what is inferred; a ``type: ignore`` with its code says what must be an error (an unused one is).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any, assert_type

from agent_hedge import (
    AllAttemptsFailed,
    DeadlineExceeded,
    Effect,
    EffectInDoubt,
    Fixed,
    FleetBudget,
    Hedger,
    Never,
    Quantile,
    Target,
    current_attempt,
    current_run,
)
from agent_hedge.core.events import Event, Reason
from agent_hedge.core.ports import HedgePolicy, Observer, RaceView, Refused
from agent_hedge.core.scope import ActiveAttempt, Run


async def answer(question: str, *, retries: int = 0) -> int:
    return 42


async def tokens(prompt: str) -> AsyncIterator[str]:
    yield prompt


async def generated(prompt: str) -> AsyncGenerator[str, None]:
    yield prompt


def lookup(key: str) -> bytes:
    return b""


hedger = Hedger(policy=Quantile(0.95), budget=FleetBudget(0.05), nodes={"plan": Never()}, mode="on", share=0.5)


async def wrap_keeps_the_signature() -> None:
    hedged = hedger.wrap(answer, key="answer", effect=Effect.READ_ONLY, targets=["a", Target("b")], timeout=3.0)
    assert_type(await hedged("why?", retries=2), int)
    await hedged(3)  # type: ignore[arg-type]
    await hedged("why?", tries=3)  # type: ignore[call-arg]

    assert_type(hedger.wrap(lookup, effect=Effect.READ_ONLY)("key"), bytes)
    async for token in hedger.wrap(tokens, effect=Effect.READ_ONLY, first=bool)("prompt"):
        assert_type(token, str)
    await hedger.wrap(generated, effect=Effect.READ_ONLY)("prompt").aclose()


async def a_decorator_keeps_it_too() -> None:
    @hedger.wrap(effect=Effect.IDEMPOTENT, policy=Fixed(0.5, attempts=2), recover=(LookupError,))
    async def ask(question: str) -> list[str]:
        return [question]

    assert_type(await ask("why?"), list[str])

    @hedger.wrap
    async def bare(question: str) -> str:
        return question

    assert_type(await bare("why?"), str)


def settings_are_typed() -> None:
    hedger.wrap(answer, effect=Effect.READ_ONLY, timeout="3")  # type: ignore[call-overload]
    hedger.wrap(answer, effect=Effect.READ_ONLY, delay=3)  # type: ignore[call-overload]
    hedger.wrap(answer, effect=Effect.READ_ONLY, policy=0.95)  # type: ignore[call-overload]
    hedger.wrap(answer, effect=Effect.READ_ONLY, targets=3)  # type: ignore[call-overload]
    Hedger(policy=0.95)  # type: ignore[arg-type]
    Hedger(share="half")  # type: ignore[arg-type]
    Hedger(quantile=0.95)  # type: ignore[call-arg]


async def runs() -> None:
    async with hedger.run(key="thread", deadline=30.0, extra_attempts=3, steps=20, tenant="acme") as run:
        assert_type(run, Run)
        assert_type(run.remaining, float)
        assert_type(run.extra_attempts_used, int)
    with hedger.run() as run:
        assert_type(run, Run)
    assert_type(current_run(), Run | None)
    assert_type(current_attempt(), ActiveAttempt | None)
    async with Hedger() as opened:
        assert_type(opened, Hedger)
    assert_type(Hedger.from_env(mode="off"), Hedger)


def places() -> None:
    assert_type(Target("a"), Target[None])
    assert_type(Target("a", b"client").member, bytes)
    assert_type(Target.replicas(["http://a/v1", "http://b/v1"], dict[str, int]), list[Target[dict[str, int]]])
    attempt = current_attempt()
    assert attempt is not None
    assert_type(attempt.target.name, str)
    assert_type(attempt.target.member, Any)


def errors(error: DeadlineExceeded, failed: AllAttemptsFailed, doubt: EffectInDoubt) -> None:
    assert_type((doubt.key, doubt.age), tuple[str, float])
    assert_type(error.running, tuple[str, ...])
    assert_type(error.elapsed, float)
    assert_type(failed.exceptions, tuple[Exception | ExceptionGroup[Exception], ...])
    _: TimeoutError = error


class Mine:
    """A policy and an observer of one's own."""

    def next_launch_at(self, view: RaceView) -> float | Refused | None:
        if view.run is None:
            return Refused(Reason.COLD)
        return view.last_launch_at + 1.0

    def on_event(self, event: Event) -> None: ...


policy: HedgePolicy = Mine()
observer: Observer = Mine()
judge: Callable[[int], bool] = bool
Hedger(policy=Mine(), observers=[Mine()])


class Subclass(Hedger):
    pass


assert_type(Subclass.from_env(), Subclass)
