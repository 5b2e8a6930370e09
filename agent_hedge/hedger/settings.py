"""The settings of the public face, and their checks: bad input is a clear error at construction (R20)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from agent_hedge.core import checks
from agent_hedge.core.classify import classify
from agent_hedge.core.ports import Classifier, Codec, HedgePolicy, Observer
from agent_hedge.core.step import Effect, Failure
from agent_hedge.engine.driver import accept_all
from agent_hedge.errors import ConfigurationError
from agent_hedge.gates import FleetBudget
from agent_hedge.targets import Target

if TYPE_CHECKING:
    from langchain_core.messages import AIMessage

STORE_SCHEMES = ("sqlite", "postgresql", "postgresql+psycopg", "postgresql+asyncpg")


class WrapSettings(TypedDict, total=False):
    """The settings of `Hedger.wrap`; it says what they mean."""

    key: str | None
    effect: Effect
    targets: Iterable[Target[Any] | str] | Target[Any] | None
    accept: Callable[[Any], bool]
    first: Callable[[Any], bool]
    timeout: float | None
    policy: HedgePolicy | None
    recover: type[BaseException] | tuple[type[BaseException], ...]


class ModelSettings(TypedDict, total=False):
    """The settings of `Hedger.chat_model`; it says what they mean."""

    family: str | None
    parity: Literal["warn", "strict"]
    accept: Callable[[AIMessage], bool] | Literal["schema"] | None
    accept_on: Literal["final"] | None
    trigger: Literal["first", "total"]
    timeout: float | None
    policy: HedgePolicy | None
    recover: tuple[type[BaseException], ...]


class NodeSettings(TypedDict, total=False):
    """The settings of `Hedger.node`; it says what they mean."""

    unit: Literal["model", "node"]
    key: str | None
    bar: Literal["unit", "downstream"] | None
    policy: HedgePolicy | None
    effect: Effect
    targets: Iterable[Target[Any] | str] | Target[Any] | None
    accept: Callable[[Any], bool]
    first: Callable[[Any], bool]
    trigger: Literal["first", "total"]
    timeout: float | None
    recover: type[BaseException] | tuple[type[BaseException], ...]
    cancellable: bool


def checked_judge(name: str, judge: object, *, usable: bool, instead: str) -> None:
    """Refuse what cannot be called, and a judge of results for a generator, or of items for anything else."""
    if not callable(judge):
        raise ConfigurationError(f"{name} must be a function that returns whether it is so, got {judge!r:.80}")
    if judge is not accept_all and not usable:
        raise ConfigurationError(f"{name}={judge!r:.80} would never be asked for this function; give {instead}=.")


def widening(recover: type[BaseException] | tuple[type[BaseException], ...]) -> Classifier:
    if not recover:
        return classify
    types = recover if isinstance(recover, tuple) else (recover,)
    for kind in types:
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ConfigurationError(f"recover takes exception types, got {kind!r}")

    def widened(error: BaseException, /) -> Failure:
        return Failure.RECOVERABLE if isinstance(error, types) else classify(error)

    return widened


def check_store(store: object, schema: object) -> None:
    """Refuse a schema without a store, and a URL of something else; the rest is said by the store itself."""
    if store is None:
        if schema is not None:
            raise ConfigurationError(f"schema={schema!r:.80} needs a PostgreSQL store; there is none")
        return
    if not isinstance(store, str):
        if not (hasattr(store, "url") or hasattr(store, "drivername")):  # SQLAlchemy's engines and URLs
            raise ConfigurationError(f"store must be a database URL, an engine or None, got {store!r:.80}")
        return
    scheme = store.partition("://")[0] if "://" in store else store
    if scheme not in STORE_SCHEMES:
        raise ConfigurationError(f"store has the unknown scheme {scheme!r}; known: {', '.join(STORE_SCHEMES)}")


def checked_effect(effect: object) -> Effect:
    try:
        return Effect(effect)  # type: ignore[arg-type]
    except ValueError:
        known = ", ".join(Effect)
        raise ConfigurationError(f"effect must be one of {known}, got {effect!r}") from None


def checked_policy(name: str, policy: object) -> HedgePolicy:
    if not callable(getattr(policy, "next_launch_at", None)) or isinstance(policy, type):
        raise ConfigurationError(f"{name} must be a policy such as Quantile() or Never(), got {policy!r}")
    return policy  # type: ignore[return-value]


def checked_nodes(nodes: Mapping[str, HedgePolicy] | None) -> dict[str, HedgePolicy]:
    if nodes is None:
        return {}
    if not isinstance(nodes, Mapping):
        raise ConfigurationError(f"nodes must map names of nodes to policies, got {nodes!r:.80}")
    return {name: checked_policy(f"nodes[{name!r}]", one) for name, one in nodes.items()}


def checked_budget(budget: object) -> FleetBudget:
    if budget is None:
        return FleetBudget()
    if not isinstance(budget, FleetBudget):
        raise ConfigurationError(f"budget must be a FleetBudget, got {budget!r:.80}")
    return budget


def checked_observers(observers: Iterable[Observer]) -> list[Observer]:
    listed = list(observers) if isinstance(observers, Iterable) else [observers]
    for observer in listed:
        if not callable(getattr(observer, "on_event", None)) or isinstance(observer, type):
            raise ConfigurationError(f"observers must each have an on_event method, got {observer!r:.80}")
    return listed


def checked_codec(serde: object) -> Codec | None:
    if serde is not None and not all(callable(getattr(serde, name, None)) for name in ("encode", "decode")):
        raise ConfigurationError(f"serde must have the methods encode and decode, got {serde!r:.80}")
    return serde  # type: ignore[return-value]


def check_flags(**flags: object) -> None:
    """Refuse words that would count as true: ``telemetry="off"`` is on."""
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigurationError(f"{name} must be True or False, got {flag!r:.80}")


def checked_seconds(name: str, seconds: object) -> float:
    """Return a finite number of seconds >= 0; infinity stands for None."""
    return math.inf if seconds is None else checks.seconds(name, seconds)


def checked_count(name: str, count: object, *, least: int = 0) -> int | None:
    return None if count is None else checks.count(name, count, least=least)
