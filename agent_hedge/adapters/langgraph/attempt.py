"""One attempt of a raced node: its own configuration, behind its own gate (R8)."""

from __future__ import annotations

import asyncio
import copy
import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import anyio
from langchain_core.callbacks.manager import ahandle_event
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel.protocol import StreamProtocol
from langgraph.runtime import Runtime
from pydantic import BaseModel

from agent_hedge.adapters.langgraph.gate import Gate
from agent_hedge.adapters.langgraph.gated_callbacks import gated_manager, is_watched
from agent_hedge.adapters.langgraph.gated_state import FencedStore, HeldSaver, claim
from agent_hedge.adapters.langgraph.private import CALL, CHECKPOINTER, RUNTIME, SCRATCHPAD, SEND, STREAM
from agent_hedge.adapters.langgraph.probe import IsMeaningful, Probe, Speaker, StreamingProbe, ToolFence
from agent_hedge.core.ports import EffectSource
from agent_hedge.core.scope import ActiveAttempt

Config = dict[str, Any]
COUNTERS = ("call_counter", "interrupt_counter", "subgraph_counter")
"""Of a task's scratchpad: they name its calls, interrupts and subgraphs, and each attempt counts from the start."""


def overrides_of(active: ActiveAttempt) -> Mapping[str, Any]:
    """Return what the attempt's target puts into `configurable`: a target's member may be a mapping of that."""
    member = getattr(active.target, "member", None)
    return member if isinstance(member, Mapping) else {}


def directed(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> Config:
    """Return the configuration with a target's overrides."""
    return {**config, "configurable": {**(config.get("configurable") or {}), **overrides}}


class GatedAttempt:
    """The configuration of one attempt whose race is undecided, and what becomes of what it shows."""

    def __init__(
        self,
        config: Mapping[str, Any],
        active: ActiveAttempt,
        *,
        effects: EffectSource,
        is_meaningful: IsMeaningful,
        first: Callable[[Any], bool] | None,
        may_stream: bool,
    ) -> None:
        self._active = active
        self._gate = gate = Gate(active)
        self._first = first
        self._speak = Speaker(active)
        self._probe = (StreamingProbe if may_stream else Probe)(self._speak, is_meaningful)
        self._watched = is_watched(config.get("callbacks"))
        self._scratchpad = (config.get("configurable") or {}).get(SCRATCHPAD)
        self._counters: dict[str, itertools.count[int]] = {}
        self.config = directed(config, {**overrides_of(active), **self._channels(config.get("configurable") or {})})
        self.config["metadata"] = dict(config.get("metadata") or {})
        self.config["callbacks"] = gated_manager(
            config.get("callbacks"), gate, (self._probe, ToolFence(active, effects))
        )

    def _channels(self, configurable: Mapping[str, Any]) -> Config:
        gate, active = self._gate, self._active
        own: Config = {}
        if (send := configurable.get(SEND)) is not None:
            own[SEND] = gate.wrap(send)
        if (stream := configurable.get(STREAM)) is not None:
            own[STREAM] = StreamProtocol(gate.wrap(stream), stream.modes)
        if (call := configurable.get(CALL)) is not None:

            @functools.wraps(call)  # the ledger finds the graph around the node through it
            def fenced_call(*args: Any, **kwargs: Any) -> Any:
                claim(active, "A task")
                return call(*args, **kwargs)

            own[CALL] = fenced_call
        if isinstance(saver := configurable.get(CHECKPOINTER), BaseCheckpointSaver):
            own[CHECKPOINTER] = HeldSaver(saver, gate)
        if isinstance(runtime := configurable.get(RUNTIME), Runtime):
            store = FencedStore(runtime.store, active) if runtime.store is not None else None
            own[RUNTIME] = runtime.override(stream_writer=self._writer(runtime), store=store)
        if self._scratchpad is not None:
            self._counters = {name: itertools.count() for name in COUNTERS}
            own[SCRATCHPAD] = replace(
                self._scratchpad, **{name: counter.__next__ for name, counter in self._counters.items()}
            )
        return own

    def _writer(self, runtime: Runtime[Any]) -> Callable[[Any], None]:
        gated, first = self._gate.wrap(runtime.stream_writer), self._first
        if first is None and not self._watched:
            return gated

        def watched(chunk: Any) -> None:
            gated(chunk)
            if self._watched:
                runtime.heartbeat()
            if first is not None and first(chunk):
                self._speak()

        return watched

    async def open(self) -> None:
        """The attempt has won: show what it has held back, and what is still to come."""
        await self._gate.open()

    def settle(self) -> None:
        """The attempt has won and ended: what follows in this task counts on from where it stopped."""
        for name, counter in self._counters.items():
            for _ in range(next(counter)):
                getattr(self._scratchpad, name)()

    async def close_runs(self) -> None:
        """The attempt was cancelled: tell whoever heard a model run start that it has ended."""
        handlers = list(self.config["callbacks"].inheritable_handlers)
        with anyio.CancelScope(shield=True):
            for run_id, parent in dict(self._probe.open_runs).items():
                error = asyncio.CancelledError()
                await ahandle_event(handlers, "on_llm_error", "ignore_llm", error, run_id=run_id, parent_run_id=parent)


def isolated(state: Any) -> Any:
    """Return a copy of a node's input as deep as its containers: attempts must not see each other's changes.

    The fields of a Pydantic or dataclass state count as such. What else is in them, messages too, is shared.
    """
    known: dict[int, Any] = {}
    names = _fields(state)
    if not names:
        return _copied(state, known)
    own = known[id(state)] = copy.copy(state)
    for name in names:
        object.__setattr__(own, name, _copied(getattr(state, name), known))  # also of a frozen one
    return own


def _fields(state: Any) -> list[str]:
    if isinstance(state, BaseModel):
        return list(type(state).model_fields)
    if is_dataclass(state) and not isinstance(state, type):
        return [field.name for field in fields(state) if hasattr(state, field.name)]
    return []


def _copied(value: Any, known: dict[int, Any]) -> Any:
    """Copy containers all the way down; `known` holds the copies made so far, since one may hold itself."""
    if not isinstance(value, dict | list | set) and type(value) is not tuple:
        return value
    if id(value) in known:
        return known[id(value)]
    if isinstance(value, tuple):
        return tuple(_copied(item, known) for item in value)
    own = known[id(value)] = copy.copy(value)
    if isinstance(own, dict):
        own.update([(key, _copied(item, known)) for key, item in own.items()])
    elif isinstance(own, list):
        own[:] = [_copied(item, known) for item in own]
    return own
