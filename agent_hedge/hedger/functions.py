"""Functions as hedged steps: `Hedger.wrap`."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from agent_hedge.adapters.functions import is_stream, name_of, wrap_function
from agent_hedge.core.checks import KEY_LIMIT, NAME_LIMIT, check_text
from agent_hedge.core.ports import HedgePolicy
from agent_hedge.core.step import Effect, StepKey
from agent_hedge.engine.driver import accept_all
from agent_hedge.hedger.base import Base
from agent_hedge.hedger.settings import WrapSettings, checked_effect, checked_judge, widening
from agent_hedge.targets import Target, as_targets

P = ParamSpec("P")
R = TypeVar("R")


class Functions(Base):
    """Wraps functions."""

    @overload
    def wrap(self, fn: Callable[P, R], /, **settings: Unpack[WrapSettings]) -> Callable[P, R]: ...
    @overload
    def wrap(self, /, **settings: Unpack[WrapSettings]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...
    def wrap(self, fn: Callable[..., Any] | None = None, /, **settings: Unpack[WrapSettings]) -> Any:
        """Return `fn` (any async, async-generator or sync function) with every call a hedged step.

        Keyword arguments:
            key: names the steps that share one latency history (default: the function's qualified name).
            effect: what calling it twice would do; without a repeatable one it is never hedged or repeated.
            targets: the places attempts go to, as `Target`s or names; the function finds its own in
                ``current_attempt().target``. Without any, calls count as independent of each other.
            accept: whether a result is acceptable; a rejected one is a recoverable failure.
            first: for async generators, which item is the first meaningful one.
            timeout: seconds one call may take, all attempts included.
            policy: when the next attempt is due (default: the hedger's, or its ``nodes[key]``).
            recover: exception types that are recoverable beside the usual ones.

        Without a function it returns a decorator.

        Raises:
            ConfigurationError: a value that cannot be meant, named.
        """
        if fn is None:
            return lambda decorated: self._wrap(decorated, **settings)
        return self._wrap(fn, **settings)

    def _wrap(
        self,
        fn: Callable[..., Any],
        *,
        key: str | None = None,
        effect: Effect = Effect.UNKNOWN,
        targets: Iterable[Target[Any] | str] | Target[Any] | None = None,
        accept: Callable[[Any], bool] = accept_all,
        first: Callable[[Any], bool] = accept_all,
        timeout: float | None = None,
        policy: HedgePolicy | None = None,
        recover: type[BaseException] | tuple[type[BaseException], ...] = (),
    ) -> Callable[..., Any]:
        name = name_of(fn) if key is None else key
        check_text(name, "key", KEY_LIMIT, empty=False)
        stream = is_stream(fn)
        checked_judge("accept", accept, usable=not stream, instead="first")
        checked_judge("first", first, usable=stream, instead="accept")
        effect = checked_effect(effect)
        if not effect.repeatable:
            warnings.warn(
                f"{name!r} is wrapped with effect {effect.value!r}: it is never hedged. "
                "Say effect=Effect.READ_ONLY (or IDEMPOTENT, KEYED) if calling it twice is safe.",
                stacklevel=3,
            )
        lane = self._lane(
            StepKey(node=name),
            (Target(name[:NAME_LIMIT], copies=2),) if targets is None else as_targets(targets),
            effect=effect,
            policy=policy,
            nodes=None if policy is None else {},  # the function is the node: its own policy comes first
            timeout=timeout,
            classifier=widening(recover),
            commit_on_token=stream,
        )
        return wrap_function(fn, lane, self._background, accept=accept, first=first)
