"""Nodes that are raced as a whole, behind the face of the plain node."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig, RunnableParallel, RunnableSequence
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import run_in_executor
from langgraph.pregel.protocol import PregelProtocol

from agent_hedge.adapters.langgraph.face import MARK, RACED, is_async, is_async_generator, is_wrapped, wear
from agent_hedge.adapters.langgraph.inside import Surroundings
from agent_hedge.adapters.langgraph.private import RUNTIME, RunnableCallable, runs_async
from agent_hedge.adapters.langgraph.raced import Body, NodeRace
from agent_hedge.core.ports import Portal
from agent_hedge.core.scope import ActiveAttempt, current_attempt
from agent_hedge.errors import ConfigurationError

InThread = Callable[[ActiveAttempt, "functools.partial[Any]"], Awaitable[Any]]
"""Runs a sync call in a worker thread for one attempt."""


def wrap_node_unit(
    action: Any,
    race: NodeRace,
    surroundings: Surroundings,
    *,
    portal: Portal,
    in_thread: InThread,
    cancellable: bool,
) -> Any:
    """Return the node, raced. A sync body is raced only where it is `cancellable`: no thread can be stopped."""
    if is_wrapped(action):
        return action
    if is_async_generator(action):
        raise ConfigurationError(f"{action!r:.80} is a generator: a raced node returns its result")

    def raced_in_threads(inside: Any, state: Any, call: Callable[..., Any]) -> Any:
        def body(config: Mapping[str, Any] | None, given: Any) -> Awaitable[Any]:
            active = current_attempt()
            assert active is not None
            return in_thread(active, functools.partial(call, config, given))

        return portal.call(lambda: race.run(body, state, inside.config, inside.context))

    if isinstance(action, Runnable):
        return RacedRunnable(action, race, surroundings, raced_in_threads if cancellable else None)
    if not callable(action):
        raise ConfigurationError(f"node() takes a function or a Runnable, got {action!r:.80}")
    if is_async(action):

        async def run(*args: Any, **kwargs: Any) -> Any:
            with surroundings() as inside:
                if inside.config is None or inside.context is None or not args:
                    return await action(*args, **kwargs)
                *bound, state = args  # of a method that was wrapped in its class, its object

                def body(config: Mapping[str, Any] | None, given: Any) -> Awaitable[Any]:
                    return action(*bound, given, **own_arguments(kwargs, config))  # type: ignore[no-any-return]

                return await race.run(body, state, inside.config, inside.context)

        return _raced(wear(run, action))

    def call(*args: Any, **kwargs: Any) -> Any:
        with surroundings() as inside:
            if inside.config is None or not cancellable or not args:
                return action(*args, **kwargs)
            *bound, state = args

            def once(config: Mapping[str, Any] | None, given: Any) -> Any:
                return action(*bound, given, **own_arguments(kwargs, config))

            return raced_in_threads(inside, state, once)

    return _raced(wear(call, action)) if cancellable else wear(call, action)


def _raced(face: Callable[..., Any]) -> Callable[..., Any]:
    setattr(face, RACED, True)
    return face


def own_arguments(kwargs: dict[str, Any], config: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments LangGraph has injected, those of the attempt's own configuration in their place."""
    if config is None:
        return kwargs
    runtime = config["configurable"].get(RUNTIME)
    own = {
        "config": config,
        "runtime": runtime,
        "writer": getattr(runtime, "stream_writer", None),
        "store": getattr(runtime, "store", None),
    }
    return {name: own.get(name, value) for name, value in kwargs.items()}


def can_be_stopped(action: Any) -> bool:
    """Whether something in it is awaited, so that cancelling it does stop it: a thread runs on to its end."""
    if isinstance(action, RunnableBindingBase):
        return can_be_stopped(action.bound)
    if isinstance(action, RunnableSequence | RunnableParallel):
        steps = action.steps if isinstance(action, RunnableSequence) else action.steps__.values()
        return any(map(can_be_stopped, steps))
    if isinstance(action, Runnable):
        return isinstance(action, PregelProtocol) or runs_async(action)
    return is_async(action)


class RacedRunnable(RunnableCallable):
    """A Runnable or compiled graph as a raced node; LangGraph finds a graph in the closure of its functions."""

    def __init__(
        self,
        held: Runnable[Any, Any],
        race: NodeRace,
        surroundings: Surroundings,
        in_threads: Callable[[Any, Any, Callable[..., Any]], Any] | None,
    ) -> None:
        def call(given: Any, config: RunnableConfig) -> Any:
            with surroundings() as inside:
                if inside.config is None or in_threads is None:
                    return held.invoke(given, config)
                return in_threads(inside, given, lambda own, state: held.invoke(state, own or config))

        async def run(given: Any, config: RunnableConfig) -> Any:
            with surroundings() as inside:
                if inside.config is None or inside.context is None:
                    return await held.ainvoke(given, config)
                body: Body = lambda own, state: held.ainvoke(state, own or config)  # type: ignore[arg-type]  # noqa: E731
                return await race.run(body, given, inside.config, inside.context)

        afunc = run if can_be_stopped(held) else functools.partial(run_in_executor, None, call)  # type: ignore[call-arg]
        super().__init__(call, afunc, name=held.get_name(), trace=False, recurse=False)
        setattr(self, MARK, True)
        setattr(self, RACED, True)
