"""Hedge any function: a search that now and then takes thirty times as long. Offline; takes about three seconds.

The hedger learns from the first 200 calls and hedges none of them. After that a call that is slower than usual gets a
second attempt, the first result wins, and at most 5 % of the calls are doubled.
"""

import asyncio
import random
import time

from agent_hedge import Effect, Hedger

hedger = Hedger()


@hedger.wrap(effect=Effect.READ_ONLY)  # without it, calling twice might do harm: it would never be hedged
async def search(query: str) -> str:
    """Stand in for a search service with stragglers."""
    await asyncio.sleep(0.6 if random.random() < 0.02 else 0.02)
    return f"results for {query}"


async def slowest(calls: int) -> float:
    """Return the 99th percentile of so many calls, in seconds."""
    seconds = []

    async def one(number: int) -> None:
        start = time.perf_counter()
        await search(f"question {number}")
        seconds.append(time.perf_counter() - start)

    for batch in range(0, calls, 20):
        await asyncio.gather(*(one(number) for number in range(batch, batch + 20)))
    return sorted(seconds)[int(0.99 * calls)]


async def main() -> None:
    async with hedger:
        print(f"while learning, p99: {await slowest(240):.2f} s")
        print(f"hedged, p99:         {await slowest(240):.2f} s")
        print(f"calls and attempts:  {hedger.status()['last_60_minutes']}")


if __name__ == "__main__":
    random.seed(7)
    asyncio.run(main())
