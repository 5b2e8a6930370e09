"""`tokens=` and `cost=` of a run, and `FleetBudget(cost=)`: the hedge that would pass a cap is refused (R13, E4)."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest
from langchain_core.messages import HumanMessage

from agent_hedge import FleetBudget, Hedger, Target
from agent_hedge.core.events import AttemptRefused, Event, Reason
from agent_hedge.core.scope import Run
from agent_hedge.errors import ConfigurationError
from agent_hedge.targets.target import Price
from agent_hedge.testing.clock import run_virtual
from tests.engine.kit import AMPLE, hedger
from tests.runs.kit import slow_once
from tests.runs.test_langgraph import Listener, Slow

PROMPT = "x" * 4_000
"""A thousand tokens, at four characters each."""
PRICE: Price = {"input": 10.0, "cached_input": 1.0, "output": 30.0}
"""A cent for the prompt."""


def asked(
    times: int, *, prices: tuple[Any, Any] = (PRICE, PRICE), budget: FleetBudget | None = None, **settings: Any
) -> tuple[list[Event], Run]:
    """Ask a model whose primary is slow so many times, in one run; return what was heard, and the run."""
    heard = Listener()
    more = {} if budget is None else {"budget": budget}
    opened: Hedger = hedger(1.0, observers=[heard], **more)
    places = [Target(name, Slow(seconds=5.0), price=price) for name, price in zip("ab", prices, strict=True)]
    model = opened.chat_model(*places, family="scripted")

    async def main() -> Run:
        async with opened.run(extra_attempts=100, **settings) as run:
            for _ in range(times):
                await model.ainvoke([HumanMessage(PROMPT)])
        return run

    run = run_virtual(main)
    return heard.events, run


def refusals(events: list[Event]) -> list[tuple[Reason, str]]:
    return [(one.reason, one.detail) for one in events if isinstance(one, AttemptRefused)]


def test_r13_the_hedge_that_would_pass_the_token_cap_is_refused() -> None:
    events, run = asked(4, tokens=2_500)
    assert refusals(events) == [(Reason.TOKENS, "2000 of 2500 used, 1000 wanted")] * 2
    assert (run.extra_attempts_used, run.tokens_used) == (2, 2_000)
    assert run.report()["tokens_used"] == 2_000


def test_r13_the_hedge_that_would_pass_the_cost_cap_is_refused() -> None:
    events, run = asked(4, cost=0.03)
    assert refusals(events) == [(Reason.COST, "0.03 of 0.03 used, 0.01 wanted")]
    assert run.extra_attempts_used == 3
    assert run.cost_used == pytest.approx(0.03)


def test_r13_a_hedge_without_a_price_is_refused_where_cost_is_capped() -> None:
    events, run = asked(2, cost=1.0, prices=(PRICE, None))
    assert refusals(events)[0] == (Reason.COST, "price unknown")
    assert run.cost_used == pytest.approx(0.01 * run.extra_attempts_used)


def test_r13_a_step_of_unknown_size_is_not_hedged_under_a_cap() -> None:
    heard = Listener()
    opened = hedger(1.0, observers=[heard])

    async def main() -> None:
        for cap in ({"tokens": 10}, {"cost": 1.0}):
            async with opened.run(extra_attempts=9, **cap):
                assert await slow_once(opened, 5.0)() == "from 0"

    run_virtual(main)
    assert refusals(heard.events) == [(Reason.TOKENS, "prompt size unknown"), (Reason.COST, "prompt size unknown")]


def test_r13_the_fleet_may_cap_the_money_of_an_hour() -> None:
    events, run = asked(4, budget=FleetBudget(**AMPLE, cost=0.02))  # type: ignore[arg-type]
    assert [reason for reason, _ in refusals(events)] == [Reason.COST] * 2
    assert run.extra_attempts_used == 2


def test_r13_money_comes_back_with_the_window_and_with_a_hedge_that_was_never_sent() -> None:
    budget = FleetBudget(cost=1.0, window=60.0)
    assert budget.spend(0.6, 0.0) is None
    assert budget.spend(0.6, 1.0) is not None
    budget.unspend(0.6, 0.0)
    assert budget.spend(0.9, 2.0) is None
    assert budget.spend(0.9, 61.0) is not None
    assert budget.spend(0.9, 62.0) is None
    assert budget.spend(None, 62.0) is not None
    assert FleetBudget().spend(None, 0.0) is None


def test_a_run_inside_a_run_spends_from_both() -> None:
    outer = Run(clock=lambda: 0.0, tokens=1_000)
    inner = Run(clock=lambda: 0.0, parent=outer, tokens=600)
    assert inner.spend(500, None) is None
    refused = inner.spend(200, None)
    assert refused is not None
    assert refused.reason is Reason.TOKENS
    assert (outer.tokens_used, inner.tokens_used) == (500, 500)
    inner.unspend(500, None)
    assert (outer.tokens_used, inner.tokens_used) == (0, 0)
    assert inner.spend(400, None) is None
    refused = Run(clock=lambda: 0.0, parent=outer).spend(601, None)
    assert refused is not None


def test_a_refused_hedge_gives_everything_back() -> None:
    """A holdout is refused behind the caps: what it would have cost is not spent."""
    heard = Listener()
    opened = hedger(1.0, observers=[heard], holdout=1.0)
    model = opened.chat_model(Target("a", Slow(seconds=5.0)), Target("b", Slow(seconds=5.0)), family="scripted")

    async def main() -> Run:
        async with opened.run(extra_attempts=9, tokens=1_500) as run:
            for _ in range(3):
                await model.ainvoke([HumanMessage(PROMPT)])
        return run

    run = run_virtual(main)
    assert {reason for reason, _ in refusals(heard.events)} == {Reason.HOLDOUT}
    assert (run.tokens_used, run.extra_attempts_used) == (0, 0)


@pytest.mark.parametrize("cost", [-1.0, math.inf, math.nan, "1", True])
def test_r20_a_fleets_cap_that_cannot_be_meant(cost: Any) -> None:
    with pytest.raises(ConfigurationError, match="cost must be a finite amount"):
        FleetBudget(cost=cost)


def test_caps_hold_for_parallel_branches() -> None:
    heard = Listener()
    opened = hedger(1.0, observers=[heard])
    model = opened.chat_model(Target("a", Slow(seconds=5.0)), Target("b", Slow(seconds=5.0)), family="scripted")

    async def main() -> Run:
        async with opened.run(extra_attempts=100, tokens=3_000) as run:
            await asyncio.gather(*(model.ainvoke([HumanMessage(PROMPT)]) for _ in range(10)))
        return run

    assert run_virtual(main).tokens_used == 3_000
    assert heard.hedges() == 3


def test_a_place_has_the_price_that_one_of_its_targets_names() -> None:
    opened = hedger(1.0)
    slow_once(opened)  # its targets are names only
    opened.chat_model(Target("a", Slow(), price=PRICE), Target("b", Slow()), family="scripted").bind()
    assert opened._price("a") == PRICE
    assert opened._price("b") is None
