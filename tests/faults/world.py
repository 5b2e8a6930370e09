"""A model of everything around the ledger: the store, the other side, processes that die, and an agent that forgets.

Only these are models. Ledger, fence, race and driver are the shipped ones.

- The other side goes on executing after a cancel or a crash; its reply can be lost; it may also refuse before it
  has done anything. (A simulator whose cancelled client takes its effect with it lets the worst mutants live.)
- A verb of the store takes time, may fail before or *after* it was applied, and raises `Dead` in a dead process.
- The agent pays once. Its message may be lost with the process; then its model runs again, and asks for the same
  payment under a new call id and in other words.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from agent_hedge.core.ports import Choice, RaceView
from agent_hedge.core.race import Race
from agent_hedge.core.scope import ActiveAttempt
from agent_hedge.core.step import Effect, Role, StepKey
from agent_hedge.core.stores import ClaimStore
from agent_hedge.engine.driver import Driver
from agent_hedge.engine.reaper import Reaper
from agent_hedge.engine.spawn import AsyncioSpawner
from agent_hedge.errors import EffectBarred, EffectInDoubt, StoreUnavailable
from agent_hedge.policies import Fixed
from agent_hedge.stores.memory.claims import MemoryClaims
from agent_hedge.testing.fakes import FakeFleet, FakeLatency, place
from agent_hedge.tools import fence
from agent_hedge.tools.calls import Replay
from agent_hedge.tools.effect import EffectSpec
from agent_hedge.tools.guarded import Guarded
from agent_hedge.tools.ledger import Ledger
from agent_hedge.tools.site import Frame, Site

LEASE_S = 5.0
LATENCIES = (0.001, 0.004, 0.02)
TOOL = "pay"
THREAD = "thread"
KINDS = ("once", "once by key", "keyed by key")


class Refused(Exception):
    """The other side has proved that it did nothing."""


class Lost(Exception):
    """The reply of the other side was lost."""


class Store:
    """The store as one process reaches it."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def __getattr__(self, verb: str) -> Callable[..., Awaitable[Any]]:
        process, world = self._process, self._process.world
        apply = getattr(world.claims, verb)

        async def run(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(world.rng.choice(LATENCIES))
            await process.alive()
            fate = world.rng.random()
            if fate < world.faults:
                raise StoreUnavailable
            result = await apply(*args, **kwargs)
            await asyncio.sleep(world.rng.choice(LATENCIES))
            await process.alive()
            if fate < 2 * world.faults:
                raise StoreUnavailable  # applied, and the reply is lost
            return result

        return run


class Process:
    """One life of the agent's process. A dead one runs no line any more, not even to clean up."""

    def __init__(self, world: World, make: Callable[[ClaimStore], Ledger]) -> None:
        self.world = world
        self.dead = False
        self.ledger = make(Store(self))  # type: ignore[arg-type]
        self.name = self.ledger.incarnation = f"process {next(world.numbers)}"
        self.guarded = Guarded(self.ledger, None)

    async def alive(self) -> None:
        """Pass in a living process; in a dead one, never."""
        if self.dead or self.world.over:
            if not self.world.over:
                await asyncio.get_running_loop().create_future()
            raise asyncio.CancelledError


@dataclass
class Line:
    """What became of one call."""

    outcome: str
    final: bool = False


@dataclass
class World:
    """One schedule. Everything random comes from the seed."""

    seed: int
    rng: random.Random = field(init=False)
    claims: MemoryClaims = field(init=False)
    effects: list[str] = field(default_factory=list)
    lines: list[Line] = field(default_factory=list)
    remote: set[asyncio.Task[Any]] = field(default_factory=set)
    message: tuple[str, str] | None = None
    """Call id and words of the message that the checkpointer has."""
    inside: bool = False
    """The node calls the model and the tool itself: each time it runs, it asks under a new id."""
    answered: bool = False
    over: bool = False
    faults: float = 0.0
    kind: str = ""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        loop = asyncio.get_running_loop()
        self.claims = MemoryClaims(clock=loop.time, epoch=loop.time)
        self.kind = self.rng.choice(KINDS)
        self.inside = self.rng.random() < 0.4
        self.faults = self.rng.choice([0.0, 0.03, 0.1])
        self.numbers = iter(range(1_000_000))

    def spec(self) -> EffectSpec:
        effect = Effect.KEYED if self.kind == "keyed by key" else Effect.ONCE
        return EffectSpec(effect=effect, key=None if self.kind == "once" else "order", not_started=(Refused,))

    async def pay(self, process: Process, key: str) -> str:
        """The other side. What is on its way is executed, whatever becomes of the caller."""
        await process.alive()
        rng = self.rng
        delay = rng.choice([0.01, 0.1, 1.0, 8.0])
        fate = rng.random()
        if fate < 0.08:
            await asyncio.sleep(delay)
            raise Refused

        async def execute() -> None:
            await asyncio.sleep(delay)
            self.effects.append(key if self.kind == "keyed by key" else f"payment {len(self.effects)}")

        task = asyncio.get_running_loop().create_task(execute(), name="remote")
        self.remote.add(task)
        await asyncio.sleep(delay + 0.005)
        if fate < 0.2:
            raise Lost
        return "paid"

    @property
    def happened(self) -> int:
        return len(set(self.effects)) if self.kind == "keyed by key" else len(self.effects)


PLACES = [place("a"), place("b")]


class Next:
    """A chooser: one place after the other."""

    def choose(self, role: Role, view: RaceView) -> Choice:
        return Choice(PLACES[view.launched % 2])


@dataclass
class Life:
    """One invocation of the agent in one process."""

    world: World
    process: Process
    wording: str
    durability: str

    async def run(self, *, race: bool, copies: int, retries: int) -> str:
        """The model's message, then the tool's step with its retries. Return the outcome."""
        world, rng = self.world, self.world.rng
        if world.answered:
            return "done"
        if world.message is None:
            message = self.mint(), self.wording
            if not world.inside and (self.durability == "sync" or rng.random() < 0.4):
                await asyncio.sleep(0.001)
                await self.process.alive()
                world.message = world.message or message
        message = world.message or message
        outcome = "failed"
        for attempt in range(1, retries + 1):
            asked = (self.mint(), f"{self.wording} {attempt}") if world.inside else message
            history = {} if world.inside else {message[0]: 1}
            try:
                outcome = await self.step(*asked, history, attempt, race=race, copies=copies)
            except (EffectInDoubt, EffectBarred) as error:
                return "in doubt" if isinstance(error, EffectInDoubt) else "barred"
            except (StoreUnavailable, Refused, Lost):
                continue
            if outcome == "done" and rng.random() < 0.3 and attempt < retries:
                continue  # a line after the tool fails; the node is retried
            break
        if outcome == "done" and rng.random() < 0.3:
            await self.mail(message[0])
        if outcome == "done" and (world.inside or world.message == message) and rng.random() < 0.7:
            await asyncio.sleep(0.001)
            await self.process.alive()
            world.answered = True
        return outcome

    def mint(self) -> str:
        return f"call {next(self.world.numbers)}"

    async def step(
        self, call_id: str, words: str, history: dict[str, int], attempt: int, *, race: bool, copies: int
    ) -> str:
        if race:
            return await self.raced(call_id, words, history, attempt)
        done = await asyncio.gather(*(self.tool(call_id, words, history, attempt) for _ in range(copies)))
        assert len(set(done)) == 1
        return done[0]

    async def raced(self, call_id: str, words: str, history: dict[str, int], attempt: int) -> str:
        """The whole node raced: both attempts reach the tool, each with an id and words of its own."""
        world = self.world
        pauses = [world.rng.choice([0.0, 0.01, 0.3]) for _ in range(2)]

        async def attempt_of(active: ActiveAttempt) -> str:
            await asyncio.sleep(pauses[active.number % 2])
            if active.number and world.inside:
                return await self.tool(self.mint(), f"{words} otherwise", history, attempt)
            return await self.tool(call_id, words, history, attempt)

        loop = asyncio.get_running_loop()
        spawner = AsyncioSpawner(loop)
        driver = Driver(
            Race(
                StepKey(node=self.process.name),
                policy=Fixed(world.rng.choice([0.0, 0.005, 0.1]), attempts=2),
                chooser=Next(),
                candidates=PLACES,
                latency=FakeLatency(),
                fleet=FakeFleet(),
            ),
            attempt_of,
            spawner=spawner,
            reaper=Reaper(spawner, grace=0.05),
        )
        return await driver.run()

    async def mail(self, before: str) -> None:
        """Another tool, one step on: its claim looks at the payment's."""
        call_id = self.mint()
        site = replace(
            self.site(call_id, {call_id: 1} if self.world.inside else {before: 1, call_id: 1}, 1),
            frames=(Frame(self.process.name, "tools", 4, "", "later task", 1),),
        )
        call = self.process.ledger.call("mail", EffectSpec(effect=Effect.ONCE), {}, site)
        with suppress(EffectInDoubt, StoreUnavailable):
            await self.process.guarded.arun(call, self.sleep)

    async def sleep(self, _: str) -> None:
        await asyncio.sleep(0.005)

    async def tool(self, call_id: str, words: str, history: dict[str, int], attempt: int) -> str:
        world = self.world
        spec = world.spec()
        arguments = {"order": "17", "memo": words if world.kind == "once" else "same"}
        fence.pass_fence(spec.effect, tool=TOOL)
        site = self.site(call_id, history, attempt)
        call = self.process.ledger.call(TOOL, spec, arguments, site)
        value = await self.process.guarded.arun(call, partial(world.pay, self.process))
        await self.process.alive()
        assert value == "paid" or (isinstance(value, Replay) and value.value in ("paid", None)), value
        return "done"

    def site(self, call_id: str, history: dict[str, int], attempt: int) -> Site:
        return Site(
            run_key="" if self.world.kind == "once" else "run",
            thread=THREAD,
            call_id=call_id,
            frames=(Frame(self.process.name, "tools", 2, "", "task", attempt),),
            durability=self.durability,
            persistent=True,
            history=history,
            remaining=60.0,
        )


async def schedule(seed: int, make: Callable[[ClaimStore], Ledger]) -> World:
    """Play one schedule to its end and return what the world has seen."""
    world = World(seed)
    rng = world.rng
    lives = rng.randint(1, 3)
    for number in range(lives):
        process = Process(world, make)
        life = Life(world, process, f"words {rng.randint(0, 1)}", rng.choice(["sync", "async"]))
        together = [life]
        if number and rng.random() < 0.3:
            together.append(Life(world, Process(world, make), "words 2", "async"))
        await _live(world, together)
    for _ in range(2):
        await asyncio.sleep(rng.choice([0.0, 0.5, 2 * LEASE_S]))
        world.faults = 0.0
        last = Life(world, Process(world, make), "words 3", "sync")
        outcome = await last.run(race=False, copies=rng.choice([1, 3]), retries=4)
        world.lines.append(Line(outcome, final=True))
    await asyncio.gather(*world.remote)
    world.over = True
    while rest := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in rest:
            task.cancel()
        await asyncio.wait(rest)
    return world


async def _live(world: World, lives: Sequence[Life]) -> None:
    """Let lives run side by side, and end them: by themselves, by a cancel, by a kill, or not at all (zombies)."""
    rng = world.rng
    tasks = []
    for life in lives:
        work = life.run(race=rng.random() < 0.4, copies=rng.choice([1, 1, 1, 4]), retries=rng.choice([1, 2, 3]))
        tasks.append(asyncio.get_running_loop().create_task(work))
    end = rng.choice(["run", "kill", "kill", "cancel", "cancel"])
    if end == "run":
        await asyncio.wait(tasks, timeout=rng.choice([None, 3.0]))
    else:
        await asyncio.sleep(rng.choice([0.01, 0.03, 0.05, 0.08, 0.3, 1.0, 6.0]) * rng.random() * 2)
    for life, task in zip(lives, tasks, strict=True):
        if not task.done() and end == "kill":
            life.process.dead = True
        elif not task.done() and end == "cancel":
            task.cancel()
            await asyncio.wait({task})
        if task.done() and not task.cancelled():
            world.lines.append(Line(task.result()))


def verdict(world: World) -> str:
    """Return what is wrong with a schedule, or nothing."""
    if world.happened > 1:
        return f"{world.kind}: {world.happened} payments"
    if not world.happened and any(line.outcome == "done" for line in world.lines):
        return f"{world.kind}: reported done, and never paid"
    if not all(line.outcome in ("done", "in doubt", "barred") for line in world.lines if line.final):
        return f"{world.kind}: ended without an answer: {[line.outcome for line in world.lines]}"
    return ""
