"""Play a scenario on each driver: the simulator, asyncio and trio, all in virtual time."""

from __future__ import annotations

from collections.abc import Callable

import trio

from agent_hedge.engine.spawn import TrioSpawner
from agent_hedge.testing.clock import run_virtual
from agent_hedge.testing.scenario import Played, Scenario

Player = Callable[[Scenario], Played]


def on_simulator(scenario: Scenario) -> Played:
    return scenario.simulate()


def on_asyncio(scenario: Scenario) -> Played:
    return run_virtual(scenario.play)


def on_trio(scenario: Scenario) -> Played:
    async def main() -> Played:
        async with trio.open_nursery() as nursery:
            return await scenario.play(TrioSpawner(nursery))

    return run_virtual(main, backend="trio")


PLAYERS: dict[str, Player] = {"simulator": on_simulator, "asyncio": on_asyncio, "trio": on_trio}
