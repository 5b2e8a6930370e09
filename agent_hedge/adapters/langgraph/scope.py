"""The names a function binds, and what each may stand for: flow-insensitive, so that no order of lines matters."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from agent_hedge.adapters.langgraph.objects import cells
from agent_hedge.adapters.langgraph.values import LOCAL, UNKNOWN, Kind, Value, elements, of

INJECTED_PARAMETERS = {
    "config": Value(Kind.INJECTED),
    "runtime": Value(Kind.RUNTIME),
    "store": Value(Kind.STORE),
    "writer": Value(Kind.WRITER),
}
"""Parameters that LangGraph fills in by their names."""

Evaluate = Callable[[ast.expr], Value]


@dataclass(frozen=True, slots=True)
class Binding:
    """One place where a name gets a value: from an expression, out of a container, or a fixed value."""

    expression: ast.expr | None = None
    fixed: Value = UNKNOWN
    taken_out: bool = False
    entered: bool = False
    """By ``with``: what comes out of it is known only of harmless classes."""

    def value(self, evaluate: Evaluate) -> Value:
        if self.expression is None:
            return self.fixed
        value = evaluate(self.expression)
        if self.entered:
            return value if value.kind is Kind.PURE else UNKNOWN
        if not self.taken_out:
            return value
        if isinstance(self.expression, ast.List | ast.Tuple | ast.Set):
            parts = [evaluate(part) for part in self.expression.elts]
            return parts[0] if len(parts) == 1 else _merge(parts)
        return elements(value)


def _merge(parts: list[Value]) -> Value:
    merged = UNKNOWN
    for index, part in enumerate(parts):
        merged = part if index == 0 else merged | part
    return merged


@dataclass(slots=True)
class Scope:
    """The names of one function. A class body or comprehension inside it counts as part of it."""

    names: dict[str, list[Binding]] = field(default_factory=dict)
    outer: Scope | None = None
    imported: list[tuple[str, str]] = field(default_factory=list)
    """(module, name) of every import in the body; the name is empty for a plain ``import``."""

    def find(self, name: str) -> list[Binding] | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.outer
        return None

    def bind(self, name: str, binding: Binding) -> None:
        self.names.setdefault(name, []).append(binding)


def outside(function: FunctionType) -> dict[str, Any]:
    """Return the names a function finds outside of itself: its closure over its globals over the builtins."""
    names = {**vars(builtins), **function.__globals__}
    for name in function.__code__.co_freevars:
        names.pop(name, None)
    return {**names, **cells(function)}


def of_function(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, given: dict[str, Value]) -> Scope:
    """Return the scope of a function; `given` holds what is known of its parameters (self, defaults, partials)."""
    scope = Scope()
    args = node.args
    for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs, *filter(None, (args.vararg, args.kwarg))):
        scope.bind(arg.arg, Binding(fixed=given.get(arg.arg) or INJECTED_PARAMETERS.get(arg.arg, UNKNOWN)))
    free: set[str] = set()
    for each in _own(node.body):
        if isinstance(each, ast.Global | ast.Nonlocal):
            free.update(each.names)
        _bind(scope, each)
    for name in free:
        scope.names.pop(name, None)
    return scope


def _own(body: ast.expr | list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of a body without those of functions defined in it."""
    waiting: list[ast.AST] = [body] if isinstance(body, ast.expr) else list(body)
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        waiting.extend(ast.iter_child_nodes(node))


def _bind(scope: Scope, node: ast.AST) -> None:
    match node:
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                _bind_target(scope, target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            _bind_target(scope, target, value)
        case ast.AugAssign(target=ast.Name(id=name)):
            scope.bind(name, Binding())
        case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
            _bind_target(scope, target, iterable, taken_out=True)
        case ast.comprehension(target=target, iter=iterable):
            _bind_target(scope, target, iterable, taken_out=True)
        case ast.withitem(context_expr=entered, optional_vars=ast.Name(id=name)):
            scope.bind(name, Binding(expression=entered, entered=True))
        case ast.withitem(optional_vars=ast.expr() as target):
            _bind_target(scope, target, None)
        case ast.ExceptHandler(name=str(name)) | ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            scope.bind(name, Binding())
        case ast.MatchMapping(rest=str(name)):
            scope.bind(name, Binding())
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            scope.bind(name, Binding(fixed=LOCAL))
        case ast.Import(names=aliases):
            for alias in aliases:
                scope.imported.append((alias.name, ""))
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                scope.bind(alias.asname or module, Binding(fixed=_loaded(module)))
        case ast.ImportFrom(module=module, names=aliases, level=level):
            for alias in aliases:
                scope.imported.append(("." * level + (module or ""), alias.name))
                fixed = _loaded(module or "", alias.name) if level == 0 else UNKNOWN
                scope.bind(alias.asname or alias.name, Binding(fixed=fixed))
        case _:
            pass


def _bind_target(scope: Scope, target: ast.expr, value: ast.expr | None, *, taken_out: bool = False) -> None:
    match target:
        case ast.Name(id=name):
            scope.bind(name, Binding(expression=value, taken_out=taken_out))
        case ast.Tuple(elts=targets) | ast.List(elts=targets):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) and not taken_out else []
            for index, each in enumerate(targets):
                paired = len(parts) == len(targets) and not isinstance(each, ast.Starred)
                _bind_target(scope, each, parts[index] if paired else value, taken_out=not paired or taken_out)
        case ast.Starred(value=inner):
            _bind_target(scope, inner, value, taken_out=True)
        case _:
            pass


def _loaded(module: str, name: str = "") -> Value:
    """Return what an import will find, as far as it is loaded already: nothing is imported here."""
    loaded: Any = sys.modules.get(module)
    if loaded is None or not name:
        return UNKNOWN if loaded is None else of(loaded)
    found = vars(loaded).get(name, sys.modules.get(f"{module}.{name}"))
    return UNKNOWN if found is None else of(found)
