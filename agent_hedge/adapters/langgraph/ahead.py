"""How many LLM steps a node still has before it, and whether the run may have to wait for its branch.

The number comes from the graph's structure: a node that holds hedged models, or is raced, counts as one step, a
subgraph as its longest path. It is exact where the graph has no loop, no node asks a model twice, and no branch of
several supersteps runs beside a longer node; elsewhere it is an estimate, and where a loop is ahead there is none.

LangGraph begins the next superstep when all tasks of this one have ended. So of two branches it is not the paths to the
end that tell which one is waited for, but what each does within the superstep: a node of one step beside a subgraph of
three has time to spare, a node of one step beside another of one step has none, whatever comes after.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from agent_hedge.adapters.langgraph.context import DEPTH, NODE, names_around
from agent_hedge.adapters.langgraph.private import CALL, loop_of, unfinished
from agent_hedge.core.step import Ahead


class Steps(NamedTuple):
    """LLM steps of one node, on its longest path; None: not known."""

    own: int | None
    left: int | None
    """From its beginning to the end of the run, its own included."""


StepsOf = Callable[[str, tuple[str, ...]], Steps]
"""Returns the steps of a node: its name, the names of the nodes around it."""

UNKNOWN = Steps(None, None)


def agreed(known: Sequence[Steps]) -> Steps:
    """Return what is known of a node that several graphs have: where they differ, nothing."""
    return known[0] if known and known.count(known[0]) == len(known) else UNKNOWN


def ahead_of(config: Mapping[str, Any], steps_of: StepsOf) -> Ahead | None:
    """Return what the graphs around this node's configuration say of its step; None where they say nothing."""
    own, left = _node(config, steps_of)
    critical = _critical(config, steps_of)
    return Ahead(left if own else None, critical) if left is not None or not critical else None


def _node(config: Mapping[str, Any], steps_of: StepsOf) -> Steps:
    metadata = config["metadata"]
    return steps_of(metadata[NODE], names_around(str(metadata.get("langgraph_checkpoint_ns", ""))))


def _critical(config: Mapping[str, Any], steps_of: StepsOf) -> bool:
    """Whether no task beside this one, or beside one of those around it, has more steps.

    Whole tasks are compared: how far the others have come is not known.
    """
    for _ in range(DEPTH):
        metadata, conf = config.get("metadata") or {}, config.get("configurable") or {}
        loop = loop_of(conf.get(CALL))
        if NODE not in metadata or loop is None:
            return True
        own = _node(config, steps_of).own
        if own:  # (a node whose steps were not seen may be the longest)
            around = names_around(str(metadata.get("langgraph_checkpoint_ns", "")))
            for name in unfinished(loop):
                if (steps_of(name, around).own or 0) > own:
                    return False
        config = getattr(loop, "config", None) or {}
    return True
