"""C2 in LangGraph: killed in the tool, after its step, one and three steps later; resumed in other processes.

The model asks under a fresh id and in other words whenever it runs again, no tool declares a key, the checkpointer is
slow, and the agent is wired in each of the four ways, by `invoke` and by `ainvoke`, behind ToolRetryMiddleware,
ToolErrorMiddleware and `handle_tool_errors=True`. One payment, or one and in doubt; never two.
"""

from __future__ import annotations

import itertools
import random
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.faults.agents import LEASE_S, WIRINGS, Plan, in_a_process, live

DURABILITIES = ("sync", "async", "exit")
KILLS = ("tool", "tools", "one", "three")


def plans() -> list[dict[str, object]]:
    """Every wiring x durability x way of calling x place to die, the tool alternately at once and slow."""
    crossed = itertools.product(WIRINGS, DURABILITIES, (False, True), KILLS)
    return [
        {"wiring": w, "durability": d, "asynchronous": a, "kill": k, "tool_s": 0.02 * (number % 2)}
        for number, (w, d, a, k) in enumerate(crossed)
        if not (w == "middleware" and k == "tools")  # inside create_agent there is no place for it
    ]


def play(folder: Path, migrated: Path, settings: dict[str, object]) -> tuple[str, int, tuple[str, ...]]:
    folder.mkdir()
    shutil.copy(migrated, folder / "ledger.db")
    plan = Plan(folder, f"sqlite:///{folder}/ledger.db", saver_s=0.03, **settings)  # type: ignore[arg-type]
    first = in_a_process(live, plan)
    resumed = []
    for _ in range(2):
        time.sleep(1.2 * LEASE_S)
        resumed.append(in_a_process(live, replace(plan, kill="", saver_s=0.0)))
    return first, plan.payments(), tuple(resumed)


def run(chosen: list[dict[str, object]], tmp_path: Path, migrated: Path) -> Counter[tuple[str, ...]]:
    with ThreadPoolExecutor(3) as pool:
        folders = [tmp_path / str(number) for number in range(len(chosen))]
        played = list(pool.map(play, folders, itertools.repeat(migrated), chosen))
    wrong = [
        (settings, first, payments, resumed)
        for settings, (first, payments, resumed) in zip(chosen, played, strict=True)
        if first != "killed" or payments != 1 or not set(resumed) <= {"done", "EffectInDoubt"}
    ]
    assert wrong == []
    return Counter(resumed for _, _, resumed in played)


def test_r11_killed_and_resumed_once(tmp_path: Path, migrated: Path) -> None:
    rng = random.Random(11)
    groups = itertools.groupby(plans(), key=lambda one: (one["wiring"], one["durability"]))
    chosen = [one for number, (_, group) in enumerate(groups) for one in rng.sample(list(group), 1 + number % 2)]
    assert {(one["wiring"], one["durability"]) for one in chosen} == set(itertools.product(WIRINGS, DURABILITIES))
    seen = run(chosen, tmp_path, migrated)
    assert seen["done", "done"] > 0  # where the step was kept, the run goes on without anybody's help
    assert seen["EffectInDoubt", "EffectInDoubt"] > 0


@pytest.mark.slow
def test_r11_every_way_to_be_killed(tmp_path: Path, migrated: Path) -> None:
    run(plans(), tmp_path, migrated)


def test_without_the_ledger_the_same_kill_pays_twice(tmp_path: Path, migrated: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    shutil.copy(migrated, folder / "ledger.db")
    plan = Plan(folder, f"sqlite:///{folder}/ledger.db", wiring="bare", durability="async", kill="tool")
    assert in_a_process(live, plan) == "killed"
    assert in_a_process(live, replace(plan, kill="")) == "done"
    assert plan.payments() == 2
