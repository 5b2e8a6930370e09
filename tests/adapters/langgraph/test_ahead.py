"""What a graph's structure says of the steps ahead: their number, and which of two branches the run waits for."""

from __future__ import annotations

import asyncio
import operator
import threading
import weakref
from collections.abc import Callable
from contextlib import closing
from typing import Annotated, Any, Literal

import pytest
from langchain_core.messages import HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, Send
from typing_extensions import TypedDict

from agent_hedge import Effect, Fixed, FleetBudget, Hedger, Planned, Target, current_attempt
from agent_hedge.adapters.langgraph.ahead import Steps
from agent_hedge.core.events import AttemptStarted, Event
from agent_hedge.core.ports import RaceView
from agent_hedge.core.step import Ahead, Role, StepKey
from agent_hedge.planning.planner import NEEDED
from agent_hedge.testing.clock import run_virtual
from tests.adapters.langgraph.graph_kit import Chat
from tests.conftest import HUNG_S

STUCK_S, COPY_S, USUAL_S = 60.0, 0.1, 1.0
"""Seconds to the first token of a primary that is stuck, of a hedge, and of every other primary."""
STATIC_S = 5.0
"""The delay where nothing is planned: d0."""
NEAR_S, FAR_S = 15.0, 10_000.0
"""Deadlines of a run: one that the next straggler (20 s) would pass, and one that none would."""


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Stuck(Chat):
    """Answers as the primary after `USUAL_S`, or, where the message is one of `stuck`, after `STUCK_S`."""

    stuck: frozenset[str] = frozenset()

    async def _astream(self, messages: Any, *args: Any, **kwargs: Any) -> Any:
        active = current_attempt()
        assert active is not None
        primary_s = STUCK_S if messages[-1].content in self.stuck else USUAL_S
        await asyncio.sleep(COPY_S if active.number else primary_s)
        async for chunk in super()._astream(messages, *args, **kwargs):
            yield chunk


class World:
    """A hedger that has learnt and builds its plans while it is asked for them; its nodes ask one model."""

    def __init__(self, *stuck: str) -> None:
        self.events: list[Event] = []
        self.hedger = Hedger(
            policy=Planned(Fixed(STATIC_S)), budget=FleetBudget(1.0, floor=10_000, burst=10_000), observers=[self]
        )
        for number in range(2 * NEEDED):
            slow = number % 50 == 0
            self.hedger.book.record(StepKey(node="learnt"), "a", 20.0 if slow else USUAL_S, number * 1e-6)
        assert self.hedger.planner is not None
        self.hedger.planner._off_loop = lambda job: job()
        members = [Target(name, Stuck(stuck=frozenset(stuck))) for name in ("a", "b")]
        self.model = self.hedger.chat_model(*members, family="scripted")

    def on_event(self, event: Event) -> None:
        self.events.append(event)

    def ask(self, name: str) -> Any:
        """Return a node that asks the model once."""

        async def act(state: State) -> State:
            await self.model.ainvoke([HumanMessage(name)])
            return {"log": [name]}

        return act

    def sequence(self, *names: str) -> Any:
        """Return a graph of nodes one after another, each asking the model."""
        builder = StateGraph(State)
        builder.add_sequence([(name, self.ask(name)) for name in names])
        builder.add_edge(START, names[0])
        return builder.compile()

    def beside(self, **branches: Any) -> Any:
        """Return a graph of branches of one node each (None: one that asks the model), joined by `last`."""
        builder = StateGraph(State)
        for name, branch in branches.items():
            builder.add_node(name, branch or self.ask(name))
            builder.add_edge(START, name)
        builder.add_node("last", self.ask("last"))
        builder.add_edge(list(branches), "last")
        return builder.compile()

    def steps(self, graph: Any) -> dict[str, Steps]:
        return {node.name: node.steps for node in self.hedger.explain(graph).nodes}

    def run(self, graph: Any, **settings: Any) -> dict[str, float]:
        """Run the graph; return after how many seconds the step of each node was hedged."""

        async def main() -> None:
            async with self.hedger.run(**({"extra_attempts": 1_000} | settings)):
                await graph.ainvoke({"log": []})

        run_virtual(main)
        begun: dict[str, float] = {}
        delays: dict[str, float] = {}
        for event in self.events:
            if isinstance(event, AttemptStarted) and event.attempt.role is Role.PRIMARY:
                begun[event.step_id] = event.at
            elif isinstance(event, AttemptStarted) and event.attempt.number == 1:
                delays[event.key.node] = event.at - begun[event.step_id]
        return delays


async def plain(state: State) -> State:
    return {"log": ["plain"]}


# --- how many ---------------------------------------------------------------------------------------------------------


def test_the_steps_of_a_sequence_and_of_branches() -> None:
    world = World()
    inner = world.sequence("i1", "i2")
    assert world.steps(world.beside(long=inner, short=None, none=plain)) == {
        "long": (2, 3),
        "long|i1": (1, 3),
        "long|i2": (1, 2),
        "short": (1, 2),
        "none": (0, 1),
        "last": (1, 1),
    }


def test_a_choice_counts_as_its_longest_way() -> None:
    world = World()

    def choose(state: State) -> Literal["long", "last"]:
        return "last"

    builder = StateGraph(State)
    for name in ("first", "long", "last"):
        builder.add_node(name, world.ask(name))
    builder.add_edge(START, "first")
    builder.add_conditional_edges("first", choose)
    builder.add_edge("long", "last")
    assert world.steps(builder.compile()) == {"first": (1, 3), "long": (1, 2), "last": (1, 1)}


def test_branches_by_send_count_once() -> None:
    world = World()
    builder = StateGraph(State)
    for name in ("work", "last"):
        builder.add_node(name, world.ask(name))
    builder.add_conditional_edges(START, lambda _: [Send("work", {}) for _ in range(10)], ["work"])
    builder.add_edge("work", "last")
    assert world.steps(builder.compile()) == {"work": (1, 2), "last": (1, 1)}


def test_nothing_is_said_before_a_loop_and_the_truth_behind_it() -> None:
    world = World()

    def again(state: State) -> Literal["act", "last"]:
        return "last"

    builder = StateGraph(State)
    for name in ("act", "last"):
        builder.add_node(name, world.ask(name))
    builder.add_edge(START, "act")
    builder.add_conditional_edges("act", again)
    assert world.steps(builder.compile()) == {"act": (1, None), "last": (1, 1)}
    looped = builder.compile()
    around = world.beside(loop=looped, one=None)
    assert world.steps(around) == {
        "loop": (None, None),
        "loop|act": (1, None),
        "loop|last": (1, 2),
        "one": (1, 2),
        "last": (1, 1),
    }


def test_nothing_is_said_where_a_node_may_lead_anywhere() -> None:
    world = World()

    async def jump(state: State) -> Command[Any]:
        return Command(goto=state["log"][0])

    builder = StateGraph(State)
    builder.add_node("jump", jump)
    builder.add_node("act", world.ask("act"))
    builder.add_edge(START, "jump")
    assert world.steps(builder.compile()) == {"jump": (0, None), "act": (1, 1)}


def test_nothing_is_said_of_a_graph_that_runs_itself() -> None:
    world = World()
    graphs: list[Any] = []

    async def again(state: State) -> State:
        return await graphs[0].ainvoke(state)  # type: ignore[no-any-return]

    builder = StateGraph(State)
    builder.add_sequence([("act", world.ask("act")), ("again", again)])
    builder.add_edge(START, "act")
    graphs.append(builder.compile())
    assert world.steps(graphs[0]) == {"act": (1, None), "again": (None, None)}


@pytest.mark.parametrize("declared", [False, True])
def test_a_raced_node_is_a_step(*, declared: bool) -> None:
    world = World()
    settings: dict[str, Any] = {"unit": "node", "effect": Effect.READ_ONLY, "trigger": "total", "targets": ["a", "b"]}
    builder = StateGraph(State)
    if declared:
        builder.add_node("raced", plain, metadata={"agent_hedge": settings})
    else:
        builder.add_node("raced", world.hedger.node(plain, **settings))
    builder.add_edge(START, "raced")
    world.hedger.wrap_graph(builder)
    assert world.hedger._graphs.graphs._steps_of("raced", ()) == (1, 1)


def test_graphs_that_differ_about_a_node_say_nothing_of_it() -> None:
    world = World()
    world.hedger.explain(world.sequence("one", "two", "three"))
    graphs = world.hedger._graphs.graphs
    assert graphs._steps_of("two", ()) == (1, 2)
    world.hedger.explain(world.sequence("two", "three"))
    assert graphs._steps_of("two", ()) == (1, 2)
    world.hedger.explain(world.sequence("two", "four"))
    assert graphs._steps_of("two", ()) == (1, 2)
    world.hedger.explain(world.sequence("two"))
    assert graphs._steps_of("two", ()) == (None, None)


# --- a run whose steps nobody declared --------------------------------------------------------------------------------


def test_the_structure_of_a_graph_that_was_shown_is_planned_by() -> None:
    def delay(*, shown: bool, **settings: Any) -> float:
        world = World("two")
        graph = world.sequence("one", "two", "three")
        if shown:
            world.hedger.explain(graph)
        return world.run(graph, deadline=NEAR_S, **settings)["two"]

    assert delay(shown=False) == pytest.approx(STATIC_S)
    assert delay(shown=True) < STATIC_S / 2
    assert delay(shown=True) == pytest.approx(delay(shown=False, steps=3))


def test_a_model_that_was_not_seen_makes_no_plan() -> None:
    """The structure is wrong there: by it no step was to come."""
    world = World("hidden")
    model = weakref.ref(world.model)

    async def hidden(state: State) -> State:
        await model().ainvoke([HumanMessage("hidden")])  # type: ignore[union-attr]
        return {"log": ["hidden"]}

    builder = StateGraph(State)
    builder.add_sequence([("hidden", hidden), ("two", world.ask("two"))])
    builder.add_edge(START, "hidden")
    graph = builder.compile()
    assert world.steps(graph) == {"hidden": (0, 1), "two": (1, 1)}
    assert world.run(graph, deadline=NEAR_S)["hidden"] == pytest.approx(STATIC_S)


def test_an_estimate_never_makes_a_hedge_later_than_without_a_plan() -> None:
    """Where there is time to spare a declared number of steps does, for it is known."""
    world = World("two")
    graph = world.sequence("one", "two", "three")
    world.hedger.explain(graph)
    assert world.run(graph, deadline=FAR_S)["two"] == pytest.approx(STATIC_S)
    assert "two" not in World("two").run(World("two").sequence("one", "two", "three"), deadline=FAR_S, steps=3)


# --- which branch the run waits for -----------------------------------------------------------------------------------


def planned_in(graph_of: Callable[[World], Any], *stuck: str, **settings: Any) -> dict[str, bool]:
    """Return, of each stuck step, whether it was hedged by plan: long before `STATIC_S`, or then."""
    world = World(*stuck)
    graph = graph_of(world)
    world.hedger.explain(graph)
    delays = world.run(graph, deadline=NEAR_S, **settings)
    assert all(delays[node] < STATIC_S / 2 or delays[node] == pytest.approx(STATIC_S) for node in stuck)
    return {node: delays[node] < STATIC_S / 2 for node in stuck}


@pytest.mark.parametrize("settings", [{}, {"steps": 4}])
def test_a_branch_beside_a_longer_one_is_not_hedged_for_the_deadlines_sake(settings: dict[str, Any]) -> None:
    def graph(world: World) -> Any:
        return world.beside(short=None, long=world.sequence("i1", "i2", "i3"))

    assert planned_in(graph, "short", "i1", **settings) == {"short": False, "i1": True}


def test_the_branches_of_a_graph_that_was_wrapped() -> None:
    world = World("short", "i1")
    builder = world.beside(short=None, long=world.sequence("i1", "i2", "i3")).builder
    world.hedger.wrap_graph(builder)
    delays = world.run(builder.compile(), deadline=NEAR_S)
    assert delays["short"] == pytest.approx(STATIC_S)
    assert delays["i1"] < STATIC_S / 2


class Seeing:
    """A policy that hedges nothing and keeps what it was told of each node's step."""

    def __init__(self) -> None:
        self.seen: dict[str, Ahead | None] = {}

    def next_launch_at(self, view: RaceView) -> float | None:
        self.seen[view.key.node] = view.ahead
        return None


def test_branches_in_threads_are_told_too() -> None:
    """Sync nodes run in threads, and their races on the background loop."""
    policy = Seeing()
    with closing(Hedger(policy=policy)) as hedger:
        model = hedger.chat_model(Chat(), Chat(), family="scripted")
        both = threading.Barrier(2)

        def act(state: State) -> State:
            model.invoke("x")
            return {"log": []}

        def beside(state: State) -> State:
            both.wait(HUNG_S)
            act(state)
            both.wait(HUNG_S)
            return {"log": []}

        inner, builder = StateGraph(State), StateGraph(State)
        inner.add_sequence([("i1", beside), ("i2", act)])
        inner.add_edge(START, "i1")
        branches: dict[str, Any] = {"short": beside, "long": inner.compile()}
        for name, node in branches.items():
            builder.add_node(name, node)
            builder.add_edge(START, name)
        graph = builder.compile()
        hedger.explain(graph)
        with hedger.run(deadline=60.0):
            graph.invoke({"log": []})
    assert policy.seen == {"short": (1, False), "i1": (2, True), "i2": (1, True)}


def test_of_two_equal_branches_the_run_waits_for_both() -> None:
    def graph(world: World) -> Any:
        return world.beside(left=world.sequence("l1", "l2"), right=world.sequence("r1", "r2"))

    assert planned_in(graph, "l1", "r2") == {"l1": True, "r2": True}


def test_a_branch_within_a_branch() -> None:
    """All of a subgraph that stands beside a longer one has time to spare, its own longest path too."""

    def graph(world: World) -> Any:
        inner = world.beside(i1=world.sequence("j1", "j2"), i2=None)
        return world.beside(inner=inner, long=world.sequence("k1", "k2", "k3", "k4"))

    assert planned_in(graph, "j1", "i2", "k1") == {"j1": False, "i2": False, "k1": True}


def test_a_branch_that_is_the_last_to_run_is_waited_for() -> None:
    """The other one was longer, but has ended: the second step of the node that was beside it is planned."""
    world = World("again")

    async def twice(state: State) -> State:
        await asyncio.sleep(3 * USUAL_S)
        await world.model.ainvoke([HumanMessage("again")])
        return {"log": ["twice"]}

    graph = world.beside(twice=twice, long=world.sequence("i1", "i2"))
    world.hedger.explain(graph)
    assert world.run(graph, deadline=NEAR_S)["twice"] < STATIC_S / 2


def test_a_path_that_ends_sooner_has_no_time_to_spare() -> None:
    """LangGraph waits for every task of a superstep, so what comes after this one tells nothing of its branches."""
    world = World("b1")
    builder = StateGraph(State)
    for name in ("a1", "a2", "a3", "b1"):
        builder.add_node(name, world.ask(name))
    for start, end in [(START, "a1"), ("a1", "a2"), ("a2", "a3"), (START, "b1"), ("a3", END), ("b1", END)]:
        builder.add_edge(start, end)
    graph = builder.compile()
    world.hedger.explain(graph)
    delay = world.run(graph, deadline=NEAR_S)["b1"]
    assert delay < STATIC_S / 2
    begun = {e.key.node: e.at for e in world.events if isinstance(e, AttemptStarted) and e.attempt.number == 0}
    assert begun["a2"] - begun["b1"] > delay > USUAL_S - 0.1  # a2 did not begin when a1 had ended
