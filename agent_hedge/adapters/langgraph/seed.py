"""Runs opened by configuration, where no code can open them: on a LangGraph server (DESIGN 5.14).

``configurable={"agent_hedge": {"deadline_s": 30, "extra_attempts": 3, "run_key": "..."}}``, or the same under
``metadata``. The first wrapped node, or the first hedged model, of an invocation opens the run; every other one of that
invocation finds it again: subgraphs, `Send` branches and threads see the same `RunControl`.

A run key names generations: the same key goes on with a run where LangGraph resumes; other input starts the next
generation, with a fresh deadline and purse. Time spent waiting for a human does not count.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from agent_hedge.adapters.langgraph.context import goes_on, is_resumed
from agent_hedge.adapters.langgraph.private import RUNTIME
from agent_hedge.core.scope import Run
from agent_hedge.errors import ConfigurationError

CARRIER = "agent_hedge"
"""The key of `configurable` and `metadata` that run settings, and a node's declaration, stand under."""

SETTINGS: Mapping[str, str] = {
    "deadline_s": "deadline",
    "extra_attempts": "extra_attempts",
    "run_key": "key",
    "steps": "steps",
    "tokens": "tokens",
    "cost": "cost",
    "tenant": "tenant",
    "principal": "principal",
    "priority": "priority",
}
"""What may be said of a run, and the argument of `Hedger.run` that it is."""

LIMIT = 4096
"""Runs, and invocations, remembered at one time; the longest unused is forgotten first."""

OpenRun = Callable[..., Run]


class Asked:
    """A run that configuration asks for."""

    __slots__ = ("_left_at", "run")

    def __init__(self, run: Run) -> None:
        self.run = run
        self._left_at: float | None = None

    def left(self, *, waits: bool) -> None:
        """A node of the run has ended; where its graph `waits` for a human, the clock stands still from now on."""
        self._left_at = self.run.clock()
        if waits:
            self.run.pause()

    def go_on(self) -> None:
        """Another invocation resumes the run: the clock has stood still since the last node of the one before.

        A second one beside it finds the clock running.
        """
        self.run.pause(self._left_at)
        self.run.go_on()
        self._left_at = None


class Seeds:
    """The runs opened by configuration. Callable from any thread."""

    def __init__(self, open_run: OpenRun) -> None:
        self._open_run = open_run
        self._latest: OrderedDict[str, Asked] = OrderedDict()
        """By run key: what a resume goes on with."""
        self._invocations: OrderedDict[tuple[str, int], tuple[object, Asked]] = OrderedDict()
        """By run key and invocation: two may be under way under one key. What names an invocation is kept alive, so
        that its identity does not come back."""
        self._lock = threading.Lock()

    def run_for(self, config: Mapping[str, Any]) -> Asked | None:
        """Return the run that this configuration asks for, opened at its first use; None where it asks for none.

        Raises `ConfigurationError` for settings that cannot be meant.
        """
        configurable = config.get("configurable") or {}
        where, seed = "configurable", configurable.get(CARRIER)
        if seed is None:
            where, seed = "metadata", (config.get("metadata") or {}).get(CARRIER)
            if seed is None or is_declaration(seed):
                return None
        control = getattr(configurable.get(RUNTIME), "control", None)
        name = str(seed.get("run_key") or f"#{id(control)}") if isinstance(seed, Mapping) else ""
        with self._lock:
            here = (name, id(control))
            if here in self._invocations:
                self._invocations.move_to_end(here)
                return self._invocations[here][1]
            resumed = is_resumed(configurable) or goes_on(configurable)
            asked = self._latest.get(name)
            if asked is not None and resumed:
                asked.go_on()
            else:
                before, asked = asked, Asked(self._opened(seed, where, resumed))
                _close(before)
            self._latest[name] = asked
            self._latest.move_to_end(name)
            self._invocations[here] = (control, asked)
            if len(self._latest) > LIMIT:
                _close(self._latest.popitem(last=False)[1])
            if len(self._invocations) > LIMIT:
                self._invocations.popitem(last=False)
            return asked

    def _opened(self, seed: object, where: str, resumed: bool) -> Run:
        if not isinstance(seed, Mapping):
            raise ConfigurationError(f'{where}["{CARRIER}"] must be a mapping of {_known()}, got {seed!r:.80}')
        if unknown := [str(name) for name in seed if name not in SETTINGS]:
            raise ConfigurationError(f'{where}["{CARRIER}"] knows {_known()}, got {", ".join(unknown):.80}')
        try:
            settings = {SETTINGS[name]: value for name, value in seed.items()}
            return self._open_run(**settings, resume=resumed if settings.get("key") else None)
        except ConfigurationError as error:
            raise ConfigurationError(f'{where}["{CARRIER}"]: {error}') from None


def _close(asked: Asked | None) -> None:
    """Write a run for the last time, where it is kept in a store."""
    if asked is not None and asked.run.record is not None:
        asked.run.record.close()


def is_declaration(value: object) -> bool:
    """Whether this is what a node declares in its own metadata (`wrap_graph`), and not a run's settings."""
    return isinstance(value, Mapping) and "unit" in value


def _known() -> str:
    return ", ".join(SETTINGS)
