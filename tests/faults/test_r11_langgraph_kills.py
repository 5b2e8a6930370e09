"""C2 in LangGraph: killed in the tool, after its step, one and three steps later; resumed in other processes.

The model asks under a fresh id and in other words whenever it runs again, no tool declares a key, the checkpointer is
slow, and the agent is wired in each of the four ways, by `invoke` and by `ainvoke`, behind ToolRetryMiddleware,
ToolErrorMiddleware and `handle_tool_errors=True`. One payment, or one and in doubt; never two.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from tests.faults.agents import LEASE_S, WIRINGS, Plan, in_a_process, live, live_all

DURABILITIES = ("sync", "async", "exit")
KILLS = ("tool", "tools", "one", "three")


def plans() -> list[dict[str, object]]:
    """Every wiring x durability x way of calling x place to die; every pair of these with a tool that takes no time
    and with one that takes 20 ms."""
    crossed = itertools.product(*map(enumerate, (WIRINGS, DURABILITIES, (False, True), KILLS)))
    return [
        {"wiring": w, "durability": d, "asynchronous": a, "kill": k, "tool_s": 0.02 * ((i + j + m + n) % 2)}
        for (i, w), (j, d), (m, a), (n, k) in crossed
        if not (w == "middleware" and k == "tools")  # inside create_agent there is no place for it
    ]


def play(chosen: list[dict[str, object]], root: Path, migrated: Path) -> Counter[tuple[str, ...]]:
    """Kill one process for each plan, then resume them all, twice, each time in a process of its own."""
    plans = [
        Plan(root / str(number), f"sqlite:///{root / str(number)}/ledger.db", saver_s=0.03, **settings)  # type: ignore[arg-type]
        for number, settings in enumerate(chosen)
    ]
    for plan in plans:
        plan.folder.mkdir()
        shutil.copy(migrated, plan.folder / "ledger.db")
    with ThreadPoolExecutor(3) as pool:
        killed = list(pool.map(in_a_process, itertools.repeat(live), plans))
    later = [replace(plan, kill="", saver_s=0.0) for plan in plans]
    resumed = []
    for _ in range(2):
        time.sleep(1.2 * LEASE_S)
        resumed.append(in_a_process(live_all, later).split("|"))
    outcomes = list(zip(*resumed, strict=True))
    wrong = [
        (settings, first, plan.payments(), then)
        for settings, first, plan, then in zip(chosen, killed, plans, outcomes, strict=True)
        if first != "killed" or plan.payments() != 1 or not set(then) <= {"done", "EffectInDoubt"}
    ]
    assert wrong == []
    return Counter(outcomes)


def test_r11_every_way_to_be_killed_pays_once(tmp_path: Path, migrated: Path) -> None:
    seen = play(plans(), tmp_path, migrated)
    print(f"{seen.total()} kills, each paid once; what two resumptions were told: {dict(seen)}")
    assert seen["done", "done"] > 0  # where the step was kept, the run goes on without anybody's help
    assert seen["EffectInDoubt", "EffectInDoubt"] > 0


def test_without_the_ledger_the_same_kill_pays_twice(tmp_path: Path, migrated: Path) -> None:
    folder = tmp_path / "bare"
    folder.mkdir()
    shutil.copy(migrated, folder / "ledger.db")
    plan = Plan(folder, f"sqlite:///{folder}/ledger.db", wiring="bare", durability="async", kill="tool")
    assert in_a_process(live, plan) == "killed"
    assert in_a_process(live, replace(plan, kill="")) == "done"
    assert plan.payments() == 2
