"""What a hedger shares through its store: switches, the registry; what it does when the store is gone (R14, R21)."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_hedge import Effect, Fixed, FleetBudget, Hedger
from agent_hedge.core.events import AttemptRefused, Event, Reason
from agent_hedge.core.stores import Stores, Switch
from agent_hedge.engine import runbook
from agent_hedge.engine.rounds import EVERY_S
from agent_hedge.errors import ConfigurationError, StoreUnavailable
from agent_hedge.gates import LOST_S
from agent_hedge.hedger import shared
from agent_hedge.stores.sql import migrate, sql_stores
from tests.conftest import HUNG_S
from tests.engine.kit import AMPLE, hedger, run_clean
from tests.runs.kit import Yielding, slow_once

TWO_SECONDS = 2
"""Two seconds in rounds: one may have begun before what it is to read was written."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    migrate.upgrade(url)
    return url


@pytest.fixture
def yielding() -> Yielding:
    return Yielding()


@pytest.fixture
def opened(url: str, yielding: Yielding) -> Iterator[Hedger]:
    budget = FleetBudget(**AMPLE)  # type: ignore[arg-type]
    hedger = Hedger(url, policy=Fixed(0.01, attempts=2), budget=budget, observers=[yielding], accounting="off")
    yield hedger
    hedger.close()


def elsewhere(url: str, work: Callable[[Stores], Any]) -> None:
    """Do something to the store as another process would."""

    async def main() -> None:
        stores = sql_stores(url, create=False)
        try:
            await work(stores)
        finally:
            await stores.close()

    asyncio.run(main())


def _set(switch: Switch, stores: Stores) -> Any:
    return stores.switches.set(switch)


def after_a_round(opened: Hedger, job: str) -> Callable[..., None]:
    """Return what waits until something holds after a round of a job, and after so many of them at most."""
    went_round, ended = threading.Condition(), [0]
    jobs = opened._shared.rounds._jobs
    original = jobs[job]

    async def and_tell(now: float) -> None:
        await original(now)
        with went_round:
            ended[0] += 1
            went_round.notify_all()

    jobs[job] = and_tell
    opened._shared.rounds.ensure()

    def wait(holds: Callable[[], bool], rounds: float = math.inf) -> None:
        with went_round:
            last = ended[0] + rounds
            assert went_round.wait_for(lambda: holds() or ended[0] >= last, timeout=HUNG_S), "the rounds have stopped"
            assert holds(), f"not seen within {rounds} rounds"

    return wait


def refusals(seen: list[Event]) -> list[Reason]:
    return [one.reason for one in seen if isinstance(one, AttemptRefused)]


class Heard:
    def __init__(self) -> None:
        self.events: list[Event] = []

    def on_event(self, event: Event) -> None:
        self.events.append(event)


# --- switches --------------------------------------------------------------------------------------------------------


def test_r21_a_switch_set_elsewhere_is_in_force_within_two_seconds(
    url: str, opened: Hedger, yielding: Yielding
) -> None:
    assert TWO_SECONDS * EVERY_S <= 2.0
    wait = after_a_round(opened, "switches")
    wait(lambda: opened._shared.rounds.silence() < math.inf)
    step = slow_once(opened, yielding, hedge=0.01)
    assert asyncio.run(step()) == "from 1"
    off = Switch(scope_kind="fleet", scope="", mode="off", reason="incident")
    elsewhere(url, lambda stores: stores.switches.set(off))
    wait(lambda: opened.modes.in_force() == ("off", "fleet : incident"), rounds=TWO_SECONDS)
    assert opened.status()["mode"] == "off"
    assert asyncio.run(step()) == "from 0"


def test_r21_a_drained_target_gets_nothing_and_comes_back_at_its_instant(url: str, opened: Hedger) -> None:
    wait = after_a_round(opened, "switches")
    until = time.time() + 3_600.0
    opened.modes._clock = lambda: until - 0.001
    drained = Switch(scope_kind="target", scope="a", mode="drain", until=until)
    elsewhere(url, lambda stores: stores.switches.set(drained))
    wait(lambda: opened._health.drained == {"a"}, rounds=TWO_SECONDS)
    opened.modes._clock = lambda: until
    wait(lambda: opened._health.drained == frozenset(), rounds=TWO_SECONDS)


def test_r21_the_last_known_switches_stay_when_the_store_is_gone(
    url: str, opened: Hedger, caplog: pytest.LogCaptureFixture
) -> None:
    wait = after_a_round(opened, "switches")
    for mode, scope in (("shadow", "plan"), ("drain", "eu")):
        kind = "node" if mode == "shadow" else "target"
        switch = Switch(scope_kind=kind, scope=scope, mode=mode)
        elsewhere(url, partial(_set, switch))
    wait(lambda: opened._health.drained == {"eu"} and opened.modes.in_force(node="plan")[0] == "shadow")
    tried = threading.Event()

    async def gone() -> Any:
        tried.set()
        raise StoreUnavailable("The store did not answer.")

    with caplog.at_level(logging.WARNING, "agent_hedge.background"):
        opened._shared.stores.switches.switches = gone  # type: ignore[method-assign]
        assert tried.wait(HUNG_S)
        tried.clear()
        assert tried.wait(HUNG_S)
    assert opened.modes.in_force(node="plan")[0] == "shadow"
    assert opened._health.drained == {"eu"}
    said = [record.getMessage() for record in caplog.records if "switches" in record.getMessage()]
    assert said == ["switches: The store did not answer. Tried again every 1 s."], "said once"


# --- the store is gone -----------------------------------------------------------------------------------------------


def test_r14_a_store_that_cannot_be_reached_stops_hedging_and_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runbook, "PATIENCE_S", 0.05)

    class Refused(Heard):
        def on_event(self, event: Event) -> None:
            super().on_event(event)
            if isinstance(event, AttemptRefused):
                refused.set()

    refused = asyncio.Event()
    heard = Refused()
    budget = FleetBudget(**AMPLE)  # type: ignore[arg-type]
    opened = Hedger(
        "postgresql://nobody@127.0.0.1:1/none",
        policy=Fixed(0.01, attempts=2),
        budget=budget,
        observers=[heard],
        accounting="off",
    )

    @opened.wrap(key="step", effect=Effect.READ_ONLY, targets=["a", "b"])
    async def step() -> str:
        async with asyncio.timeout(HUNG_S):
            await refused.wait()
        return "from the first"

    async def main() -> None:
        async with asyncio.timeout(HUNG_S), opened.run(key="k", deadline=10 * HUNG_S) as run:
            assert run.remaining > 9 * HUNG_S
            assert await step() == "from the first"

    asyncio.run(main())
    assert refusals(heard.events) == [Reason.STORE_LOST]
    with opened.run(key="k"):  # a thread does not wait for it either
        pass
    opened._background.close()


def test_r14_a_silent_store_stops_hedging_after_ten_seconds(opened: Hedger) -> None:
    wait = after_a_round(opened, "runs")
    rounds = opened._shared.rounds
    wait(lambda: rounds.silence() < math.inf)

    async def gone(now: float) -> None:
        raise StoreUnavailable("The store did not answer.")

    rounds._jobs.update(dict.fromkeys(rounds._jobs, gone))
    clock = rounds._clock
    rounds._clock = lambda: clock() + LOST_S + 1.0
    assert rounds.silence() > LOST_S


def test_r14_without_a_store_there_is_no_round_and_no_thread() -> None:
    async def main() -> None:
        opened = hedger(1.0)
        async with opened.run(key="k"):
            assert await slow_once(opened)() == "from 1"
        opened.registry.declare({"search": Effect.READ_ONLY})
        assert not opened._background.running

    run_clean(main)


def test_a_hedger_that_was_closed_goes_round_again_when_it_is_used(url: str, opened: Hedger) -> None:
    wait = after_a_round(opened, "switches")
    wait(lambda: opened._shared.rounds.silence() < math.inf)
    opened.close()
    assert not opened._background.running
    elsewhere(url, lambda stores: stores.switches.set(Switch(scope_kind="fleet", scope="", mode="off")))
    slow_once(opened)
    wait(lambda: opened.modes.in_force()[0] == "off")


def test_the_rounds_do_not_keep_the_first_callers_run(opened: Hedger) -> None:
    from agent_hedge.core.scope import current_run

    seen: list[object] = []

    async def look(now: float) -> None:
        seen.append(current_run())

    opened._shared.rounds.add("look", look)
    wait = after_a_round(opened, "look")
    with opened.run():
        opened._shared.rounds.stop()
        opened._shared.rounds.ensure()
    wait(lambda: len(seen) > 1)
    assert set(seen) == {None}


# --- the registry ----------------------------------------------------------------------------------------------------


def test_r09_what_an_operator_says_elsewhere_counts_within_two_seconds(url: str, opened: Hedger) -> None:
    from agent_hedge.tools.registry import Registry

    wait = after_a_round(opened, "registry")
    assert opened.registry.effect("search") is Effect.ONCE, "nothing counts before the store was read"
    wait(lambda: opened.registry.readable)
    opened.registry.declare({"search": Effect.READ_ONLY})
    assert opened.registry.effect("search") is Effect.READ_ONLY
    elsewhere(url, lambda stores: Registry(stores.effects).aannotate("search", Effect.ONCE))
    wait(lambda: opened.registry.effect("search") is Effect.ONCE, rounds=TWO_SECONDS)


def test_r09_a_verdict_is_taken_again_when_the_registry_changes(url: str, opened: Hedger) -> None:
    from langchain_core.tools import tool
    from langgraph.graph import START, StateGraph
    from langgraph.prebuilt import ToolNode

    from agent_hedge import tool_effect
    from agent_hedge.tools.registry import Registry

    @tool_effect(Effect.READ_ONLY)
    @tool
    def search(query: str) -> str:
        """Search."""
        return query

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(dict)
    builder.add_node("tools", ToolNode([search]))
    builder.add_edge(START, "tools")
    shown = opened.explain(builder)
    assert shown.nodes[0].verdicts["node"].hedgeable, shown
    assert opened.registry.known("search").source == "code", "what a tool says itself is declared"
    graphs = opened._graphs.graphs
    wait = after_a_round(opened, "registry")
    elsewhere(url, lambda stores: Registry(stores.effects).aannotate("search", Effect.ONCE))
    wait(lambda: not graphs.report("tools", (), "unit")[0].verdicts["node"].hedgeable)


def test_explain_waits_for_a_store_only_so_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, opened: Hedger
) -> None:
    from langgraph.graph import START, StateGraph

    async def hangs(*_: Any) -> Any:
        await asyncio.sleep(HUNG_S)  # who waits for it finds the registry read

    builder: StateGraph[Any, Any, Any, Any] = StateGraph(dict)
    builder.add_node("n", lambda state: state)
    builder.add_edge(START, "n")
    monkeypatch.setattr(shared, "SETTLE_S", 0.05)
    monkeypatch.setattr(opened.registry, "refresh", hangs)
    opened.explain(builder)
    assert "the registry cannot be read" in caplog.text


# --- bad input -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"schema": "ops"}, "schema='ops' needs a PostgreSQL store"),
        ({"store": "sqlite:///x.db", "schema": "ops"}, "schema= is for PostgreSQL"),
        ({"store": "postgresql://h/d", "schema": "Not A Schema"}, "lower-case"),
        ({"store": "sqlite://"}, "needs a file"),
        ({"store": object()}, "a database URL, an engine or None"),
    ],
)
def test_r20_a_store_that_cannot_be_meant(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Hedger(**settings)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"resume": "yes"}, "resume must be True, False or None"),
        ({"resume": True}, "needs the key"),
        ({"tokens": -1}, "tokens must be a whole number"),
        ({"tokens": 1.5}, "tokens must be a whole number"),
        ({"cost": -0.1}, "cost must be a finite amount"),
        ({"cost": math.nan}, "cost must be a finite amount"),
        ({"cost": True}, "cost must be a finite amount"),
    ],
)
def test_r20_a_run_that_cannot_be_meant(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Hedger().run(**settings)


@pytest.mark.parametrize("kind", ["Engine", "AsyncEngine"])
def test_a_store_may_be_an_engine(url: str, kind: str) -> None:
    from sqlalchemy import create_engine
    from sqlalchemy.ext.asyncio import create_async_engine

    asynchronous = create_async_engine(url.replace("sqlite:", "sqlite+aiosqlite:"))
    engine = create_engine(url) if kind == "Engine" else asynchronous
    with_engine = Hedger(engine, accounting="off")
    wait = after_a_round(with_engine, "runs")
    wait(lambda: with_engine._shared.rounds.silence() < math.inf)
    with_engine.close()
