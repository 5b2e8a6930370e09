"""Saying what a tool does: `@tool_effect` and the `EffectSpec` it attaches.

The declaration rides on the object, so it is found wherever the tool is met: on a function, a method, a partial, a
LangChain tool (above or below ``@tool``), its copies and bindings, its ``func`` and ``coroutine``. A declared
function also asks the fence itself when it is called inside an undecided race (R10), because nobody else sees a
direct call.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, TypeVar, cast

from agent_hedge.core.checks import NAME_LIMIT, check_text, is_number
from agent_hedge.core.scope import attempt_scope
from agent_hedge.core.step import Effect
from agent_hedge.errors import ConfigurationError, EffectBarred
from agent_hedge.tools.fence import pass_fence
from agent_hedge.tools.keys import plain_text

__all__ = ["Effect", "EffectSpec", "effect_spec", "namespace_of", "tool_effect", "worst"]

T = TypeVar("T")
Key = str | Callable[..., object]
Rules = Mapping[str, Mapping[str, Effect | str]]

SCOPES = ("run", "tenant", "global")
"""Within what the value of `key` names one effect."""
_SPEC = "__agent_hedge_effect__"
_NAMESPACE = "__agent_hedge_namespace__"
_METADATA = "agent_hedge"
_DEPTH = 8
"""How many wrappers a declaration is looked for under."""
_RANK = {Effect.READ_ONLY: 0, Effect.IDEMPOTENT: 1, Effect.KEYED: 2, Effect.ONCE: 3, Effect.UNKNOWN: 3}


def worst(*effects: Effect) -> Effect:
    """Return the effect that allows least."""
    return max(effects, key=_RANK.__getitem__)


@dataclass(frozen=True, slots=True, kw_only=True)
class EffectSpec:
    """What is declared of a tool.

    `effect` holds where no rule says otherwise. `rules`: argument -> value -> effect. `key`: a parameter, or a function
    of those it names. `retention` in seconds: how long the other side remembers an idempotency key. `key_param`: the
    parameter that takes the key. `not_started`: errors that prove that nothing happened. `verify`: settles "it
    happened" for a claim in doubt.
    """

    effect: Effect = Effect.UNKNOWN
    key: Key | None = None
    scope: str = "run"
    rules: Mapping[str, Mapping[str, Effect]] = field(default_factory=dict)
    commutes: bool = False
    repeat_allowed: bool = True
    retention: float | None = None
    key_param: str | None = None
    not_started: tuple[type[BaseException], ...] = ()
    verify: Callable[..., object] | None = None
    at_least_once: bool = False

    def __post_init__(self) -> None:
        set_ = functools.partial(object.__setattr__, self)
        set_("effect", _effect(self.effect))
        set_("rules", _rules(self.rules))
        set_("not_started", _errors(self.not_started))
        for name in ("commutes", "repeat_allowed", "at_least_once"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigurationError(f"{name} is True or False")
        if self.scope not in SCOPES:
            raise ConfigurationError(f"scope is one of {', '.join(SCOPES)}")
        if isinstance(self.key, str):
            check_text(self.key, "the key parameter", NAME_LIMIT, empty=False)
        elif self.key is not None and not callable(self.key):
            raise ConfigurationError("key names a parameter, or is a function of the arguments")
        if self.scope != "run" and self.key is None:
            raise ConfigurationError(f"scope={self.scope!r} needs key=: without it nothing names the effect")
        if self.key_param is not None:
            check_text(self.key_param, "key_param", NAME_LIMIT, empty=False)
        retention = self.retention
        if retention is not None and not (is_number(retention) and 0 < retention < math.inf):
            raise ConfigurationError("retention is a positive number of seconds")
        if self.verify is not None and not callable(self.verify):
            raise ConfigurationError("verify is a function of the claim")
        if self.at_least_once and not self.repeat_allowed:
            raise ConfigurationError("at_least_once=True contradicts repeat_allowed=False")

    @property
    def static(self) -> Effect:
        """The worst that a call can be: what counts before the arguments are known."""
        if not self.repeat_allowed:
            return Effect.ONCE
        return worst(self.effect, *(effect for cases in self.rules.values() for effect in cases.values()))

    def effect_for(self, arguments: Mapping[str, Any]) -> Effect:
        """Return the effect of a call with these arguments. Where rules look at several, the worst counts."""
        if not self.repeat_allowed:
            return Effect.ONCE
        if not self.rules:
            return self.effect
        return worst(*(self._by_rule(cases, arguments.get(name)) for name, cases in self.rules.items()))

    def _by_rule(self, cases: Mapping[str, Effect], value: object) -> Effect:
        if value is None:
            return self.effect
        word = _word(value)
        return self.static if word is None else cases.get(word, self.effect)  # what no rule can name may be anything

    def key_of(self, arguments: Mapping[str, Any], *, tool: str = "this tool") -> str | None:
        """Return the declared effect key of a call of `tool` as text, or None where no `key` is declared.

        Raises `EffectBarred` when the key is missing or empty: a call that cannot be named cannot be run once.
        """
        if self.key is None:
            return None
        value = self.key(**fitting(self.key, arguments)) if callable(self.key) else arguments.get(self.key)
        if value is None or value == "":
            raise EffectBarred(
                f"The effect key of {tool} is missing from its arguments; nothing was dispatched.",
                tool=tool,
                reason="key",
            )
        return value if isinstance(value, str) else plain_text(value)

    def settings(self) -> dict[str, Any]:
        """Return what can be stored of it, beside the effect and its rules (a callable key cannot)."""
        plain = EffectSpec()
        names = ("scope", "commutes", "retention", "key_param", "at_least_once")
        found = {name: getattr(self, name) for name in names if getattr(self, name) != getattr(plain, name)}
        if isinstance(self.key, str):
            return {"key": self.key, **found}
        if found.get("scope"):
            del found["scope"]
        return found


def tool_effect(
    effect: Effect | str,
    *,
    key: Key | None = None,
    scope: str = "run",
    rules: Rules | None = None,
    commutes: bool = False,
    repeat_allowed: bool = True,
    retention: float | None = None,
    key_param: str | None = None,
    not_started: tuple[type[BaseException], ...] | type[BaseException] = (),
    verify: Callable[..., object] | None = None,
    at_least_once: bool = False,
) -> Callable[[T], T]:
    """Declare what a tool does; on a function or a LangChain tool, above or below ``@tool``.

    `retention` in seconds. Raises `ConfigurationError` for values that cannot be meant, for parameters the function
    does not have, and for a second, different declaration.
    """
    spec = EffectSpec(
        effect=cast("Effect", effect),
        key=key,
        scope=scope,
        rules=cast("Mapping[str, Mapping[str, Effect]]", rules or {}),
        commutes=commutes,
        repeat_allowed=repeat_allowed,
        retention=retention,
        key_param=key_param,
        not_started=cast("tuple[type[BaseException], ...]", not_started),
        verify=verify,
        at_least_once=at_least_once,
    )
    return lambda tool: attach(tool, spec)


def attach(tool: T, spec: EffectSpec) -> T:
    """Attach a declaration to a tool; return the tool, or the function that replaces it."""
    standing = effect_spec(tool)
    if standing is not None and standing != spec:
        raise ConfigurationError("this tool already carries another declaration of its effect")
    if isinstance(tool, staticmethod | classmethod):
        return cast("T", type(tool)(attach(tool.__func__, spec)))
    if isinstance(tool, functools.partial):
        return cast("T", functools.partial(attach(tool.func, spec), *tool.args, **tool.keywords))
    if inspect.isfunction(tool):
        check_parameters(tool, spec)
        return cast("T", _at_the_door(tool, spec))
    bodies = {part: body for part in _BODIES if inspect.isfunction(body := getattr(tool, part, None))}
    for body in bodies.values():
        check_parameters(body, spec)
    try:
        object.__setattr__(tool, _SPEC, spec)
    except (AttributeError, TypeError):
        try:
            setattr(tool, _SPEC, spec)  # a class
        except (AttributeError, TypeError):
            raise ConfigurationError(f"a declaration cannot be attached to a {type(tool).__name__}") from None
    for part, body in bodies.items():
        if _own(body) is None:
            setattr(tool, part, _at_the_door(body, spec))
    return tool


_BODIES = ("func", "coroutine")


def effect_spec(tool: object) -> EffectSpec | None:
    """Return the declaration of a tool, wherever on it that is, or None."""
    for _ in range(_DEPTH):
        if (found := _own(tool)) is not None:
            return found
        bodies = [spec for part in _BODIES if (spec := _own(getattr(tool, part, None))) is not None]
        if bodies:
            return max(bodies, key=lambda spec: _RANK[spec.static])
        for wrapper in ("__func__", "__wrapped__", "bound", "func", "afunc", "coroutine"):
            inner = getattr(tool, wrapper, None)
            if inner is not None and inner is not tool:
                tool = inner
                break
        else:
            return None
    return None


def _own(tool: object) -> EffectSpec | None:
    if tool is None:
        return None
    spec = getattr(tool, _SPEC, None)
    if isinstance(spec, EffectSpec):
        return spec
    metadata = getattr(tool, "metadata", None)
    given = metadata.get(_METADATA) if isinstance(metadata, Mapping) else None
    if isinstance(given, EffectSpec):
        return given
    if isinstance(given, Mapping) and "effect" in given:
        if unknown := sorted(set(given) - set(EffectSpec.__dataclass_fields__)):
            raise ConfigurationError(f"no such setting of a tool: {', '.join(unknown)}")
        return EffectSpec(**given)
    return None


def namespace_of(tool: object) -> str:
    """Return the namespace a tool was declared in (empty for most)."""
    found = getattr(tool, _NAMESPACE, "")
    return found if isinstance(found, str) else ""


def name_space(tool: object, namespace: str) -> None:
    """Remember on the tool in which namespace it was declared, so that a name alone never finds another's entry."""
    if namespace and not isinstance(tool, Mapping):
        try:
            object.__setattr__(tool, _NAMESPACE, namespace)
        except (AttributeError, TypeError):
            pass  # a tool that takes no attributes is looked up by the namespace its caller knows


# --- the door: what a declared function asks before it runs inside a race


def _knock(spec: EffectSpec, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Let the call pass the fence, or raise `EffectBarred` (R10)."""
    effect = spec.effect_for(bound(function, args, kwargs) if spec.rules else {})
    pass_fence(effect, commutes=spec.commutes, tool=function.__name__)


def bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by parameter name, defaults filled in."""
    try:
        call = inspect.signature(function).bind_partial(*args, **kwargs)
    except (TypeError, ValueError):
        return dict(kwargs)
    call.apply_defaults()
    found = dict(call.arguments)
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= found.pop(parameter.name, {})
    return found


def fitting(function: Callable[..., Any], arguments: Mapping[str, Any], *, after: int = 0) -> dict[str, Any]:
    """Return those of the arguments that a function names after its first `after` parameters (all if it takes any)."""
    try:
        parameters = list(inspect.signature(function).parameters.values())[after:]
    except (TypeError, ValueError):
        return {}
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return dict(arguments)
    return {parameter.name: arguments[parameter.name] for parameter in parameters if parameter.name in arguments}


def _at_the_door(function: Callable[..., Any], spec: EffectSpec) -> Callable[..., Any]:
    wrapper: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def asynchronous(*args: Any, **kwargs: Any) -> Any:
            if attempt_scope.get() is not None:
                _knock(spec, function, args, kwargs)
            return await function(*args, **kwargs)

        wrapper = asynchronous
    else:

        @functools.wraps(function)
        def synchronous(*args: Any, **kwargs: Any) -> Any:
            if attempt_scope.get() is not None:
                _knock(spec, function, args, kwargs)
            return function(*args, **kwargs)

        wrapper = synchronous
    setattr(wrapper, _SPEC, spec)
    return wrapper


# --- checks


def check_parameters(function: Callable[..., Any], spec: EffectSpec) -> None:
    """Raise `ConfigurationError` where a declaration names parameters that the function does not have."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return
    named = [*spec.rules, *_needed(spec.key), *filter(None, [spec.key_param])]
    if missing := sorted({name for name in named if name not in parameters}):
        raise ConfigurationError(f"{function.__qualname__} has no parameter {', '.join(missing)}")


def _needed(key: Key | None) -> list[str]:
    """Return the arguments that make the effect key."""
    if key is None or isinstance(key, str):
        return [key] if key else []
    try:
        parameters = inspect.signature(key).parameters.values()
    except (TypeError, ValueError):
        return []
    free = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.kind not in free and one.default is one.empty]


def _effect(value: object) -> Effect:
    try:
        return Effect(cast("str", value))
    except ValueError:
        pass
    raise ConfigurationError(f"an effect is one of {', '.join(effect.value for effect in Effect)}")


def _rules(value: object) -> dict[str, dict[str, Effect]]:
    if not isinstance(value, Mapping):
        raise ConfigurationError("rules map an argument to the effects of its values")
    rules: dict[str, dict[str, Effect]] = {}
    for name, cases in value.items():
        check_text(name, "an argument of rules", NAME_LIMIT, empty=False)
        if not isinstance(cases, Mapping) or not cases:
            raise ConfigurationError(f"rules[{name!r}] maps values to effects")
        rules[name] = {}
        for case, effect in cases.items():
            if (word := _word(case)) is None:
                raise ConfigurationError(f"rules[{name!r}] looks at texts, numbers and truth values only")
            if rules[name].setdefault(word, _effect(effect)) is not _effect(effect):
                raise ConfigurationError(f"rules[{name!r}] says two things of {word!r}")
    return rules


def _word(value: object) -> str | None:
    """Return how rules write a value; None for what no rule can name."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # a model may write 1 as 1.0
    return repr(value) if isinstance(value, int | float) else None


def _errors(value: object) -> tuple[type[BaseException], ...]:
    found = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(item, type) and issubclass(item, BaseException) for item in found):
        raise ConfigurationError("not_started names exception classes")
    return found


def with_effect(spec: EffectSpec, effect: Effect) -> EffectSpec:
    """Return the declaration with another effect and no rules: what the registry made of it."""
    return replace(spec, effect=effect, rules={})
