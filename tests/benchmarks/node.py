"""Acceptance D6 of issue 5: what a wrapped node costs without a hedge, beside the plain node, in one process.

    python -m tests.benchmarks.node [--json]

A chain of 50 async nodes, `ainvoke` without a checkpointer; process CPU time per step, the median of interleaved
repeats. LangGraph itself takes about 176 us a step. Exit code 1 when a wrapped node costs more than the bound.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from agent_hedge import Effect, Hedger

STEPS, REPEATS, WARM = 50, 60, 5
BOUND_US = 30.0


class State(TypedDict):
    n: int


async def plus_one(state: State) -> State:
    return {"n": state["n"] + 1}


def chain(wrap: Callable[[Any], Any], wrap_graph: Callable[[Any], Any] = lambda builder: builder) -> Any:
    """Return a compiled chain of `STEPS` nodes."""
    builder: StateGraph[Any, Any, Any, Any] = StateGraph(State)
    names = [f"n{index}" for index in range(STEPS)]
    for name in names:
        builder.add_node(name, wrap(plus_one))
    for before, after in zip([START, *names], names, strict=False):
        builder.add_edge(before, after)
    return wrap_graph(builder).compile()


async def cpu_us(graph: Any) -> float:
    """Return the CPU microseconds of one step."""
    start = time.process_time()
    result = await graph.ainvoke({"n": 0}, {"recursion_limit": STEPS + 1})
    assert result == {"n": STEPS}
    return (time.process_time() - start) / STEPS * 1e6


async def measure() -> dict[str, float]:
    hedger = Hedger()
    graphs = {
        "plain": chain(lambda action: action),
        "entered": chain(lambda action: action, hedger.wrap_graph),  # the plain nodes of a graph that was wrapped
        "wrapped": chain(hedger.node),
        "raced": chain(lambda action: hedger.node(action, unit="node", effect=Effect.READ_ONLY, trigger="total")),
    }
    times: dict[str, list[float]] = {name: [] for name in graphs}
    async with hedger.run(deadline=600.0):
        for graph in graphs.values():
            for _ in range(WARM):
                await cpu_us(graph)
        for _ in range(REPEATS):
            for name, graph in graphs.items():
                times[name].append(await cpu_us(graph))
    return {name: statistics.median(found) for name, found in times.items()}


def main() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nothing is hedged in these nodes, and that is meant
        figures = asyncio.run(measure())
    extra = figures["wrapped"] - figures["plain"]
    met = extra <= BOUND_US
    if "--json" in sys.argv:
        print(json.dumps({"us_per_step": figures, "extra_us": extra, "met": met}))
    else:
        for name, value in figures.items():
            print(f"{name:8s} {value:8.1f} us CPU per step")
        print(f"a wrapped node costs {extra:.1f} us more (bound {BOUND_US:.0f})")
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
