"""Random graphs (issue 5, D4): the same plan gives the same graph, plain or hedged.

Every node says what it does on the custom stream and in `log`; what it says depends on its input alone, so that a
hedged run must end in the state of the unhedged one and must have shown the same. How long it takes depends on the
attempt, too.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import Command, RetryPolicy, Send, interrupt

from agent_hedge import Fixed, Target, current_attempt
from tests.adapters.langgraph.graph_kit import Chat, Kit, State, echo

KINDS = ("model", "model", "model", "slow", "flaky", "refused", "asks", "pays", "serves", "sub", "fan", "loop")
BARRED = {"node": ("asks", "pays", "serves"), "model": ("serves",)}
"""Kinds in which nothing may be hedged, by unit: a node that interrupts or pays, and a model whose provider acts."""


class Refused(Exception):
    """What a node of kind "refused" raises, always."""


@tool
def settle(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


@dataclass
class Plan:
    """A graph as plain data: nodes by layers, every layer after the one before."""

    layers: list[list[tuple[str, str]]]
    inner: dict[str, Plan] = field(default_factory=dict)
    trigger: float = 0.0
    deadline: float | None = None
    cancel_at: float | None = None
    extra_attempts: int = 0
    """The run's purse of hedges."""
    share: float = 1.0
    """The fleet's: the share of requests that may be hedged."""
    seed: int = 0
    """Of how long each attempt takes."""

    def barred(self, unit: str) -> set[str]:
        """Return the nodes that must not be hedged: at unit="node" those around a barred one, too."""
        found = {name for layer in self.layers for name, kind in layer if kind in BARRED[unit]}
        for name, plan in self.inner.items():
            inside = plan.barred(unit)
            found |= inside | ({name} if inside and unit == "node" else set())
        return found


def plan_of(seed: int) -> Plan:
    """Return the plan of a seed."""
    return drawn(random.Random(seed), seed)


def drawn(rng: random.Random, seed: int) -> Plan:
    """Draw a plan."""
    plan = _plan(rng, depth=0, prefix="n")
    plan.seed = seed
    plan.trigger = rng.choice([0.0, 0.05, 0.3, 1.0])
    plan.deadline = rng.choice([None, None, None, 3.0])
    plan.cancel_at = rng.uniform(0.0, 3.0) if rng.random() < 0.2 else None
    plan.extra_attempts = rng.choice([0, 1, 3, 50])
    plan.share = rng.choice([0.05, 1.0, 1.0])
    return plan


def _plan(rng: random.Random, depth: int, prefix: str) -> Plan:
    layers, inner = [], {}
    for level in range(rng.randint(1, 3)):
        layer = []
        for place in range(rng.choice([1, 1, 2, 3]) if depth == 0 else 1):
            kinds = [kind for kind in KINDS if depth == 0 or kind not in ("sub", "fan", "refused")]
            name, kind = f"{prefix}{level}{'abc'[place]}", rng.choice(kinds)
            if kind == "refused" and rng.random() < 0.6:
                kind = "slow"
            if kind == "sub":
                inner[name] = _plan(rng, depth + 1, f"{name}_")
            layer.append((name, kind))
        layers.append(layer)
    return Plan(layers, inner)


class Growth:
    """Grows the graph of a plan."""

    def __init__(self, plan: Plan, kit: Kit) -> None:
        self._seed = plan.seed
        self._kit = kit
        self._trigger = plan.trigger

    def graph(self, plan: Plan, *, saver: Any = None) -> Any:
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
        before = [START]
        for layer in plan.layers:
            for name, kind in layer:
                self._add(builder, name, kind, plan)
                for each in before:
                    builder.add_edge(each, name)
            before = [name for name, _ in layer]
        for name in before:
            builder.add_edge(name, END)
        return builder.compile(checkpointer=saver)

    def _add(self, builder: StateGraph[Any, Any, Any, Any], name: str, kind: str, plan: Plan) -> None:
        action = self._action(name, kind, plan)
        settings: dict[str, Any] = {}
        if kind == "flaky":
            settings["retry_policy"] = RetryPolicy(max_attempts=3, initial_interval=0.1, jitter=False, retry_on=Refused)
        builder.add_node(name, self._wrapped(action), **settings)
        if kind == "fan":

            async def part(state: State) -> State:
                await self._sleep(name, state["n"])
                return {"log": [f"{name} part {state['n']}"]}

            builder.add_node(f"{name}_part", self._wrapped(part))
            builder.add_conditional_edges(
                name, lambda _: [Send(f"{name}_part", {"n": n}) for n in range(4)], [f"{name}_part"]
            )
        if kind == "loop":
            target = f"{name}_again"

            async def again(state: State) -> Command[Any]:
                await self._sleep(name, state.get("n", 0))
                turns = sum(entry == f"{name} turns" for entry in state["log"])
                return Command(goto=target if turns < 2 else [], update={"log": [f"{name} turns"]})

            builder.add_node(target, self._wrapped(again), destinations=(target,))
            builder.add_edge(name, target)

    def _wrapped(self, action: Any) -> Any:
        if self._kit.unit != "node":
            return self._kit.node(action)
        return self._kit.node(action, trigger="total", policy=Fixed(self._trigger))

    async def _sleep(self, *what: object) -> None:
        active = current_attempt()
        number = active.number if active is not None else 0
        rng = random.Random(f"{self._seed}{what}{number}")
        await asyncio.sleep(rng.choice([0.01, 0.05, 0.2, 1.5]))

    def _action(self, name: str, kind: str, plan: Plan) -> Any:
        if kind == "sub":
            return self.graph(plan.inner[name])
        model = self._model(name)
        if kind == "serves":
            model = model.bind(tools=[{"type": "code_interpreter"}])
        seen = self._sleep

        async def act(state: State, runtime: Runtime[Any]) -> State:
            get_stream_writer()(f"{name} begins")
            await seen(name)
            if kind in ("model", "serves", "fan", "loop"):
                said = (await model.ainvoke(f"{name} of {len(state['log'])}")).content
            elif kind == "flaky":
                if runtime.execution_info.node_attempt < 2:  # type: ignore[union-attr]
                    raise Refused(name)
                said = "at last"
            elif kind == "refused":
                raise Refused(name)
            else:
                said = "done"
            get_stream_writer()(f"{name} says {said}")
            return {"log": [f"{name} {said}"]}

        async def ask(state: State) -> State:
            await seen(name)
            return {"log": [f"{name} heard {interrupt(name)}"]}

        async def pay(state: State) -> State:
            await seen(name)
            return {"log": [f"{name} {await settle.ainvoke({'amount': 3})}"]}

        return {"asks": ask, "pays": pay}.get(kind, act)

    def _model(self, name: str) -> Any:
        kit = self._kit

        def answer(messages: Any) -> AIMessage:
            return echo(messages)

        rng = random.Random(f"{self._seed}{name}")
        first, second = (Chat(answer=answer, ttft=rng.choice([0.02, 0.1, 2.0])) for _ in range(2))
        if kit.unit != "model":
            return first
        policy = Fixed(self._trigger)
        return kit.hedger.chat_model(Target("first", first), Target("second", second), family="s", policy=policy)


@dataclass
class Seen:
    """What a run of a random graph ended in, and what it showed."""

    state: Any
    custom: list[str]
    tokens: dict[str, list[str]]
    error: str
    at: float
    hedges_used: int = 0


async def run_of(plan: Plan, kit: Kit) -> Seen:
    """Run the graph of this plan to its end, answering every interrupt; or cancel it where the plan says so."""
    graph = Growth(plan, kit).graph(plan, saver=InMemorySaver())
    config: RunnableConfig = {"configurable": {"thread_id": "t"}, "recursion_limit": 50}
    custom: list[str] = []
    tokens: dict[str, list[str]] = {}
    loop = asyncio.get_running_loop()
    error, used = "", 0

    async def whole() -> None:
        given: Any = {"log": [], "messages": []}
        for _ in range(20):
            async for _, mode, part in graph.astream(given, config, stream_mode=["custom", "messages"], subgraphs=True):
                if mode == "custom":
                    custom.append(part)
                else:
                    tokens.setdefault(part[0].id, []).append(part[0].content)
            waiting = (await graph.aget_state(config)).interrupts
            if not waiting:
                return
            given = Command(resume={each.id: f"answer to {each.value}" for each in waiting})

    async def in_a_run() -> None:
        nonlocal used
        deadline = plan.deadline if kit.unit != "plain" else None
        async with kit.hedger.run(deadline=deadline, extra_attempts=plan.extra_attempts) as run:
            try:
                await whole()
            finally:
                used = run.extra_attempts_used

    task = asyncio.ensure_future(in_a_run())
    if plan.cancel_at is not None:
        loop.call_later(plan.cancel_at, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        error = "cancelled"
    except Exception as raised:
        error = type(raised).__name__
    at = loop.time()
    state = (await graph.aget_state(config)).values.get("log")
    return Seen(state, sorted(custom), tokens, error, at, used)
