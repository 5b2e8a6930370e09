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
"""Runs remembered at one time; the longest unused is forgotten first."""

OpenRun = Callable[..., Run]


class _Open:
    __slots__ = ("control", "run")

    def __init__(self, run: Run, control: object) -> None:
        self.run = run
        self.control = control
        """Kept alive, so that its identity does not come back."""


class Seeds:
    """The runs opened by configuration. Callable from any thread."""

    def __init__(self, open_run: OpenRun) -> None:
        self._open_run = open_run
        self._runs: OrderedDict[str, _Open] = OrderedDict()
        self._lock = threading.Lock()

    def run_for(self, config: Mapping[str, Any], *, resumed: bool) -> Run | None:
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
            known = self._runs.get(name)
            if known is None or not _goes_on(known, control, resumed):
                if known is not None and known.run.record is not None:
                    known.run.record.close()
                known = self._runs[name] = _Open(self._opened(seed, where, resumed), control)
            self._runs.move_to_end(name)
            if len(self._runs) > LIMIT:
                self._runs.popitem(last=False)
            return known.run

    def paused(self, run: Run) -> None:
        """The graph of this run stops to wait for a human: the clock stands still from now on."""
        with self._lock:
            for known in self._runs.values():
                if known.run is run:
                    run.pause()

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


def is_declaration(value: object) -> bool:
    """Whether this is what a node declares in its own metadata (`wrap_graph`), and not a run's settings."""
    return isinstance(value, Mapping) and "unit" in value


def _goes_on(known: _Open, control: object, resumed: bool) -> bool:
    """Whether this invocation belongs to the run that is known under its key."""
    if known.control is control:
        return True
    if not resumed:
        return False
    known.control = control
    known.run.go_on()
    return True


def _known() -> str:
    return ", ".join(SETTINGS)
