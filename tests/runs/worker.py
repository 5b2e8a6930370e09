"""A process that works on a run in a store and says what it sees: ``python -m tests.runs.worker SETTINGS``.

It prints one JSON line after each line it reads from its standard input: ``enter`` the run, ``hedge N`` (N steps that
hedge, one after another), ``ask N`` (the same of a model, with prompts of a thousand tokens at a cent), ``fan N`` (N
steps at once), ``look``, ``leave``. Killed, it leaves nothing behind but what is stored. Where a step may not hedge its
primary answers at once, else never.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from langchain_core.messages import HumanMessage

from agent_hedge import FleetBudget, Hedger, Target
from agent_hedge.core.scope import Run
from agent_hedge.errors import DeadlineExceeded
from tests.conftest import unhurried
from tests.engine.kit import AMPLE
from tests.runs.kit import OnceGranted, Yielding, slow_once, until_heard
from tests.runs.test_langgraph import Slow


async def main(settings: dict[str, Any]) -> None:
    unhurried()
    budget, yielding = FleetBudget(**AMPLE), Yielding()  # type: ignore[arg-type]
    store = settings.pop("store")
    opened = Hedger(store, policy=OnceGranted(0.05), budget=budget, observers=[yielding], accounting="off")
    step = slow_once(opened, yielding, hedge=0.01)
    places = [Target(name, Slow(seconds=yielding), price={"input": 10.0}) for name in ("a", "b")]
    model = opened.chat_model(*places, family="scripted")
    loop = asyncio.get_running_loop()
    await until_heard(opened)
    await loop.run_in_executor(None, sys.stdin.readline)
    async with opened.run(**settings) as run:
        say(run, hedges=0)
        while (line := await loop.run_in_executor(None, sys.stdin.readline)).split() not in ([], ["leave"]):
            what, *count = line.split()
            times, before = int(count[0]) if count else 0, run.extra_attempts_used
            if what == "fan":
                await asyncio.gather(*(step() for _ in range(times)))
            for _ in range(times if what in ("hedge", "ask") else 0):
                try:
                    await (step() if what == "hedge" else model.ainvoke([HumanMessage("x" * 4_000)]))
                except DeadlineExceeded:
                    break
            say(run, hedges=run.extra_attempts_used - before)
    opened.close()
    print("{}", flush=True)


def say(run: Run, *, hedges: int) -> None:
    facts = {"at": time.time(), "remaining": run.remaining, "hedges": hedges, **run.report()}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
