"""`@tool_effect`: found wherever the tool is met, checked when it is written, asked at the door."""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import Any

import pytest
from langchain_core.tools import BaseTool, StructuredTool, tool

from agent_hedge.core.scope import ActiveAttempt, attempt_scope
from agent_hedge.core.step import Attempt, Effect, Role
from agent_hedge.errors import ConfigurationError, EffectBarred
from agent_hedge.tools.effect import EffectSpec, effect_spec, tool_effect


def found(obj: object) -> Effect:
    spec = effect_spec(obj)
    assert spec is not None
    return spec.effect


def test_above_and_below_langchains_tool() -> None:
    @tool_effect(Effect.READ_ONLY)
    @tool
    def above(query: str) -> str:
        """Search."""
        return query

    @tool
    @tool_effect(Effect.READ_ONLY)
    def below(query: str) -> str:
        """Search."""
        return query

    @tool("named")
    @tool_effect(Effect.READ_ONLY)
    async def named(query: str) -> str:
        """Search."""
        return query

    for made in (above, below, named):
        assert isinstance(made, BaseTool)
        assert made.args == {"query": {"title": "Query", "type": "string"}}
        assert made.description == "Search."
        assert found(made) is Effect.READ_ONLY
        assert found(made.model_copy(update={"name": "copy"})) is Effect.READ_ONLY
        assert found(made.bind()) is Effect.READ_ONLY
        assert found(made.with_config({}).with_retry()) is Effect.READ_ONLY
        assert isinstance(made, StructuredTool)
        assert found(made.func or made.coroutine) is Effect.READ_ONLY
    assert above.invoke({"query": "x"}) == below.invoke({"query": "x"}) == "x"
    assert asyncio.run(named.ainvoke({"query": "x"})) == "x"


def test_on_everything_that_can_be_called() -> None:
    @tool_effect(Effect.ONCE)
    def plain(a: int, b: int = 2) -> int:
        """Add."""
        return a + b

    @tool_effect(Effect.ONCE)
    async def coroutine(a: int) -> int:
        return a

    class Client:
        @tool_effect(Effect.ONCE)
        def method(self, a: int) -> int:
            return a

        @staticmethod
        @tool_effect(Effect.ONCE)
        def static(a: int) -> int:
            return a

        @tool_effect(Effect.ONCE)
        @staticmethod
        def static_below(a: int) -> int:
            return a

        @classmethod
        @tool_effect(Effect.ONCE)
        def of_class(cls, a: int) -> int:
            return a

        @tool_effect(Effect.ONCE)
        def __call__(self, a: int) -> int:
            return a

    @functools.wraps(plain)
    def wrapped(*args: Any) -> Any:
        return plain(*args)

    client = Client()
    for called in (plain, wrapped, functools.partial(plain, 1), client.method, Client.static, Client.static_below):
        assert found(called) is Effect.ONCE
    assert found(client.of_class) is Effect.ONCE
    assert plain(1) == 3
    assert (client.method(1), Client.static(1), Client.static_below(1), client.of_class(1), client(1)) == (1,) * 5
    assert inspect.iscoroutinefunction(coroutine)
    assert asyncio.run(coroutine(4)) == 4
    assert list(inspect.signature(plain).parameters) == ["a", "b"]
    assert plain.__doc__ == "Add."
    assert effect_spec(len) is None
    assert effect_spec(None) is None


def test_on_a_tool_class_and_by_metadata() -> None:
    @tool_effect(Effect.IDEMPOTENT)
    class Put(BaseTool):
        name: str = "put"
        description: str = "Put."

        def _run(self, a: int) -> int:
            return a

    assert found(Put()) is Effect.IDEMPOTENT
    by_metadata = StructuredTool.from_function(
        lambda a: a, name="t", description="t", metadata={"agent_hedge": {"effect": "read_only"}}
    )
    assert found(by_metadata) is Effect.READ_ONLY
    misspelt = Put(metadata={"agent_hedge": {"effect": "once", "colour": 1}})
    assert found(misspelt) is Effect.IDEMPOTENT  # the class has declared it
    unsure = StructuredTool.from_function(lambda: 0, name="x", description="x", metadata=misspelt.metadata)
    with pytest.raises(ConfigurationError, match="colour"):
        effect_spec(unsure)


def test_rules_count_by_their_worst_and_at_call_time_by_the_argument() -> None:
    @tool_effect(Effect.ONCE, rules={"method": {"GET": Effect.READ_ONLY, "PUT": "idempotent"}})
    def http(method: str, url: str = "") -> str:
        return method

    spec = effect_spec(http)
    assert spec is not None
    assert spec.static is Effect.ONCE
    assert spec.effect_for({"method": "GET"}) is Effect.READ_ONLY
    assert spec.effect_for({"method": "PUT"}) is Effect.IDEMPOTENT
    for method in ("get", "POST", "", None, 7, ["GET"]):
        assert spec.effect_for({"method": method}) is Effect.ONCE
    assert spec.effect_for({}) is Effect.ONCE


def test_r09_an_argument_that_no_rule_can_name_counts_by_the_worst_rule() -> None:
    spec = EffectSpec(effect=Effect.READ_ONLY, rules={"mode": {"write": Effect.ONCE, "1": Effect.KEYED}})
    assert (
        spec.effect_for({"mode": "read"}) is spec.effect_for({"mode": None}) is spec.effect_for({}) is Effect.READ_ONLY
    )
    for mode in (["write"], {"write": 1}, b"write", ("read",), object()):
        assert spec.effect_for({"mode": mode}) is Effect.ONCE
    for one in (1, 1.0, "1"):
        assert spec.effect_for({"mode": one}) is Effect.KEYED
    assert spec.effect_for({"mode": 1.5}) is Effect.READ_ONLY


def test_r20_rules_that_say_two_things_of_one_value_are_refused() -> None:
    given: Any = {"n": {1: Effect.ONCE, "1": Effect.READ_ONLY}}
    with pytest.raises(ConfigurationError, match=r"rules\['n'\] says two things of '1'"):
        EffectSpec(effect=Effect.ONCE, rules=given)
    agreed: Any = {"n": {1: Effect.ONCE, "1": "once"}}
    assert EffectSpec(effect=Effect.READ_ONLY, rules=agreed).rules == {"n": {"1": Effect.ONCE}}


def test_r09_the_worst_of_the_rules_counts_statically_also_above_a_mild_default() -> None:
    spec = EffectSpec(effect=Effect.READ_ONLY, rules={"delete": {"true": Effect.ONCE}})
    assert spec.static is Effect.ONCE
    assert spec.effect_for({"delete": True}) is Effect.ONCE
    assert spec.effect_for({"delete": False}) is Effect.READ_ONLY


def test_r09_of_several_rules_all_have_to_allow() -> None:
    rules: Any = {"method": {"GET": "read_only"}, "dry": {"true": "read_only"}}
    spec = EffectSpec(effect=Effect.ONCE, rules=rules)
    assert spec.effect_for({"method": "GET", "dry": True}) is Effect.READ_ONLY
    assert spec.effect_for({"method": "GET", "dry": False}) is Effect.ONCE
    assert spec.effect_for({"method": "GET"}) is Effect.ONCE


def test_r09_repeat_allowed_false_bars_whatever_the_effect() -> None:
    for effect in Effect:
        spec = EffectSpec(effect=effect, repeat_allowed=False)
        assert spec.static is Effect.ONCE
        assert spec.effect_for({}) is Effect.ONCE


def test_r20_a_key_of_arguments_the_tool_does_not_have_is_refused() -> None:
    def pay(order_id: str, amount: int) -> str:
        return order_id

    unfit: list[Any] = [
        lambda order: order,
        lambda order_id, currency: order_id,
        lambda arguments: arguments["order_id"],
    ]
    for key in unfit:
        with pytest.raises(ConfigurationError, match="has no parameter"):
            tool_effect(Effect.KEYED, key=key)(pay)
    fit: list[Any] = [lambda order_id: order_id, lambda order_id, day=0: order_id, lambda **a: a["order_id"]]
    for key in fit:
        tool_effect(Effect.KEYED, key=key)(pay)


def test_a_partial_is_declared_by_what_it_calls() -> None:
    def pay(order_id: str, amount: int) -> str:
        return f"{order_id} {amount}"

    whole: Any = tool_effect(Effect.ONCE)(functools.partial(pay, "a", amount=3))
    assert whole() == "a 3"
    assert effect_spec(whole) == EffectSpec(effect=Effect.ONCE)
    assert effect_spec(pay) is None


def test_the_effect_key_comes_from_the_arguments() -> None:
    by_name = EffectSpec(effect=Effect.KEYED, key="order_id", scope="tenant")
    assert by_name.key_of({"order_id": "o-1", "amount": 3}) == "o-1"
    assert by_name.key_of({"order_id": 17}) == "17"
    by_function = EffectSpec(effect=Effect.ONCE, key=lambda **a: (a["x"], a["y"]))
    assert by_function.key_of({"x": 1, "y": "z"}) == '[1, "z"]'
    named = EffectSpec(effect=Effect.ONCE, key=lambda x: x)
    assert named.key_of({"x": "a", "y": "b"}) == "a", "it is given what it names"
    assert by_name.key_of({"order_id": 17.0}) == by_name.key_of({"order_id": 17}), "a model may write either"
    assert EffectSpec(effect=Effect.ONCE).key_of({"x": 1}) is None
    for empty in ({}, {"order_id": ""}, {"order_id": None}):
        with pytest.raises(EffectBarred):
            by_name.key_of(empty)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"effect": "harmless"}, "an effect is one of"),
        ({"effect": None}, "an effect is one of"),
        ({"scope": "planet"}, "scope"),
        ({"scope": "tenant"}, "needs key="),
        ({"key": 7}, "key names"),
        ({"key": ""}, "empty"),
        ({"key_param": ""}, "empty"),
        ({"retention": 0}, "retention"),
        ({"retention": float("nan")}, "retention"),
        ({"retention": float("inf")}, "retention"),
        ({"retention": True}, "retention"),
        ({"rules": {"method": {}}}, "rules"),
        ({"rules": {"method": "GET"}}, "rules"),
        ({"rules": {"method": {"GET": "fine"}}}, "an effect is one of"),
        ({"rules": {"method": {("a",): "once"}}}, "texts, numbers"),
        ({"rules": {"a\0": {"GET": "once"}}}, "NUL"),
        ({"rules": 3}, "rules"),
        ({"commutes": "yes"}, "commutes"),
        ({"repeat_allowed": 1}, "repeat_allowed"),
        ({"at_least_once": None}, "at_least_once"),
        ({"not_started": ValueError("x")}, "not_started"),
        ({"not_started": (int,)}, "not_started"),
        ({"verify": "yes"}, "verify"),
        ({"at_least_once": True, "repeat_allowed": False}, "contradicts"),
    ],
)
def test_r20_declarations_that_cannot_be_meant(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        tool_effect(**({"effect": Effect.ONCE} | given))


def test_r20_parameters_the_function_does_not_have() -> None:
    def pay(order_id: str) -> None: ...

    given: dict[str, Any]
    for given in ({"key": "order"}, {"key_param": "key"}, {"rules": {"method": {"GET": "once"}}}):
        with pytest.raises(ConfigurationError, match="has no parameter"):
            tool_effect(Effect.KEYED, **given)(pay)

    @tool_effect(Effect.KEYED, key="anything")
    def free(**arguments: str) -> None: ...


def test_r20_a_second_different_declaration() -> None:
    with pytest.raises(ConfigurationError, match="another declaration"):

        @tool_effect(Effect.READ_ONLY)
        @tool
        @tool_effect(Effect.ONCE)
        def both(a: int) -> int:
            """Both."""
            return a


# --- the door


class Here:
    name, domain = "t", ("t",)


class Decided:
    """A race that answers every claim alike."""

    def __init__(self, won: bool) -> None:
        self.won = won

    def claim(self, number: int, tool: str = "") -> bool:
        return self.won

    def first_token(self, number: int) -> None: ...


def in_attempt(won: bool) -> ActiveAttempt:
    attempt = Attempt(number=0, role=Role.PRIMARY, target=Here(), started_at=0.0, deadline=1.0)
    return ActiveAttempt(attempt, Decided(won))


@pytest.mark.parametrize("won", [True, False])
def test_r10_a_direct_call_inside_a_race_has_to_win_it(won: bool) -> None:
    ran = []

    @tool_effect(Effect.READ_ONLY)
    def look(a: int) -> None:
        ran.append("look")

    @tool_effect(Effect.IDEMPOTENT)
    def put(a: int) -> None:
        ran.append("put")

    @tool_effect(Effect.ONCE, commutes=True)
    def add(a: int) -> None:
        ran.append("add")

    @tool_effect(Effect.ONCE, rules={"method": {"GET": Effect.READ_ONLY}})
    def http(method: str = "POST") -> None:
        ran.append(method)

    @tool_effect(Effect.ONCE)
    @tool
    async def pay(a: int) -> None:
        """Pay."""
        ran.append("pay")

    token = attempt_scope.set(in_attempt(won))
    try:
        look(1)
        add(1)
        http("GET")
        assert ran == ["look", "add", "GET"]
        for call in (lambda: put(1), http, lambda: asyncio.run(pay.coroutine(a=1))):  # type: ignore[attr-defined]
            if won:
                call()
            else:
                with pytest.raises(EffectBarred):
                    call()
        assert ran[3:] == (["put", "POST", "pay"] if won else [])
    finally:
        attempt_scope.reset(token)
