"""Keeps the plans of runs: builds tables off the run loop, looks delays up in O(1), drives the price.

It is a gate too, because a gate hears of every attempt: it measures what a step takes beside its first token (decode
and tools), counts the hedges of each step for the price, and refuses nothing.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from agent_hedge.core.ports import LatencyBook, Permit, Planned, RaceView, Refused, RunView
from agent_hedge.core.race import PASS
from agent_hedge.core.step import Attempt, Ended, Role, StepKey
from agent_hedge.planning.price import Price
from agent_hedge.planning.steps import Lengths

if TYPE_CHECKING:
    from agent_hedge.planning.table import Table

NEEDED = 2_000
"""Latencies without which no table is built: from 500 samples the worst table loses to a static trigger."""
FRESH_S = 30.0
"""How long a table is used before it is built again: a slice of the latency window."""
WORK_S = 0.0007
"""How long a table is built before the event loop is let in."""
BREATH_S = 0.0005
"""For how long: a thread of short numpy calls that does not let go takes the interpreter back before the event loop
has woken up, for 5 ms at a time."""
LONGEST = 60
"""Rows of a table of known length. A run with more steps left is hedged as one without a plan."""
_PRIMARY = Role.PRIMARY
_FOREVER = math.inf


class Breath:
    """Lets the event loop have the interpreter now and then while a table is built in another thread."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since >= WORK_S:
            time.sleep(BREATH_S)
            self._since = time.perf_counter()


class Steps(Protocol):
    """A distribution of seconds as a step function (a Kaplan-Meier curve of the latency book)."""

    @property
    def values(self) -> Sequence[float]: ...
    @property
    def reached(self) -> Sequence[float]: ...
    @property
    def samples(self) -> int: ...


class Curves(Protocol):
    """Where distributions come from."""

    def long_curve(self, key: StepKey, target: str, now: float) -> Steps | None: ...


class _Key(NamedTuple):
    step: StepKey
    target: str
    graph: str | None
    """None where the number of steps is declared or known from the graph: then one table serves every length."""


class _Plan:
    """A table, and when it was last asked for."""

    __slots__ = ("asked_at", "table")

    def __init__(self) -> None:
        self.table: Table | None = None
        self.asked_at = -math.inf


def path(run: RunView) -> int:
    """Return the steps begun so far on the longest path through the run: parallel branches count once."""
    return run.steps - run.beside


def planned(table: Table, run: RunView, slack: float, price: float, left: int | None = None) -> Planned | None:
    """Return the delay of the run's present step, with `slack` seconds to its deadline; never at an infinite price.

    `left`: the steps left, this one included, as the structure of a graph has them; the declared number comes first.
    None where that is more than the table has. Without either the table is one of learnt lengths.
    """
    if price == _FOREVER:
        return Planned(_FOREVER, False, slack)
    declared, begun = run.declared_steps, path(run)
    if declared is not None:
        left = declared - begun + 1
    if left is None:
        row, left = begun - 1, table.steps - begun + 1
    elif left > table.steps:
        return None
    else:
        row = left - 1
    return Planned(table.delay(row, slack, price, table.purse(run.hedges_left, left)), declared is None, slack)


class Planner:
    """Implements the `PlanView` and `Gate` ports.

    `first_tokens` and `rest` give and take distributions of seconds; `off_loop` runs a job in the background.
    """

    def __init__(
        self,
        first_tokens: Curves,
        rest: LatencyBook,
        rest_curves: Curves,
        price: Price,
        off_loop: Callable[[Callable[[], None]], None],
    ) -> None:
        self.price = price
        self._first_tokens = first_tokens
        self._rest = rest
        self._rest_curves = rest_curves
        self._off_loop = off_loop
        self._plans: dict[_Key, _Plan] = {}
        self._lengths: dict[str, Lengths] = {}
        self._lock = threading.Lock()
        self._one_at_a_time = threading.Lock()
        """Tables that are due together, one for each step and target, must not crowd the run loop out."""
        self._asked = False

    # --- reading --------------------------------------------------------------------------------------------------

    def delay(self, view: RaceView) -> Planned | None:
        """Return the planned delay of the step in `view`; None where no plan can be made, or the run is late.

        None, too, on a branch that the run will not have to wait for: hedging it early would bring the end no nearer.
        The run's deadline counts, and not a sooner time-out of the step: that says nothing about the steps to come.
        """
        self._asked = True
        run = view.run
        if run is None or (remaining := run.remaining) <= 0:
            return None
        slack = remaining + view.now - view.started_at
        left: int | None = None
        graph: str | None = None
        if (ahead := view.ahead) is not None:
            if not ahead.critical:
                return None
            left = ahead.left
        if run.declared_steps is None:
            if self._known(run.graph) and (run.graph or left is None):
                graph, left = run.graph, None
            elif left is None:
                return None
        plan = self._plan(_Key(view.key, view.last_target, graph), view.now)
        if plan.table is None:
            return None
        return planned(plan.table, run, slack, self.price.value, left)

    def ended(self, run: RunView) -> None:
        """Hear of a run that has come to its end: its length is learnt."""
        with self._lock:
            self._lengths.setdefault(run.graph, Lengths()).add(path(run))

    def _known(self, graph: str) -> bool:
        lengths = self._lengths.get(graph)
        return lengths is not None and lengths.known

    def _plan(self, key: _Key, now: float) -> _Plan:
        plan = self._plans.get(key)
        if plan is None:
            with self._lock:
                plan = self._plans.setdefault(key, _Plan())
        if now - plan.asked_at >= FRESH_S:
            plan.asked_at = now
            self._off_loop(lambda: self._build(key, plan, now))
        return plan

    def _build(self, key: _Key, plan: _Plan, now: float) -> None:
        with self._one_at_a_time:
            table = self._table(key, now)
        if table is not None:
            plan.table = table

    def _table(self, key: _Key, now: float) -> Table | None:
        from agent_hedge.planning.distribution import Distribution
        from agent_hedge.planning.table import build

        curve = self._first_tokens.long_curve(key.step, key.target, now)
        if curve is None or curve.samples < NEEDED:
            return None
        rest = self._rest_curves.long_curve(key.step, "", now)
        hazards, steps = None, LONGEST
        if key.graph is not None:
            with self._lock:
                hazards = self._lengths[key.graph].hazards()
            steps = len(hazards)
        return build(
            Distribution.of_curve(curve.values, curve.reached),
            None if rest is None else Distribution.of_curve(rest.values, rest.reached),
            steps=steps,
            hazards=hazards,
            price=self.price.value,
            breathe=Breath(),
        )

    # --- hearing --------------------------------------------------------------------------------------------------

    def admit(self, attempt: Attempt, view: RaceView) -> Permit | Refused:
        """Always a yes; the permit of a primary hears when the step has spoken and how many hedges it took.

        Nobody is listened to before a policy has asked for a plan: it would cost every call some 5 us.
        """
        run = view.run
        if run is None or not self._asked:
            return PASS
        if attempt.role is not _PRIMARY:
            return _Speaks(run, view)
        between = run.begin(view, view.now)
        if between is not None and between > 0:
            self._rest.record(view.key, "", between, view.now)
        return _Primary(run, view, self.price)


class _Speaks:
    """The permit of an attempt: it tells the run when its step has spoken, or never will."""

    __slots__ = ("_run", "_view")

    def __init__(self, run: RunView, view: RaceView) -> None:
        self._run = run
        self._view = view

    def committed(self, *, at: float) -> None:
        self._run.spoke(self._view, at)

    def settle(self, end: Ended, *, at: float) -> None:
        if self._view.winner is None and self._view.in_flight == 0:
            self._run.spoke(self._view, None)


class _Primary(_Speaks):
    """The permit of a primary: its end is when the hedges of its step are counted for the price."""

    __slots__ = ("_price",)

    def __init__(self, run: RunView, view: RaceView, price: Price) -> None:
        super().__init__(run, view)
        self._price = price

    def settle(self, end: Ended, *, at: float) -> None:
        super().settle(end, at=at)
        view = self._view
        if end.launched and view.effect.repeatable and view.barred is None and len(view.candidates) > 1:
            self._price.observe(view.hedges)
