"""A process that works on a run in a store and says what it sees: ``python -m tests.runs.worker SETTINGS``.

It prints one JSON line after each line it reads from its standard input: ``enter`` the run, ``hedge N`` (N steps that
hedge, one after another), ``look``, ``leave``. Killed, it leaves nothing behind but what is stored.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from agent_hedge import Fixed, FleetBudget, Hedger
from agent_hedge.core.scope import Run
from agent_hedge.errors import DeadlineExceeded
from tests.engine.kit import AMPLE
from tests.runs.kit import slow_once, until_heard


async def main(settings: dict[str, Any]) -> None:
    budget = FleetBudget(**AMPLE)  # type: ignore[arg-type]
    opened = Hedger(settings.pop("store"), policy=Fixed(0.02, attempts=2), budget=budget, accounting="off")
    step = slow_once(opened, 0.1, hedge=0.01)
    loop = asyncio.get_running_loop()
    await until_heard(opened)
    await loop.run_in_executor(None, sys.stdin.readline)
    async with opened.run(**settings) as run:
        say(run, hedges=0)
        while (line := await loop.run_in_executor(None, sys.stdin.readline)).split() not in ([], ["leave"]):
            words, hedges = line.split(), 0
            for _ in range(int(words[1]) if words[0] == "hedge" else 0):
                try:
                    hedges += await step() == "from 1"
                except DeadlineExceeded:
                    break
            say(run, hedges=hedges)
    opened.close()
    print("{}", flush=True)


def say(run: Run, *, hedges: int) -> None:
    facts = {"at": time.time(), "remaining": run.remaining, "hedges": hedges, **run.report()}
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    asyncio.run(main(json.loads(sys.argv[1])))
