"""Races for observers: scripted ones on a heap, and hand-made settings around an observer under test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any, TypeVar

from agent_hedge.core.ports import Observer
from agent_hedge.core.scope import Run
from agent_hedge.testing.scenario import Line, Scenario
from agent_hedge.testing.simulator import simulate

T = TypeVar("T")
START = 1000.0
"""The run loop's clock at the start of a scripted race."""
WALL = 1_700_000_000.0


class IdlePortal:
    """A portal on which nothing ever runs: rows are shipped when a test says so."""

    def __init__(self) -> None:
        self.started: list[Callable[[], Awaitable[object]]] = []

    def call(self, work: Callable[[], Awaitable[T]]) -> T:
        raise NotImplementedError

    def iterate(self, generate: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        raise NotImplementedError

    def start(self, work: Callable[[], Awaitable[object]]) -> None:
        self.started.append(work)


def play(observer: Observer, *lines: Line | tuple[Any, ...], start: float = START, **settings: Any) -> Any:
    """Run a scripted race (see `Scenario`) with this observer listening; return what the caller gets."""
    key = settings.pop("key", None)
    scenario = Scenario(*lines, **settings)
    race = scenario.race(start)
    race.key = key or race.key

    def observe(event: Any) -> None:
        scope = observer.on_event(event)
        if scope is not None:
            with scope:
                pass

    outcome, _ = simulate(race, scenario.line, start=start, accept=scenario.accept, observe=observe)
    return outcome


def a_run(key: str = "run", **settings: Any) -> Run:
    return Run(key, clock=lambda: START, **settings)
