"""R20: what cannot be meant is one clear error that names the value, raised where it is given."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from agent_hedge import Effect, Fixed, Hedger, Never, Quantile, Target
from agent_hedge.errors import ConfigurationError

NAN, INF = math.nan, math.inf


async def work() -> int:
    return 1


async def stream() -> AsyncIterator[int]:
    yield 1


def wrap(fn: Callable[..., Any] = work, **settings: Any) -> Callable[[], Any]:
    return lambda: Hedger().wrap(fn, effect=settings.pop("effect", Effect.READ_ONLY), **settings)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "quantile 0": (lambda: Quantile(0), "0"),
    "quantile 1": (lambda: Quantile(1), "1"),
    "quantile above": (lambda: Quantile(1.5), "1.5"),
    "quantile negative": (lambda: Quantile(-0.1), "-0.1"),
    "quantile nan": (lambda: Quantile(NAN), "nan"),
    "negative delay": (lambda: Fixed(-1), "-1"),
    "nan delay": (lambda: Fixed(NAN), "nan"),
    "infinite delay": (lambda: Fixed(INF), "inf"),
    "negative deadline": (lambda: Hedger(deadline=-1), "deadline.*-1"),
    "nan deadline": (lambda: Hedger(deadline=NAN), "deadline.*nan"),
    "infinite deadline": (lambda: Hedger(deadline=INF), "deadline.*inf"),
    "deadline as text": (lambda: Hedger(deadline="30"), "deadline.*'30'"),  # type: ignore[arg-type]
    "deadline as flag": (lambda: Hedger(deadline=True), "deadline.*True"),
    "run: negative deadline": (lambda: Hedger().run(deadline=-0.5), "deadline.*-0.5"),
    "run: nan deadline": (lambda: Hedger().run(deadline=NAN), "deadline.*nan"),
    "run: negative purse": (lambda: Hedger().run(extra_attempts=-1), "extra_attempts.*-1"),
    "run: fractional purse": (lambda: Hedger().run(extra_attempts=1.5), "extra_attempts.*1.5"),  # type: ignore[arg-type]
    "run: steps": (lambda: Hedger().run(steps=-3), "steps.*-3"),
    "run: no steps": (lambda: Hedger().run(steps=0), "steps.*0"),
    "run: a purse no store can hold": (lambda: Hedger().run(extra_attempts=2**40), "extra_attempts.*1099511627776"),
    "run: a deadline beyond every calendar": (lambda: Hedger().run(deadline=1e12), "deadline.*1000000000000"),
    "run: priority": (lambda: Hedger().run(priority="urgent"), "priority.*'urgent'"),
    "run: key": (lambda: Hedger().run(key=7), "key"),  # type: ignore[arg-type]
    "run: a principal for no claim": (
        lambda: Hedger().run(principal="p" * 256),
        "principal is 256 characters",
    ),
    "run: a tenant for no claim": (lambda: Hedger().run(tenant="t" * 256), "tenant is 256 characters"),
    "run: key with a NUL": (lambda: Hedger().run(key="a\0b"), "key"),
    "guard: one tool": (lambda: Hedger().guard_tools(work), "list of tools and functions, not a function"),  # type: ignore[arg-type]
    "guard: a name": (lambda: Hedger().guard_tools("pay"), "list of tools and functions, not a str"),  # type: ignore[arg-type]
    "guard: nothing": (lambda: Hedger().guard_tools(None), "list of tools and functions, not a NoneType"),  # type: ignore[arg-type]
    "guard: a number": (lambda: Hedger().guard_tools([5]), "a int cannot be guarded"),  # type: ignore[list-item]
    "guard: a server-side tool": (lambda: Hedger().guard_tools([{"type": "web_search"}]), "a dict cannot be guarded"),  # type: ignore[list-item]
    "once: no function": (lambda: Hedger().once(5), "not a int"),  # type: ignore[call-overload]
    "once: no such parameter": (lambda: Hedger().once(work, key="order"), "work has no parameter order"),
    "unknown scheme": (lambda: Hedger("redis://host"), "'redis'"),
    "no scheme": (lambda: Hedger("store.db"), "'store.db'"),
    "no URL": (lambda: Hedger(5), "store.*5"),  # type: ignore[arg-type]
    "unknown mode": (lambda: Hedger(mode="perhaps"), "mode.*'perhaps'"),
    "share above": (lambda: Hedger(share=1.1), "share.*1.1"),
    "share negative": (lambda: Hedger(share=-0.1), "share.*-0.1"),
    "share nan": (lambda: Hedger(share=NAN), "share.*nan"),
    "holdout": (lambda: Hedger(holdout=2), "holdout.*2"),
    "purse": (lambda: Hedger(extra_attempts=-2), "extra_attempts.*-2"),
    "stay": (lambda: Hedger(stay=-1.0), "stay.*-1"),
    "stay nan": (lambda: Hedger(stay=NAN), "stay.*nan"),
    "stay for ever": (lambda: Hedger(stay=None), "stay.*None"),  # type: ignore[arg-type]
    "fleet": (lambda: Hedger(fleet=3), "fleet must be a string"),  # type: ignore[arg-type]
    "nodes": (lambda: Hedger(nodes=["plan"]), "nodes.*plan"),  # type: ignore[arg-type]
    "telemetry": (lambda: Hedger(telemetry="off"), "telemetry.*'off'"),  # type: ignore[arg-type]
    "headers": (lambda: Hedger(headers={"a": "b"}), "headers.*'a'"),  # type: ignore[arg-type]
    "results": (lambda: Hedger(results="no"), "results.*'no'"),  # type: ignore[arg-type]
    "serde": (lambda: Hedger(serde=print), "serde.*encode and decode.*print"),  # type: ignore[arg-type]
    "budget": (lambda: Hedger(budget=0.05), "FleetBudget.*0.05"),  # type: ignore[arg-type]
    "policy": (lambda: Hedger(policy=0.9), "policy.*0.9"),  # type: ignore[arg-type]
    "policy class": (lambda: Hedger(policy=Never), "policy.*Never"),  # type: ignore[arg-type]
    "node's policy": (lambda: Hedger(nodes={"plan": 3}), r"nodes\['plan'\].*3"),  # type: ignore[dict-item]
    "observer": (lambda: Hedger(observers=[print]), "observers.*print"),  # type: ignore[list-item]
    "observer alone": (lambda: Hedger(observers=3), "observers.*3"),  # type: ignore[arg-type]
    "observer class": (lambda: Hedger(observers=[_Ears]), "observers.*_Ears"),  # type: ignore[list-item]
    "no function": (wrap(3), "3"),  # type: ignore[arg-type]
    "no target": (wrap(targets=[]), "at least one target"),
    "same target twice": (wrap(targets=["a", Target("a")]), "two targets.*'a'"),
    "target": (wrap(targets=["a", 3]), "target.*3"),
    "empty key": (wrap(key=""), "key"),
    "key": (wrap(key=3), "key"),
    "effect": (wrap(effect="sometimes"), "effect.*'sometimes'"),
    "wrap: policy": (wrap(policy=1.0), "policy.*1.0"),
    "wrap: negative timeout": (wrap(timeout=-1), "timeout.*-1"),
    "wrap: nan timeout": (wrap(timeout=NAN), "timeout.*nan"),
    "accept": (wrap(accept=3), "accept.*3"),
    "accept of a generator": (wrap(stream, accept=bool), "accept.*first"),
    "first of a function": (wrap(first=bool), "first.*accept"),
    "recover": (wrap(recover=(ValueError, 3)), "recover.*3"),
    "recover an instance": (wrap(recover=ValueError()), "recover.*ValueError"),
}


class _Ears:
    def on_event(self, event: object) -> None: ...


@pytest.mark.parametrize(("build", "named"), BAD.values(), ids=BAD)
def test_r20_bad_input_is_one_clear_error_naming_the_value(build: Callable[[], Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?i){named}") as caught:
        build()
    assert isinstance(caught.value, ValueError)
    assert "\n" not in str(caught.value)


def test_r20_an_unknown_setting_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="delay"):
        Hedger().wrap(work, effect=Effect.READ_ONLY, delay=3)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("STORE", "mysql://host/db", "'mysql'"),
        ("SHARE", "half", "AGENT_HEDGE_SHARE.*'half'"),
        ("SHARE", "7", "AGENT_HEDGE_SHARE.*'7'"),
        ("MODE", "maybe", "AGENT_HEDGE_MODE.*'maybe'"),
    ],
)
def test_r20_bad_environment_is_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str, named: str) -> None:
    monkeypatch.setenv(f"AGENT_HEDGE_{name}", value)
    with pytest.raises(ConfigurationError, match=named):
        Hedger.from_env()


def test_r20_a_password_in_a_bad_store_url_is_not_repeated() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Hedger("mysql://ada:secret@host/db")
    assert "secret" not in str(caught.value)
