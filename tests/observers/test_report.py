"""G8: each band, and "too thin to judge", from a seeded run; the report as data, text and page."""

from __future__ import annotations

import asyncio
import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agent_hedge.cli.__main__ import app
from agent_hedge.cli.report import parse_since
from agent_hedge.cli.report.bands import FINE, THIN
from agent_hedge.cli.report.extra import Extra
from agent_hedge.cli.report.figures import Figures, Tokens, figures
from agent_hedge.cli.report.pictures import waterfall
from agent_hedge.cli.report.remedies import REMEDIES, remedy
from agent_hedge.cli.report.text import as_data, lines
from agent_hedge.core.events import Reason
from agent_hedge.core.ports import Refused
from agent_hedge.core.race import PASS
from agent_hedge.core.stores import Switch
from agent_hedge.errors import ConfigurationError
from agent_hedge.observers.accounting import Accounting
from agent_hedge.observers.recorder import Recorder
from agent_hedge.stores.memory import MemorySteps
from agent_hedge.stores.sql import migrate, sql_stores
from agent_hedge.testing.scenario import Line

from .kit import IdlePortal, a_run, play

TRIGGER = 1.0


class Holdout:
    """Refuses one hedge of `every`, as a control group."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.asked = 0

    def admit(self, attempt: Any, view: Any) -> Any:
        if attempt.number == 0:
            return PASS
        self.asked += 1
        return Refused(Reason.HOLDOUT) if self.asked % self.every == 0 else PASS


def record(
    store: Any, steps: int, *, slow: float, wins: float = 0.7, gates: Any = (), wall: float = 1e9, seed: int = 1
) -> None:
    """Simulate steps into a store: a share of `slow` primaries, of whose hedges `wins` win."""
    rng = random.Random(seed)
    clock = [wall]
    accounting = Accounting(Recorder(lambda: store, IdlePortal(), limit=1_000_000), wall=lambda: clock[0])
    for number in range(steps):
        clock[0] += 0.5
        primary = rng.uniform(0.2, 0.9)
        if rng.random() < slow:
            primary = rng.uniform(5.0, 9.0) if rng.random() < wins else rng.uniform(1.1, 1.2)
        lines_ = [Line("a", primary), Line("b", 0.5)]
        play(accounting, *lines_, policy=TRIGGER, max_attempts=2, gates=list(gates), run=a_run(f"run-{number // 20}"))
    asyncio.run(accounting.flush())


def simulated(steps: int, **settings: Any) -> Figures:
    store = MemorySteps()
    record(store, steps, **settings)
    return asyncio.run(_figures(store))


async def _figures(store: MemorySteps) -> Figures:
    return figures(await store.since(0.0, 1_000_000), await store.attempts_since(0.0, 1_000_000))


def bands(found: Figures, budget: float = 0.05) -> dict[str, tuple[str, str]]:
    (group,) = as_data(found, 3600.0, budget)["groups"]
    return {one["figure"]: (one["band"], one["advice"]) for one in group["judgements"]}


@pytest.mark.parametrize(
    ("wins", "slow", "band", "advice"),
    [
        (0.95, 0.05, "late trigger or bad primary", "lower q"),
        (0.95, 0.40, "late trigger or bad primary", "Put another target first"),
        (0.70, 0.05, "healthy", ""),
        (0.50, 0.05, "eager", "raise q"),
        (0.50, 0.40, "eager", "move them"),
        (0.30, 0.05, "shared or inherent slowness", "another domain"),
        (0.08, 0.05, "correlated", "does not help"),
    ],
)
def test_each_band_of_the_win_rate(wins: float, slow: float, band: str, advice: str) -> None:
    found = bands(simulated(2000, slow=slow, wins=wins))
    assert found["win rate"][0] == band
    assert advice in found["win rate"][1]


def test_too_thin_to_judge() -> None:
    found = bands(simulated(60, slow=0.05))
    assert {name: band for name, (band, _) in found.items()} == dict.fromkeys(found, THIN)
    assert re.fullmatch(r"\d+ of 30 hedges", found["win rate"][1])


def test_the_bands_of_the_dispatch_rate() -> None:
    assert bands(simulated(2000, slow=0.03))["dispatch rate"] == (FINE, "")
    assert bands(simulated(2000, slow=0.20))["dispatch rate"][0] == "above the budget's share"


def test_the_bands_of_the_p99() -> None:
    held_out = simulated(2000, slow=0.04, wins=1.0, gates=[Holdout(6)])
    assert bands(held_out)["p99 drop"][0].startswith("as good as others report")
    unidentified = bands(simulated(2000, slow=0.05, wins=1.0))["p99 drop"]
    assert unidentified[0] == THIN
    assert "holdout" in unidentified[1]
    assert bands(simulated(2000, slow=0.05, wins=0.0))["p99 drop"][0] == "little"
    assert bands(simulated(2000, slow=0.0))["p99 drop"][0] == "none: nothing was hedged"


def test_the_report_opens_with_why_not_and_tells_the_control_group_apart() -> None:
    data = as_data(simulated(2000, slow=0.1, wins=1.0, gates=[Holdout(2)]), 3600.0, 0.05)
    (why,) = data["why_not"]
    assert (why["reason"], why["remedy"]) == ("holdout", REMEDIES[Reason.HOLDOUT])
    control = data["control"]
    assert control["held_out"] == pytest.approx(control["hedged"], abs=1)
    assert control["median_held_out_s"] > 4.0 > 2.0 > control["median_hedged_s"]
    said = list(lines(data))
    assert said[2].startswith("Why not")
    assert any("Control group" in line for line in said)


def test_every_reason_has_its_remedy() -> None:
    assert set(REMEDIES) == set(Reason)
    assert remedy("a reason of a later version") == ""


def test_totals_say_at_least_where_something_is_not_known() -> None:
    data = as_data(simulated(50, slow=0.5), 3600.0, 0.05)
    assert data["tokens"]["certainty"] == "at_least"
    assert "Tokens: none were counted" in lines(data), "scripted attempts have none"


# --- the commands -------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("AGENT_HEDGE_SPOOL", str(tmp_path / "spool"))
    url = f"sqlite:///{tmp_path / 'store.db'}"
    migrate.upgrade(url)
    return url


def fill(store: str, steps: int = 600) -> None:
    memory = MemorySteps()
    record(memory, steps, slow=0.08, wall=time.time() - 600)

    async def move() -> None:
        stores = sql_stores(store)
        await stores.steps.add_steps(await memory.since(0.0, 10_000))
        await stores.steps.add_attempts(await memory.attempts_since(0.0, 10_000))
        await stores.switches.set(Switch(scope_kind="fleet", scope="", mode="shadow", reason="trying"))
        await stores.close()

    asyncio.run(move())


def command(*arguments: str, store: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, arguments, env={"AGENT_HEDGE_STORE": store})
    assert result.exit_code == code, (result.output, result.exception)
    return result.output


def test_the_command_prints_a_report(store: str) -> None:
    fill(store)
    said = command("report", "--since", "1h", store=store)
    assert said.startswith("600 steps in the last 1 h")
    assert "scenario @ a: 600 steps (600 answered)" in said
    data = json.loads(command("report", "--json", store=store))
    assert data["all"]["win_rate"] > 0.5
    assert data["steps"] == 600


def test_the_page_works_offline_and_shows_its_pictures(store: str, tmp_path: Path) -> None:
    fill(store)
    file = tmp_path / "report.html"
    command("report", "--html", str(file), store=store)
    page = file.read_text()
    assert page.count("<svg") == 3
    assert not re.search(r"<script|<link|src=|url\(|https?://", page)
    assert "$" not in page.split("</style>")[1]
    assert 'name="viewport"' in page
    assert page.count(">scenario</text>") == 1, "the waterfall names a node where it begins"


def test_a_name_in_the_waterfall_stands_where_there_is_room() -> None:
    nodes = ["first", "first", "a_node_with_quite_a_long_name"]
    steps: list[Any] = [
        {"step_id": node + str(at), "node": node, "started_at": at} for at, node in enumerate(nodes, start=100)
    ]
    attempts: dict[str, list[Any]] = {
        step["step_id"]: [
            {"role": "primary", "outcome": "won", "target": "a", **step, "ended_at": step["started_at"] + 1}
        ]
        for step in steps
    }
    drawn = waterfall(Figures([], Tokens(), Extra(), steps, attempts, [], []), steps)
    words = re.findall(r'text-anchor="(\w+)">([a-z_…]+)</text>', drawn)
    assert words == [("start", "first"), ("end", "a_node_with_quite_a_lon…")]


def test_names_in_the_page_are_data(store: str, tmp_path: Path) -> None:
    async def write() -> None:
        stores = sql_stores(store)
        now = time.time()
        hostile = {"node": "<script>alert(1)</script>", "run_key": "<b>", "started_at": now, "elapsed_s": 1.0}
        await stores.steps.add_steps([{"step_id": "s", "decision": "refused", "reason": "<i>", **hostile}])
        await stores.steps.add_attempts(
            [{"attempt_id": "a", "step_id": "s", "target": "<u>", "role": '"><u>', "started_at": now, "ended_at": now}]
        )
        await stores.close()

    asyncio.run(write())
    file = tmp_path / "report.html"
    command("report", "--html", str(file), store=store)
    assert not re.search(r"<script|<b>|<i>|<u>", file.read_text())


def test_an_empty_store_is_said_to_be_empty(store: str) -> None:
    assert "Nothing was recorded" in command("report", store=store)
    assert "no step was recorded" in command("status", store=store)


def test_status(store: str) -> None:
    fill(store)
    said = command("status", store=store)
    assert said.startswith("mode shadow")
    assert "600 steps (600 answered)" in said
    assert "side effects in doubt: 0" in said
    assert json.loads(command("status", "--json", store=store))["last_hour"]["steps"] == 600


@pytest.mark.parametrize("bad", ["", "1", "h", "-1h", "0s", "1 week"])
def test_r20_a_span_that_cannot_be_meant_is_an_error(bad: str, store: str) -> None:
    with pytest.raises(ConfigurationError, match="since"):
        parse_since(bad)
    assert "--since" in command("report", "--since", bad, store=store, code=2)


PRICE = {"input": 10.0, "cached_input": 1.0, "output": 20.0}


def attempt(role: str, outcome: str, *, prompt: int | None = None, done: int | None = None, **receipt: Any) -> Any:
    certainty = "exact" if outcome == "won" and prompt is not None else "at_least"
    row = {"role": role, "outcome": outcome, "tokens_input": prompt, "tokens_computed": done}
    return row | {"computed_certainty": certainty}, receipt


LOST = attempt("primary", "superseded", price=PRICE)
WON = attempt("primary", "won", prompt=1000)


@pytest.mark.parametrize(
    ("attempts", "expected"),
    [
        pytest.param([LOST, attempt("hedge", "won", prompt=1000, price=PRICE)], (0.01, 0.01), id="won, cache cold"),
        pytest.param(
            [LOST, attempt("hedge", "won", prompt=1000, cached=900, price=PRICE)],
            (0.0019, 0.0019),
            id="won, cache warm",
        ),
        pytest.param(
            [WON, attempt("hedge", "superseded", prompt=1000, done=5, price=PRICE)],
            (0.0011, 0.0101),
            id="lost: all of its prompt was cached, or none",
        ),
        pytest.param(
            [attempt("primary", "superseded", done=10, price=PRICE), attempt("hedge", "won", prompt=0, price=PRICE)],
            (0.0002, 0.0002),
            id="the primary lost after ten tokens",
        ),
        pytest.param(
            [attempt("primary", "failed", price=PRICE), attempt("recovery", "won", prompt=1000, price=PRICE)],
            None,
            id="a recovery is no hedge",
        ),
        pytest.param(
            [attempt("primary", "won"), attempt("hedge", "superseded", price=PRICE)], None, id="no size is known"
        ),
        pytest.param([WON, attempt("hedge", "superseded")], None, id="no price is known"),
    ],
)
def test_what_hedges_added_to_the_bill(attempts: Any, expected: tuple[float, float] | None) -> None:
    extra = Extra()
    extra.add(attempts)
    data = extra.as_dict()
    assert (data and (data["at_least"], data["at_most"])) == (expected and pytest.approx(expected))


def test_hedges_without_a_price_are_said() -> None:
    extra = Extra()
    extra.add([WON, attempt("hedge", "superseded", price=PRICE)])
    extra.add([WON, attempt("hedge", "superseded")])
    data = extra.as_dict()
    assert data is not None
    assert data["hedges_unpriced"] == 1


def test_five_per_cent_cold_hedges_add_a_quarter_to_a_prompt_bill_that_is_cached_to_nine_tenths() -> None:
    extra, bill = Extra(), 0.0
    for step in range(1000):
        bill += (900 * PRICE["cached_input"] + 100 * PRICE["input"]) / 1e6
        if step % 20 == 0:
            extra.add([LOST, attempt("hedge", "won", prompt=1000, price=PRICE)])
    assert extra.at_most / bill == pytest.approx(0.26, abs=0.005)
