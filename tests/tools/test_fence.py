"""C5: inside an undecided race one attempt at most reaches a side effect, on every way that carries the context."""

from __future__ import annotations

import asyncio
import random
import threading
import warnings
from collections.abc import Awaitable, Callable
from typing import Any

import anyio.to_thread
import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables.config import run_in_executor
from langchain_core.tools import BaseTool, tool
from langgraph.graph import START, MessagesState, StateGraph

from agent_hedge import Fixed, FleetBudget, Hedger, current_attempt
from agent_hedge.core.step import Effect
from agent_hedge.errors import EffectBarred
from agent_hedge.testing.clock import run_virtual
from agent_hedge.tools import effect as effects
from agent_hedge.tools import fence
from agent_hedge.tools.effect import tool_effect

AMPLE = FleetBudget(1.0, floor=10_000, burst=10_000)
INTERLEAVINGS = 200


def hedger(delay: float) -> Hedger:
    return Hedger(policy=Fixed(delay, attempts=2), budget=AMPLE)


class World:
    """What was written, by whom."""

    def __init__(self, declared: Effect = Effect.ONCE, **settings: Any) -> None:
        self.writes: list[str] = []
        self.lock = threading.Lock()
        world = self

        def write(who: str) -> str:
            """Write."""
            with world.lock:
                world.writes.append(who)
            return f"written by {who}"

        async def awrite(who: str) -> str:
            """Write."""
            with world.lock:
                world.writes.append(who)
            await asyncio.sleep(0)
            return f"written by {who}"

        mark = tool_effect(declared, **settings)
        self.function, self.afunction = mark(write), mark(awrite)
        self.tool: BaseTool = mark(tool("write")(write))
        self.atool: BaseTool = mark(tool("awrite")(awrite))


Way = Callable[[World, Hedger, str], Awaitable[object]]


async def direct(world: World, hedger: Hedger, who: str) -> object:
    return world.function(who)


async def direct_async(world: World, hedger: Hedger, who: str) -> object:
    return await world.afunction(who)


async def tool_func(world: World, hedger: Hedger, who: str) -> object:
    return world.tool.func(who=who)  # type: ignore[attr-defined]


async def tool_coroutine(world: World, hedger: Hedger, who: str) -> object:
    return await world.atool.coroutine(who=who)  # type: ignore[attr-defined]


async def invoke(world: World, hedger: Hedger, who: str) -> object:
    return world.tool.invoke({"who": who})


async def ainvoke(world: World, hedger: Hedger, who: str) -> object:
    return await world.atool.ainvoke({"who": who})


async def in_asyncio_thread(world: World, hedger: Hedger, who: str) -> object:
    return await asyncio.to_thread(world.tool.invoke, {"who": who})


async def in_anyio_thread(world: World, hedger: Hedger, who: str) -> object:
    return await anyio.to_thread.run_sync(world.function, who)


async def in_langchain_thread(world: World, hedger: Hedger, who: str) -> object:
    return await run_in_executor(None, world.tool.invoke, {"who": who})


async def sync_tool_async(world: World, hedger: Hedger, who: str) -> object:
    return await world.tool.ainvoke({"who": who})


PLAIN: list[Way] = [
    direct,
    direct_async,
    tool_func,
    tool_coroutine,
    invoke,
    ainvoke,
    in_asyncio_thread,
    in_anyio_thread,
    in_langchain_thread,
    sync_tool_async,
]


async def race(world: World, opened: Hedger, way: Way, seed: int, *, alike: bool = False) -> object:
    """Race a function whose two attempts both reach the tool, each with arguments of its own (or alike)."""
    rng = random.Random(seed)
    pauses = [rng.choice([0.0, 0.01, 0.02, 0.03]), rng.choice([0.0, 0.0, 0.01, 0.02])]
    after = [rng.choice([0.0, 0.01, 0.05]) for _ in range(2)]

    async def unit() -> object:
        attempt = current_attempt()
        assert attempt is not None
        await asyncio.sleep(pauses[attempt.number])
        value = await way(world, opened, "somebody" if alike else f"attempt {attempt.number}")
        await asyncio.sleep(after[attempt.number])
        return value

    return await opened.wrap(unit, key="unit", effect=Effect.READ_ONLY)()


@pytest.mark.parametrize("declared", [Effect.ONCE, Effect.KEYED, Effect.IDEMPOTENT, Effect.UNKNOWN])
@pytest.mark.parametrize("way", PLAIN, ids=lambda way: way.__name__)
def test_r10_at_most_one_attempt_reaches_the_effect(way: Way, declared: Effect) -> None:
    for seed in range(INTERLEAVINGS // 20):
        world = World(declared)

        async def main(world: World = world, seed: int = seed) -> object:
            return await race(world, hedger(0.01), way, seed, alike=seed % 3 == 0)

        answer = run_virtual(main)
        assert len(world.writes) == 1
        assert answer == f"written by {world.writes[0]}"  # who wrote is who won


def test_r10_two_hundred_interleavings() -> None:
    for seed in range(INTERLEAVINGS):
        world = World()
        rng = random.Random(seed)
        ways = [rng.choice(PLAIN), rng.choice(PLAIN)]

        async def either(w: World, h: Hedger, who: str, ways: list[Way] = ways) -> object:
            attempt = current_attempt()
            assert attempt is not None
            return await ways[attempt.number](w, h, who)

        async def main(world: World = world, seed: int = seed, either: Way = either) -> object:
            return await race(world, hedger(random.Random(seed).choice([0.0, 0.005, 0.02])), either, seed)

        run_virtual(main)
        assert len(world.writes) == 1, seed


def test_with_the_fence_switched_off_both_attempts_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(effects, "pass_fence", lambda *_, **__: None)
    twice = 0
    for seed in range(50):
        world = World()

        async def main(world: World = world, seed: int = seed) -> object:
            return await race(world, hedger(0.01), direct_async, seed)

        run_virtual(main)
        twice += len(world.writes) > 1
    assert twice > 0


def test_r10_read_only_tools_run_in_every_attempt() -> None:
    world = World(Effect.READ_ONLY)

    async def main() -> object:
        async def unit() -> str:
            attempt = current_attempt()
            assert attempt is not None
            said = await world.afunction(f"attempt {attempt.number}")
            await asyncio.sleep(1.0)
            return said

        return await hedger(0.01).wrap(unit, effect=Effect.READ_ONLY)()

    run_virtual(main)
    assert len(world.writes) == 2


def test_r10_what_commutes_may_happen_in_both() -> None:
    world = World(Effect.ONCE, commutes=True)

    async def main() -> object:
        async def unit() -> str:
            await world.afunction("somebody")
            await asyncio.sleep(1.0)
            return "done"

        return await hedger(0.01).wrap(unit, effect=Effect.READ_ONLY)()

    run_virtual(main)
    assert len(world.writes) == 2


def test_r10_the_loser_is_refused_also_when_it_ignores_its_cancel() -> None:
    """Never by cancelling alone: a loser that swallows its cancel still finds the fence closed."""
    world, seen = World(), []

    async def main() -> object:
        async def unit() -> str:
            attempt = current_attempt()
            assert attempt is not None
            if attempt.number == 1:
                return await world.afunction("hedge")
            try:
                await asyncio.sleep(5.0)
            except asyncio.CancelledError:
                pass
            try:
                await world.afunction("primary")
            except EffectBarred as barred:
                seen.append(str(barred))
            return "late"

        opened = hedger(0.01)
        answer = await opened.wrap(unit, effect=Effect.READ_ONLY)()
        await asyncio.sleep(1.0)
        return answer

    assert run_virtual(main) == "written by hedge"
    assert world.writes == ["hedge"]
    assert seen == ["Another attempt of this step has won: awrite was not started."]


def test_r10_outside_a_race_the_fence_is_open() -> None:
    world = World()
    assert world.function("me") == "written by me"
    fence.pass_fence(Effect.ONCE)


# --- guarded tools, with the ledger behind the fence; in real time, for the ledger lives on a thread of its own


async def guarded_invoke(world: World, hedger: Hedger, who: str) -> object:
    return hedger.guard_tools([world.tool])[0].invoke({"who": who})


async def guarded_ainvoke(world: World, hedger: Hedger, who: str) -> object:
    return await hedger.guard_tools([world.atool])[0].ainvoke({"who": who})


async def guarded_thread(world: World, hedger: Hedger, who: str) -> object:
    return await asyncio.to_thread(hedger.guard_tools([world.tool])[0].invoke, {"who": who})


async def guarded_func(world: World, hedger: Hedger, who: str) -> object:
    return hedger.guard_tools([world.tool])[0].func(who=who)  # type: ignore[attr-defined]


async def tool_node(world: World, hedger: Hedger, who: str) -> object:
    return await _graph(hedger.tool_node([world.atool]), "awrite", who)


async def hooked_tool_node(world: World, hedger: Hedger, who: str) -> object:
    from langgraph.prebuilt import ToolNode

    node = ToolNode([world.tool], wrap_tool_call=hedger.guard_tool_call, awrap_tool_call=hedger.aguard_tool_call)
    return await _graph(node, "write", who)


async def _graph(node: Any, name: str, who: str) -> object:
    builder = StateGraph(MessagesState)
    builder.add_node("tools", node)
    builder.add_edge(START, "tools")
    asked = AIMessage("", tool_calls=[{"name": name, "args": {"who": who}, "id": f"call of {who}"}])
    state = await builder.compile().ainvoke({"messages": [asked]})
    return state["messages"][-1].content


GUARDED: list[Way] = [guarded_invoke, guarded_ainvoke, guarded_thread, guarded_func, tool_node, hooked_tool_node]


@pytest.mark.parametrize("way", GUARDED, ids=lambda way: way.__name__)
def test_r10_guarded_tools_pass_the_fence_before_the_ledger(way: Way) -> None:
    opened = hedger(0.01)
    for seed in range(4):
        world = World()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = asyncio.run(race(world, opened, way, seed, alike=seed % 2 == 0))
        assert len(world.writes) == 1
        assert answer == f"written by {world.writes[0]}"
    assert opened._guard._guarded.ledger.counts()["run"] == 4  # the loser has claimed nothing
    opened.close()
