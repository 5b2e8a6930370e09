"""``agent-hedge on|shadow|off``, ``targets`` and ``runs``: what they do, say, and how they end."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from agent_hedge import FleetBudget, Hedger
from agent_hedge.cli.__main__ import app
from agent_hedge.core.step import StepKey
from agent_hedge.stores.sql import migrate
from tests.engine.kit import AMPLE
from tests.runs.kit import OnceGranted, Yielding, slow_once, until_heard

DEADLINE_S = 600.0
"""Far longer than a test takes on any machine."""


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/store.db"
    migrate.upgrade(url)
    return url


def run(*arguments: str, store: str = "") -> Result:
    return CliRunner().invoke(app, arguments, env={"AGENT_HEDGE_STORE": store, "COLUMNS": "200"})


def rows(*arguments: str, store: str) -> Any:
    result = run(*arguments, "--json", store=store)
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def test_r21_switches_are_set_replaced_and_shown(url: str) -> None:
    found = rows("off", "--reason", "incident 7", store=url)
    assert found == [{"scope": "fleet", "name": "(all)", "mode": "off", "reason": "incident 7", "until": None}]
    assert [one["mode"] for one in rows("on", store=url)] == ["on"]
    found = rows("shadow", "--node", "plan", "--until", "2h", store=url)
    assert {(one["scope"], one["name"], one["mode"]) for one in found} == {
        ("fleet", "(all)", "on"),
        ("node", "plan", "shadow"),
    }
    assert "plan" in run("off", "--tenant", "acme", store=url).stdout


def test_r21_targets_are_drained_and_restored(url: str) -> None:
    assert "no target is drained" in run("targets", "list", store=url).stdout
    drained = rows("targets", "drain", "eu", "--reason", "upgrade", store=url)
    assert [(one["name"], one["mode"]) for one in drained] == [("eu", "drain")]
    assert rows("targets", "list", store=url) == drained
    assert rows("targets", "restore", "eu", store=url) == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["off", "--target", "a", "--node", "b"], "one scope"),
        (["off", "--until", "soon"], "--until is 30m"),
        (["off", "--until", "2001-01-01T00:00"], "is past"),
        (["off", "--reason", "x" * 3000], "a reason is 3000 characters"),
        (["targets", "drain", ""], "a target must not be empty"),
        (["runs", "show", "nobody"], "no run 'nobody'"),
        (["runs", "explain", "nobody"], "no run 'nobody'"),
    ],
)
def test_r20_an_error_of_the_users_making_is_one_line_and_exit_2(url: str, arguments: list[str], says: str) -> None:
    result = run(*arguments, store=url)
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


def test_runs_are_listed_and_shown(url: str) -> None:
    assert "no runs" in run("runs", "list", store=url).stdout

    async def main() -> None:
        async with Hedger(url, accounting="off") as opened, opened.run(key="trip", deadline=30.0, extra_attempts=2):
            pass

    asyncio.run(main())
    (found,) = rows("runs", "list", store=url)
    assert (found["key"], found["generation"], found["state"], found["extra_attempts"]) == ("trip", 0, "paused", 2)
    assert 0.0 < found["left_s"] <= 30.0
    assert rows("runs", "show", "trip", store=url)[0]["granted"] == 0, "what was not spent went back"
    assert "trip" in run("runs", "show", "trip", store=url).stdout


def test_a_list_of_runs_fits_into_80_columns(url: str) -> None:
    """Keys are folded, numbers and their headings are not."""

    async def main() -> None:
        async with Hedger(url, accounting="off") as opened:
            for key in ("customer-4711/thread-0198a6b2-7c1e-7f3a", "trip"):
                async with opened.run(key=key, deadline=86_400.0, extra_attempts=12):
                    pass

    asyncio.run(main())
    listed = CliRunner().invoke(app, ["runs", "list"], env={"AGENT_HEDGE_STORE": url, "COLUMNS": "80"})
    said = listed.stdout.splitlines()
    assert said[0].split() == ["key", "gen", "state", "left", "s", "steps", "hedges", "purse", "recov.", "age", "s"]
    assert re.fullmatch(r"trip +0 +paused +86[34]\d\d\.\d +0 +0 +12 +0 +\d+\.\d", said[1].rstrip())
    assert max(map(len, said)) <= 80
    assert "".join(line.partition("  ")[0].rstrip() for line in said[2:]) == "customer-4711/thread-0198a6b2-7c1e-7f3a"


async def at_once() -> None:
    """Answer in the first turn of the loop."""


def test_runs_explain_says_why_each_step_was_or_was_not_hedged(url: str, tmp_path: Path) -> None:
    async def main() -> None:
        budget, yielding = FleetBudget(**AMPLE), Yielding()  # type: ignore[arg-type]
        async with Hedger(url, policy=OnceGranted(0.05), budget=budget, observers=[yielding]) as opened:
            await until_heard(opened)
            async with opened.run(key="trip", deadline=DEADLINE_S, extra_attempts=1):
                await slow_once(opened, at_once)()  # no hedge can be due before it has answered
                for _ in range(2):
                    await slow_once(opened, yielding, hedge=0.0)()

    asyncio.run(main())
    quick, hedged, refused = rows("runs", "explain", "trip", store=url)
    assert (quick["step"], quick["node"], quick["decision"]) == (1, "step", "not_due")
    assert (hedged["decision"], hedged["winner"], hedged["hedges"]) == ("hedged", "b", 1)
    assert (refused["decision"], refused["reason"]) == ("refused", "run_budget")
    assert hedged["due_after_s"] == pytest.approx(0.05)
    assert hedged["hedged_after_s"] >= 0.05
    assert DEADLINE_S / 2 < hedged["slack_s"] < DEADLINE_S
    assert quick["at_s"] == 0.0 < hedged["at_s"] < refused["at_s"]
    said = run("runs", "explain", "trip", store=url).stdout.strip().splitlines()
    assert said[0] == "run trip, generation 0: 3 steps recorded, 1 hedges (its purse holds 1)"
    assert re.search(r" 1 +\+0\.000 s  step: not hedged, due only after 0\.050 s; a answered .*\[.* s left\]$", said[1])
    assert re.search(r" 2 +\+.*  step: hedged after \d\.\d+ s; b answered after \d\.\d+ s \[", said[2])
    assert re.search(r" 3 +\+.*  step: not hedged, due after 0\.050 s but refused: run_budget; b answered", said[3])
    assert len(said) == 4


def test_runs_explain_names_the_plan_its_slack_and_its_price(url: str) -> None:
    """A real plan: 2,000 latencies are known, the run's length is declared, and the step is planned by them."""

    async def main() -> None:
        budget = FleetBudget(**AMPLE)  # type: ignore[arg-type]
        async with Hedger(url, budget=budget) as opened:
            await until_heard(opened)
            step = slow_once(opened, 0.0)
            for target in ("a", "b"):
                for number in range(2_500):
                    seconds = 5.0 if number % 25 == 0 else 0.1 + number % 7 / 100
                    opened.book.record(StepKey(node="step"), target, seconds, asyncio.get_running_loop().time())
            async with opened.run(key="planned", deadline=DEADLINE_S, steps=2):
                await step()
                assert opened.planner is not None
                while not any(plan.table for plan in opened.planner._plans.values()):  # noqa: ASYNC110  # another thread
                    await asyncio.sleep(0.005)
                await step()

    asyncio.run(main())
    unplanned, planned = rows("runs", "explain", "planned", store=url)
    assert (unplanned["price"], unplanned["d0_s"]) == (None, None), "the table was not built yet"
    assert DEADLINE_S / 2 < planned["slack_s"] < DEADLINE_S
    assert planned["price"] > 0
    assert planned["d0_s"] == pytest.approx(0.25, abs=0.1)
    said = run("runs", "explain", "planned", store=url).stdout.strip().splitlines()
    assert re.search(r"\[\d+\.\d+ s left, without a plan due after 0\.\d+ s, price [\d.e-]+ s\]$", said[2])


def test_until_is_a_duration_or_a_date() -> None:
    from agent_hedge.cli.switches import instant

    assert instant("", 100.0) is None
    assert instant("1.5h", 100.0) == 5_500.0
    assert instant("2999-01-01T00:00", time.time()) is not None
