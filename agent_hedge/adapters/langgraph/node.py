"""`hedger.node` at ``unit="model"``: the node runs once, and its hedged models know where they stand."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableSequence, RunnableSerializable
from langchain_core.runnables.config import run_in_executor
from langgraph.pregel.protocol import PregelProtocol

from agent_hedge.adapters.langgraph.face import MARK, is_async, is_async_generator, is_wrapped, wear
from agent_hedge.adapters.langgraph.private import RunnableCallable, runs_async
from agent_hedge.errors import ConfigurationError

Around = Callable[[], AbstractContextManager[object]]
"""Returns what goes around one run of a node's body."""


def name_of(action: Any) -> str:
    """Return the name `add_node` would give it."""
    if isinstance(action, Runnable):
        return action.get_name()
    return str(getattr(action, "__name__", type(action).__name__))


def wrap_model_unit(action: Any, surroundings: Around) -> Any:
    """Return the node with the same face and the same result; wrapping twice is wrapping once."""
    if is_wrapped(action):
        return action
    if isinstance(action, RunnableSequence):  # LangGraph takes its steps apart: it must find them as they were
        steps = [SurroundedRunnable(step, surroundings) for step in action.steps]
        sequence: Runnable[Any, Any] = RunnableSequence(*steps, name=action.name)
        object.__setattr__(sequence, MARK, True)
        return sequence
    if isinstance(action, Runnable):
        return SurroundedRunnable(action, surroundings)
    if not callable(action):
        raise ConfigurationError(f"node() takes a function or a Runnable, got {action!r:.80}")
    return wear(_face(action, surroundings), action)


def _face(action: Any, surroundings: Around) -> Any:
    if is_async_generator(action):

        async def stream(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with surroundings():
                async for item in action(*args, **kwargs):
                    yield item

        return stream
    if inspect.isgeneratorfunction(action):

        def generate(*args: Any, **kwargs: Any) -> Iterator[Any]:
            with surroundings():
                yield from action(*args, **kwargs)

        return generate
    if is_async(action):

        async def run(*args: Any, **kwargs: Any) -> Any:
            with surroundings():
                return await action(*args, **kwargs)

        return run

    def call(*args: Any, **kwargs: Any) -> Any:
        with surroundings():
            return action(*args, **kwargs)

    return call


class SurroundedRunnable(RunnableCallable):
    """A Runnable or compiled graph as a wrapped node.

    It is LangGraph's own kind of node, so that LangGraph finds a graph in the closure of its functions; streaming and
    whatever else the Runnable can do is the Runnable's.
    """

    def __init__(self, held: Runnable[Any, Any], surroundings: Around) -> None:
        def call(given: Any, config: RunnableConfig) -> Any:
            with surroundings():
                return held.invoke(given, config)

        async def run(given: Any, config: RunnableConfig) -> Any:
            with surroundings():
                return await held.ainvoke(given, config)

        native = isinstance(held, PregelProtocol) or runs_async(held)
        afunc = run if native else functools.partial(run_in_executor, None, call)  # type: ignore[call-arg]
        super().__init__(call, afunc, name=held.get_name(), trace=False, recurse=False)
        self.__class__ = _named_after(type(held))
        self._held = held
        self._surroundings = surroundings
        setattr(self, MARK, True)

    def stream(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Iterator[Any]:  # noqa: A002
        with self._surroundings():
            yield from self._held.stream(input, config, **kwargs)

    async def astream(
        self,
        input: Any,  # noqa: A002
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[Any]:
        items: Any = self._held.astream(input, config, **kwargs)
        with self._surroundings():
            try:
                async for item in items:
                    yield item
            finally:
                if (close := getattr(items, "aclose", None)) is not None:
                    await close()


@functools.lru_cache(maxsize=64)
def _named_after(cls: type[Runnable[Any, Any]]) -> type[SurroundedRunnable]:
    """Return the class of a wrapped Runnable under the name of its own: a drawn graph says what each node is."""
    module, name = cls.__module__, cls.__name__
    if issubclass(cls, RunnableSerializable):
        *packages, name = cls.lc_id()
        module = ".".join(packages)
    return type(name, (SurroundedRunnable,), {"__module__": module})
