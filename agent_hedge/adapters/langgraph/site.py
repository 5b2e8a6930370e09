"""Where a tool call stands in LangGraph: the graphs around it, and the messages that led to it.

LangGraph shows a node its own graph only. The way up leads over the loop that schedules the node's tasks: its
configuration is that of the node it runs in. So the parent chain is made of what stays the same when a step runs again
(node, step, path), and every level tells its executions and its retries apart.
"""

from __future__ import annotations

import math
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables.config import var_child_runnable_config

from agent_hedge.adapters.langgraph.private import (
    CALL,
    CHECKPOINT_MAP,
    CHECKPOINTER,
    DURABILITY,
    READ,
    RUNTIME,
    TASK_ID,
    channels_of,
    loop_of,
)
from agent_hedge.core.scope import current_run
from agent_hedge.core.stores import Claim
from agent_hedge.tools.site import Frame, Site

MARK = "@"
"""Begins the call id of a claim that no message names; the checkpoint its step came from follows."""
_DEPTH = 32
_STEPS = 1_000
"""Checkpoints that are looked through for the one an earlier call came from."""
_UUID6_EPOCH = 0x01B21DD213814000
"""100 ns intervals between 1582-10-15 and 1970-01-01 (RFC 9562)."""

_tokens: WeakKeyDictionary[object, str] = WeakKeyDictionary()


def here(call_id: str = "") -> Site:
    """Return where the running code stands: in a node of LangGraph, in a run, in both or in neither."""
    config = var_child_runnable_config.get() or {}
    conf = config.get("configurable") or {}
    run = current_run()
    named = run
    while named is not None and not named.key and named.parent is not None:
        named = named.parent
    history, siblings = _history(conf, call_id)
    return Site(
        run_key=named.key if named else "",
        generation=named.generation if named else 0,
        thread=str(conf.get("thread_id") or ""),
        tenant=run.tenant if run else "",
        principal=run.principal if run else "",
        call_id=call_id,
        frames=tuple(_frames(config)),
        durability=_durability(conf),
        persistent=conf.get(CHECKPOINTER) is not None,
        history=history,
        siblings=siblings,
        remaining=run.remaining if run else math.inf,
        born=_born(conf),
    )


def in_a_node() -> bool:
    """Whether the running code is inside a node or task of LangGraph."""
    config = var_child_runnable_config.get() or {}
    return "langgraph_node" in (config.get("metadata") or {})


def root_checkpoint() -> str:
    """Return the id of the checkpoint that the root graph's step came from, or an empty string."""
    conf = (var_child_runnable_config.get() or {}).get("configurable") or {}
    return str((conf.get(CHECKPOINT_MAP) or {}).get("", ""))


def kept(missing: Sequence[Claim]) -> list[str]:
    """Return the keys of unnamed claims whose step lies behind this one in the checkpointer."""
    saver, config, wanted = _lineage(missing)
    found: set[str] = set()
    for _ in range(_STEPS if wanted else 0):
        try:
            found_here = saver.get_tuple(config)
        except Exception:
            break
        config = _parent(found_here)
        if config is None or not _step_back(config, wanted, found):
            break
    return [claim.effect_key for claim in missing if _origin(claim) in found]


async def akept(missing: Sequence[Claim]) -> list[str]:
    """Like `kept`, with the checkpointer's asynchronous methods."""
    saver, config, wanted = _lineage(missing)
    found: set[str] = set()
    for _ in range(_STEPS if wanted else 0):
        try:
            found_here = await saver.aget_tuple(config)
        except Exception:
            break
        config = _parent(found_here)
        if config is None or not _step_back(config, wanted, found):
            break
    return [claim.effect_key for claim in missing if _origin(claim) in found]


def _lineage(missing: Sequence[Claim]) -> tuple[Any, Any, set[str]]:
    conf = (var_child_runnable_config.get() or {}).get("configurable") or {}
    wanted = {_origin(claim) for claim in missing} - {""}
    root = {"thread_id": conf.get("thread_id"), "checkpoint_ns": "", "checkpoint_id": root_checkpoint()}
    saver = conf.get(CHECKPOINTER)
    return saver, {"configurable": root}, wanted if saver is not None and root_checkpoint() else set()


def _parent(found: Any) -> Any:
    return getattr(found, "parent_config", None)


def _step_back(config: Any, wanted: set[str], found: set[str]) -> bool:
    """Note an ancestor; tell whether an older one can still be wanted (ids are ordered by time)."""
    ancestor = str((config.get("configurable") or {}).get("checkpoint_id", ""))
    if ancestor in wanted:
        found.add(ancestor)
    return bool(ancestor) and found != wanted and ancestor > min(wanted)


def _origin(claim: Claim) -> str:
    return claim.call_id.removeprefix(MARK).partition("/")[0] if claim.call_id.startswith(MARK) else ""


def _frames(config: Mapping[str, Any]) -> list[Frame]:
    frames: list[Frame] = []
    for _ in range(_DEPTH):
        conf, metadata = config.get("configurable") or {}, config.get("metadata") or {}
        if "langgraph_node" not in metadata or TASK_ID not in conf:
            break
        loop = loop_of(conf.get(CALL))
        runtime = conf.get(RUNTIME)
        info = getattr(runtime, "execution_info", None)
        frames.append(
            Frame(
                execution=_token(loop or getattr(runtime, "control", None)),
                node=str(metadata["langgraph_node"]),
                step=int(metadata.get("langgraph_step", 0)),
                path=str(metadata.get("langgraph_path", "")),
                task=str(conf[TASK_ID]),
                attempt=int(getattr(info, "node_attempt", 1)),
            )
        )
        config = getattr(loop, "config", None) or {}
    return frames[::-1]


def _token(owner: object | None) -> str:
    """Return a name for one execution of a graph, unique in this process; an unknown one is like no other."""
    if owner is None:
        return secrets.token_hex(8)
    try:
        return _tokens.setdefault(owner, secrets.token_hex(8))
    except TypeError:
        return f"object {id(owner)}"


def _durability(conf: Mapping[str, Any]) -> str:
    return str(conf.get(DURABILITY) or ("async" if TASK_ID in conf else ""))


def _history(conf: Mapping[str, Any], call_id: str) -> tuple[dict[str, int], frozenset[str]]:
    """Return how often each call id occurs in the state, and the ids that were asked for together with this one."""
    asked: Counter[str] = Counter()
    answered: Counter[str] = Counter()
    siblings: frozenset[str] = frozenset()
    for message in _messages(conf):
        if isinstance(message, AIMessage):
            ids = [str(call.get("id") or "") for call in message.tool_calls]
            asked.update(ids)
            if call_id and call_id in ids:
                siblings = frozenset(ids) - {""}
        elif isinstance(message, ToolMessage):
            answered[str(message.tool_call_id)] += 1
    return dict(asked | answered), siblings


def _messages(conf: Mapping[str, Any]) -> Iterable[object]:
    read: Any = conf.get(READ)
    try:
        state = read(channels_of(read))
    except Exception:
        return
    for value in state.values() if isinstance(state, Mapping) else ():
        if isinstance(value, list | tuple):
            yield from value


def _born(conf: Mapping[str, Any]) -> float:
    """Return the epoch of the checkpoint that the root graph's step came from (its id is a UUID of version 6)."""
    checkpoints = conf.get(CHECKPOINT_MAP) or {}
    try:
        value = UUID(str(checkpoints[""])).int
    except (KeyError, ValueError, TypeError):
        return math.inf
    if (value >> 76) & 0xF != 6:
        return math.inf
    return float(((((value >> 80) << 12) | ((value >> 64) & 0xFFF)) - _UUID6_EPOCH) / 1e7)
