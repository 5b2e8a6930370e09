"""Takes LangChain's building blocks apart: what a sequence, branch, fallback, retry or binding is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.output_parsers import BaseGenerationOutputParser, BaseOutputParser
from langchain_core.prompts import BasePromptTemplate
from langchain_core.runnables import (
    Runnable,
    RunnableAssign,
    RunnableBranch,
    RunnableGenerator,
    RunnableLambda,
    RunnableParallel,
    RunnablePassthrough,
    RunnablePick,
    RunnableSequence,
    RunnableWithFallbacks,
)
from langchain_core.runnables.base import RunnableBindingBase, RunnableEachBase
from langchain_core.runnables.configurable import DynamicRunnable, RunnableConfigurableAlternatives
from langchain_core.runnables.history import RunnableWithMessageHistory

from agent_hedge.adapters.langgraph.findings import BlindSpot
from agent_hedge.adapters.langgraph.private import CONFIGURABLE_MODEL, RunnableCallable, RunnableSeq

_QUIET = (BaseGenerationOutputParser, BaseOutputParser, BasePromptTemplate, RunnablePick)


@dataclass(slots=True)
class Parts:
    """What a Runnable is made of. `memory` is set where it keeps a history of its own between runs."""

    inner: list[Any] = field(default_factory=list)
    bound: Mapping[str, Any] = field(default_factory=dict)
    """The arguments that a binding adds to each call."""
    blind: list[BlindSpot] = field(default_factory=list)
    memory: str = ""


def take_apart(runnable: Runnable[Any, Any]) -> Parts | None:
    """Return the parts of one of the framework's own Runnables, None of any other kind."""
    name = type(runnable).__name__
    match runnable:
        case RunnableSequence() | RunnableSeq():
            return Parts(list(runnable.steps))
        case RunnableParallel():
            return Parts(list(runnable.steps__.values()))
        case RunnableBranch():
            pairs = [part for pair in runnable.branches for part in pair]
            return Parts([*pairs, runnable.default])
        case RunnableWithFallbacks():
            return Parts(list(runnable.runnables))
        case DynamicRunnable():
            return _configurable(runnable)
        case RunnableBindingBase():
            memory = f"`{name}` keeps a message history" if isinstance(runnable, RunnableWithMessageHistory) else ""
            return Parts([runnable.bound], bound=runnable.kwargs, memory=memory)
        case RunnableEachBase():
            return Parts([runnable.bound])
        case RunnableAssign():
            return Parts([runnable.mapper])
        case RunnableCallable():
            return Parts([runnable.func, runnable.afunc, *runnable.kwargs.values()])
        case RunnableLambda() | RunnablePassthrough():
            return Parts([getattr(runnable, "func", None), getattr(runnable, "afunc", None)])
        case RunnableGenerator():
            return Parts([getattr(runnable, "_transform", None), getattr(runnable, "_atransform", None)])
        case _ if isinstance(runnable, _QUIET) and type(runnable).__module__.startswith("langchain_core."):
            return Parts()
        case _ if name == CONFIGURABLE_MODEL:
            why = "the model, and what is bound to it, is chosen from the run's config"
            return Parts(blind=[BlindSpot("configurable", why)])
        case _:
            return None


def _configurable(runnable: DynamicRunnable[Any, Any]) -> Parts:
    parts = Parts([runnable.default], blind=[BlindSpot("configurable", "it is replaced by the run's config")])
    if isinstance(runnable, RunnableConfigurableAlternatives):
        parts.inner += runnable.alternatives.values()
    return parts
