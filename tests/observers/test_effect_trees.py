"""G1 where side effects are: what the fence and the ledger answered is said in the span it happened in."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agent_hedge import Effect, EffectBarred, EffectInDoubt, Fixed, Hedger, current_attempt, tool_effect
from agent_hedge.observers.otel import Tracing
from agent_hedge.testing import run_virtual

from .spans import Backend, events, said
from .test_metrics import Meters
from .test_tracing import seconds

RUN, STEP, ATTEMPT = "agent_hedge.run", "agent_hedge.step work", "agent_hedge.attempt work"


@pytest.fixture
def backend() -> Backend:
    return Backend()


def details(span: Any, name: str) -> list[dict[str, Any]]:
    """What the events of this name say, without the common prefix."""
    return [
        {key.removeprefix("agent_hedge."): value for key, value in (event.attributes or {}).items()}
        for event in span.events
        if event.name == f"agent_hedge.{name}"
    ]


def test_r10_the_fence_says_who_passed_and_who_was_refused(backend: Backend) -> None:
    meters = Meters()

    @tool_effect(Effect.IDEMPOTENT)
    async def store(number: int) -> str:
        await asyncio.sleep(0.5)
        return f"stored {number}"

    async def work() -> str:
        attempt = current_attempt()
        assert attempt is not None
        await asyncio.sleep(2.0 - attempt.number)  # both come to the fence at 2 s
        return await store(attempt.number)

    async def main() -> str:
        observers: list[Any] = [Tracing(backend.provider), meters.metrics]
        async with Hedger(policy=Fixed(1.0), observers=observers, telemetry=False) as hedger:
            call = hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])
            return await call()

    assert run_virtual(main) == "stored 0"
    assert backend.tree() == [(STEP, [(ATTEMPT, []), (ATTEMPT, [])])]
    step, passed, refused = backend.spans
    assert events(step) == ["trigger_armed", "hedge_due", "commit"]
    assert details(step, "commit") == [{"by_claim": True}]
    assert said(step, "outcome", "winner") == ("answered", "a")
    assert (said(passed, "outcome"), events(passed)) == (("won",), ["fence"])
    assert details(passed, "fence") == [{"tool": "store", "fence.passed": True}]
    assert (said(refused, "outcome"), events(refused)) == (("superseded",), ["fence", "cancel_sent"])
    assert details(refused, "fence") == [{"tool": "store", "fence.passed": False}]
    assert refused.status.is_unset
    assert meters.total("agent_hedge.fences", passed=True) == meters.total("agent_hedge.fences", passed=False) == 1


def test_r11_a_call_in_doubt_is_said_in_its_run(backend: Backend) -> None:
    meters = Meters()

    async def main() -> None:
        async with Hedger(observers=[Tracing(backend.provider), meters.metrics], telemetry=False) as hedger:

            @hedger.once(key="invoice")
            async def pay(invoice: str) -> str:
                raise ConnectionError(invoice)

            with pytest.raises(EffectInDoubt):
                async with hedger.run(key="first"):
                    await pay("secret-1")
            with pytest.raises(EffectInDoubt):
                async with hedger.run(key="first", resume=True):
                    await pay("secret-1")

    asyncio.run(main())
    assert backend.tree() == [(RUN, []), (RUN, [])]
    first, again = backend.spans
    tool = details(first, "claim")[0]["tool"]
    assert tool.endswith("pay")
    assert [one["claim.answer"] for one in details(first, "claim")] == ["run", "in_doubt"]
    assert details(again, "claim") == [{"tool": tool, "claim.answer": "in_doubt"}]
    for run in (first, again):
        assert said(run, "run.key", "error.type") == ("first", "EffectInDoubt")
    assert "secret" not in "".join(span.to_json() for span in backend.spans)
    assert meters.total("agent_hedge.claims", answer="in_doubt") == 2


def test_r11_what_the_ledger_answers(backend: Backend) -> None:
    async def main() -> None:
        async with Hedger(observers=[Tracing(backend.provider)], telemetry=False) as hedger:

            @hedger.once(key="invoice", scope="global")
            async def pay(invoice: str, amount: int) -> str:
                return "paid"

            with backend.current("app"):
                assert [await pay("1", 5), await pay("1", 5)] == ["paid", "paid"]
                with pytest.raises(EffectBarred):
                    await pay("1", 6)

    asyncio.run(main())
    assert backend.tree() == [("app", [])], "outside of any run it is said where the caller is"
    answers = [one["claim.answer"] for one in details(backend.spans[0], "claim")]
    assert answers == ["run", "replayed", "barred"]


def test_a_claim_inside_an_attempt_is_the_attempts(backend: Backend) -> None:
    async def main() -> None:
        async with Hedger(observers=[Tracing(backend.provider)], telemetry=False) as hedger:

            @hedger.once(key="invoice", scope="global")
            async def pay(invoice: str) -> str:
                return "paid"

            async def work() -> str:
                return await pay("1")

            async with hedger.run():
                await hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])()

    asyncio.run(main())
    assert backend.tree() == [(RUN, [(STEP, [(ATTEMPT, [])])])]
    (attempt,) = backend.named(ATTEMPT)
    assert events(attempt) == ["fence", "claim"]
    (waited,) = said(attempt, "time.tool_wait")
    assert 0 < waited < seconds(attempt)
