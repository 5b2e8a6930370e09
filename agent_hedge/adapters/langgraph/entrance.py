"""Plain nodes of a graph that passed `wrap_graph`: they run as they are, in the run that the configuration asks for.

So that settings which cannot be meant are an error before the first node, whichever that is (R20), and the clock starts
there. Nothing else of the node changes: a function stays where LangGraph and the user find it.
"""

from __future__ import annotations

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig

from agent_hedge.adapters.langgraph.face import MARK
from agent_hedge.adapters.langgraph.graphs import Graphs
from agent_hedge.adapters.langgraph.inside import in_run
from agent_hedge.adapters.langgraph.node import wrap_model_unit
from agent_hedge.adapters.langgraph.private import RunnableCallable

_NO_RUN = nullcontext()


class Entrance:
    """What surrounds one run of a plain node; made once for a graph."""

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._classes: dict[type[RunnableCallable], type[RunnableCallable]] = {}

    def __call__(self) -> AbstractContextManager[None]:
        return in_run(self._graphs) or _NO_RUN

    def __deepcopy__(self, memo: object) -> Entrance:
        """A copied graph is of the same hedger."""
        return self

    def before(self, runnable: Runnable[Any, Any]) -> Runnable[Any, Any]:
        """Return this plain node with the entrance before it."""
        if not isinstance(runnable, RunnableCallable):
            wrapped: Runnable[Any, Any] = wrap_model_unit(runnable, self)
            return wrapped
        own = copy.copy(runnable)
        own.__class__ = self._entered(type(runnable))
        return own

    def _entered(self, cls: type[RunnableCallable]) -> type[RunnableCallable]:
        """Return `cls` (LangGraph's node of a function, or a `ToolNode`), with the entrance."""
        if cls not in self._classes:
            self._classes[cls] = _entered(cls, self)
        return self._classes[cls]


def _entered(cls: type[RunnableCallable], entrance: Entrance) -> type[RunnableCallable]:
    class Entered(cls):  # type: ignore[misc, valid-type]
        def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
            with entrance():
                return super().invoke(input, config, **kwargs)

        async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Any:  # noqa: A002
            with entrance():
                return await super().ainvoke(input, config, **kwargs)

    Entered.__name__, Entered.__qualname__, Entered.__module__ = cls.__name__, cls.__qualname__, cls.__module__
    setattr(Entered, MARK, True)
    return Entered
