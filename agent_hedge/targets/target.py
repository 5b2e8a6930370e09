"""Targets: a name, a member to call, and the path of failure domains that says what is independent of what.

The path runs from the widest domain to the narrowest: provider, region, cluster, replica, as far as given; the target's
own name stands for the replica when none is named. Two targets are independent when their paths differ somewhere
before either of them ends; the earlier they differ, the more independent they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypedDict

from agent_hedge.core import checks
from agent_hedge.core.checks import NAME_LIMIT
from agent_hedge.core.ports import Canceller
from agent_hedge.core.step import Place
from agent_hedge.errors import ConfigurationError
from agent_hedge.targets.address import replica_names

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    M = TypeVar("M", default=None)  # a target without a member needs no annotation
else:
    from typing import TypeVar

    M = TypeVar("M")
Made = TypeVar("Made")
"""What a factory makes."""

MAX_COPIES = 1024
"""More places behind one address than this is a slip of the keyboard."""


class Price(TypedDict, total=False):
    """Money per million tokens; `cached_input` is the price of prompt tokens found in the provider's cache."""

    input: float
    cached_input: float
    output: float


@dataclass(frozen=True, slots=True, eq=False)
class Target(Generic[M]):
    """A place an attempt can go: a `member` (a client, a chat model) under a unique `name`.

    `provider`, `region`, `cluster`, `replica` name the failure domains it stands in (or `domain` gives the whole path);
    `copies` says how many interchangeable places stand behind its one address (a load balancer over n replicas);
    `price` is per million tokens; `load` is a probe of its load. `cancel` ends an attempt at its engine and says
    whether the engine has let go of it: nothing else is told as a release. Equal only to itself. Raises
    `ConfigurationError` for values that cannot be meant.
    """

    name: str
    member: M = None  # type: ignore[assignment]
    provider: str = ""
    region: str = ""
    cluster: str = ""
    replica: str = ""
    domain: tuple[str, ...] = None  # type: ignore[assignment]
    copies: int = 1
    price: Price | None = None
    load: Any = None
    cancel: Canceller | None = None

    def __post_init__(self) -> None:
        _check_label("name of a target", self.name)
        parts = [self.provider, self.region, self.cluster, self.replica]
        for level, part in zip(("provider", "region", "cluster", "replica"), parts, strict=True):
            if part != "":
                _check_label(f"{level} of target {self.name!r}", part)
        if self.domain is None:
            path = tuple(part for part in (*parts[:3], self.replica or self.name) if part)
            object.__setattr__(self, "domain", path)
        else:
            object.__setattr__(self, "domain", self._checked_domain(any(parts)))
        checks.count(f"copies of target {self.name!r}", self.copies, least=1, most=MAX_COPIES)
        if self.cancel is not None and not callable(getattr(self.cancel, "cancel", None)):
            raise ConfigurationError(
                f"cancel of target {self.name!r} must have an async method cancel(attempt), got {self.cancel!r:.80}"
            )
        if self.price is not None:
            object.__setattr__(self, "price", _checked_price(self.name, self.price))

    def _checked_domain(self, has_parts: bool) -> tuple[str, ...]:
        if has_parts:
            raise ConfigurationError(
                f"target {self.name!r} has a domain and a provider, region, cluster or replica: give one or the other"
            )
        domain: object = self.domain
        if isinstance(domain, str) or not isinstance(domain, Iterable):
            raise ConfigurationError(f"domain of target {self.name!r} must be a tuple of names, got {domain!r}")
        path = tuple(domain)
        if not path:
            raise ConfigurationError(f"domain of target {self.name!r} must not be empty")
        for part in path:
            _check_label(f"domain of target {self.name!r}", part)
        return path

    def places(self) -> tuple[Target[M] | Copy[M], ...]:
        """Return the target itself, or its copies: same name, same address, distinct failure domains."""
        if self.copies == 1:
            return (self,)
        return tuple(Copy(self, number) for number in range(1, self.copies + 1))

    @staticmethod
    def replicas(urls: Iterable[str], factory: Callable[..., Made], **kwargs: Any) -> list[Target[Made]]:
        """Return one target per base URL, each with ``factory(base_url=url, **kwargs)`` as its member.

        They are named by host and port (with the path, where that alone is not unique) and share one cluster. Raises
        `ConfigurationError` for no URL, a URL that is not http(s), and the same URL twice.
        """
        named = replica_names(urls)
        pool = next(iter(named)) if len(named) == 1 else f"{next(iter(named))}+{len(named) - 1}"
        return [Target(name, factory(base_url=url, **kwargs), cluster=pool) for name, url in named.items()]


@dataclass(frozen=True, slots=True, eq=False)
class Copy(Generic[M]):
    """One of the interchangeable places behind a target's address, numbered from 1.

    It bears the target's name, because latency history, health and pushback belong to the address; its domain has one
    more level, because the places behind it are independent of each other.
    """

    target: Target[M]
    number: int

    @property
    def name(self) -> str:
        return self.target.name

    @property
    def member(self) -> M:
        return self.target.member

    @property
    def cancel(self) -> Canceller | None:
        return self.target.cancel

    @property
    def domain(self) -> tuple[str, ...]:
        return (*self.target.domain, str(self.number))


def as_targets(given: Iterable[object] | Target[Any]) -> tuple[Target[Any], ...]:
    """Return targets for a mix of targets and plain names; one of either will do.

    Raises `ConfigurationError` for none, for anything else, and for a name that occurs twice.
    """
    if isinstance(given, str | Target):
        given = (given,)
    if not isinstance(given, Iterable):
        raise ConfigurationError(f"targets must be a target, a name, or several of them, got {given!r:.80}")
    targets: dict[str, Target[Any]] = {}
    for item in given:
        if isinstance(item, str):
            item = Target(item)
        if not isinstance(item, Target):
            raise ConfigurationError(f"a target must be a Target or a name, got {item!r:.80}")
        if item.name in targets:
            raise ConfigurationError(f"two targets have the name {item.name!r}")
        targets[item.name] = item
    if not targets:
        raise ConfigurationError("at least one target is needed, got none")
    return tuple(targets.values())


def places(targets: Iterable[Target[Any]]) -> tuple[Place, ...]:
    """Return every place of these targets, in order: the candidates of a race."""
    return tuple(place for target in targets for place in target.places())


def _check_label(what: str, label: object) -> None:
    if not isinstance(label, str):
        raise ConfigurationError(f"{what} must be text, got {label!r:.80}")
    if not label.strip():
        raise ConfigurationError(f"{what} must not be empty, got {label!r}")
    if len(label) > NAME_LIMIT:
        raise ConfigurationError(f"{what} must have at most {NAME_LIMIT} characters, got {len(label)}")
    if not label.isprintable():
        raise ConfigurationError(f"{what} must not hold control characters, got {label!r:.80}")


def _checked_price(name: str, price: Mapping[str, object]) -> Price:
    what = f"price of target {name!r}"
    if not isinstance(price, Mapping):
        raise ConfigurationError(f"{what} must be a mapping of input, cached_input and output, got {price!r:.80}")
    if unknown := set(price) - {"input", "cached_input", "output"}:
        raise ConfigurationError(f"{what} knows input, cached_input and output, got {sorted(map(str, unknown))}")
    checked = {kind: checks.amount(f"{what}: {kind}", value) for kind, value in price.items()}
    full = checked.get("input", 0.0)
    return Price(input=full, cached_input=checked.get("cached_input", full), output=checked.get("output", 0.0))
