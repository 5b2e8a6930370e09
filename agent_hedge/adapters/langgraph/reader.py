"""Reads a function's body, expression by expression, without running it.

The rule is fail closed. A call counts as seen when its callee is an object that is there already, or when its name
is that of a method of plain values (`known.PLAIN_METHODS`); every other call is a blind spot with its reason.

Honest limits: a method of an object out of the state that is called like one of a list or a text (``get``,
``update``) is taken for that; operators and ``with`` on the user's own classes are not followed.
"""

from __future__ import annotations

import ast
from types import FunctionType, MethodType
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.output_parsers import BaseOutputParser
from langchain_core.prompts import BasePromptTemplate
from langgraph.config import get_config, get_store, get_stream_writer
from langgraph.runtime import get_runtime
from langgraph.types import Command

from agent_hedge.adapters.langgraph import known, scope, source, values
from agent_hedge.adapters.langgraph.body import Body, Reached
from agent_hedge.adapters.langgraph.origin import Origin, origin, where_from
from agent_hedge.adapters.langgraph.values import CONTAINERS, LOCAL, PURE, RUNS_BY_ITSELF, UNKNOWN, Kind, Value

STORE_READS = frozenset({"get", "search", "list_namespaces", "aget", "asearch", "alist_namespaces"})
TAKING_OUT = frozenset({"get", "pop", "popitem", "setdefault"})
WHOLE = frozenset({"copy", "items", "values"})
"""Methods of a container that give one thing out of it, or all it holds."""
PASSING_ON = (dict, enumerate, filter, iter, list, reversed, set, sorted, tuple, zip)
"""Builtins that pass on what a container holds."""
AMBIENT: dict[Any, Kind] = {
    get_config: Kind.INJECTED,
    get_runtime: Kind.RUNTIME,
    get_store: Kind.STORE,
    get_stream_writer: Kind.WRITER,
}
"""How a body gets what LangGraph would otherwise pass as a parameter."""


def read(function: FunctionType, given: dict[str, Value], home: frozenset[str] = frozenset()) -> Body:
    """Read one function. `given` holds what is known of its parameters, `home` the packages that are the user's."""
    body = Body(function.__qualname__)
    outside = scope.outside(function)
    definitions = source.definitions(function)
    for definition in definitions:
        _Reader(body, outside, home).function(definition, given)
    if not definitions:
        body.cannot_see("source", "its source is not there, or has changed since")
        names = dict.fromkeys((*function.__code__.co_freevars, *source.names_of(function.__code__)))
        reached = [(name, outside[name]) for name in names if name in outside]
        body.reached += [Reached(thing, name, called=True) for name, thing in reached if values.acts(thing)]
    return body


class _Reader(ast.NodeVisitor):
    """Visits every expression once (`visit`); asks as often as it likes what an expression may be (`value`)."""

    def __init__(self, body: Body, outside: dict[str, Any], home: frozenset[str]) -> None:
        self.body = body
        self.outside = outside
        self.home = home
        self.scope = scope.Scope()
        self._asked: set[str] = set()

    # --- scopes ---------------------------------------------------------------------------------------------

    def function(self, node: source.Definition, given: dict[str, Value]) -> None:
        """Read a function, or one defined in the body of another: it may be called from there."""
        inner = scope.of_function(node, given)
        inner.outer, self.scope = self.scope, inner
        for module, name in inner.imported:
            self._imported(module, name)
        for statement in [node.body] if isinstance(node, ast.Lambda) else node.body:
            self.visit(statement)
        self.scope = inner.outer

    def _inner_function(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        for expression in (*node.args.defaults, *node.args.kw_defaults, *getattr(node, "decorator_list", ())):
            if expression is not None:
                self.visit(expression)
        self.function(node, {})

    visit_FunctionDef = visit_AsyncFunctionDef = visit_Lambda = _inner_function  # noqa: N815

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *node.body):
            self.visit(part)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        """Looping over a container uses what the loop's body uses of it."""
        self._visit_base(node.iter)
        for part in (node.target, *node.body, *node.orelse):
            self.visit(part)

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self._visit_base(node.iter)
        for part in (node.target, *node.ifs):
            self.visit(part)

    def _imported(self, module: str, name: str) -> None:
        whose = origin(module, name, self.home)
        if whose not in (Origin.QUIET, Origin.FRAMEWORK):
            what = f"{module}.{name}" if name else module
            self.body.cannot_see("import", f"`{what}` is imported in the body: it is known only when it runs")

    # --- what an expression may be --------------------------------------------------------------------------

    def value(self, node: ast.expr) -> Value:
        """Return what an expression may be. Pure: nothing is recorded."""
        match node:
            case ast.Name(id=name):
                return self._named(name)
            case ast.Attribute(value=base, attr=name):
                return values.attribute(self.value(base), name)
            case ast.Subscript(value=base, slice=ast.Constant(value=key)):
                return self._taken_out(base, key)
            case ast.Subscript(value=base):
                return self._taken_out(base)
            case ast.Call():
                return self._result(node)
            case ast.Await(value=inner) | ast.NamedExpr(value=inner) | ast.Starred(value=inner):
                return self.value(inner)
            case ast.IfExp(body=one, orelse=other):
                return self.value(one) | self.value(other)
            case ast.BoolOp(values=several):
                return values.union(self.value(each) for each in several)
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                sides = self.value(left), self.value(right)
                return UNKNOWN if Kind.UNKNOWN in (sides[0].kind, sides[1].kind) else sides[0] | sides[1]
            case ast.Lambda():
                return LOCAL
            case ast.Constant() | ast.JoinedStr() | ast.Compare() | ast.UnaryOp():
                return PURE
            case _:
                return UNKNOWN

    def _named(self, name: str) -> Value:
        bindings = self.scope.find(name)
        if bindings is None:
            return values.of(self.outside[name]) if name in self.outside else UNKNOWN
        if name in self._asked:  # ``x = x or y``
            return UNKNOWN
        self._asked.add(name)
        try:
            return values.union(binding.value(self.value) for binding in bindings)
        finally:
            self._asked.discard(name)

    def _taken_out(self, base: ast.expr, key: object = ...) -> Value:
        if isinstance(base, ast.List | ast.Tuple | ast.Set):
            return values.union(self.value(each) for each in base.elts)
        return values.elements(self.value(base), key)

    def _result(self, node: ast.Call) -> Value:
        """Return what a call gives back."""
        callee = self.value(node.func)
        if isinstance(node.func, ast.Attribute):
            base, name = self.value(node.func.value), node.func.attr
            if name in known.DERIVING | {"bind", "bind_tools"} and (base.kind is Kind.MODEL or _all_run(base)):
                return base
            if base.objects and all(isinstance(thing, CONTAINERS) for thing in base.objects):
                if name in TAKING_OUT:
                    return values.elements(base)
                if name in WHOLE:
                    return base
        if callee.kind is not Kind.OBJECT:
            return UNKNOWN
        return values.union(self._result_of(thing, node) for thing in callee.objects)

    def _result_of(self, callee: Any, node: ast.Call) -> Value:
        if callee is getattr:
            return self._getattr(node)
        if isinstance(callee, FunctionType) and callee in AMBIENT:
            return Value(AMBIENT[callee])
        if node.args and any(callee is each for each in PASSING_ON):
            return values.union(self.value(each) for each in node.args)
        if callee is next and node.args:
            return values.elements(self.value(node.args[0]))
        owner = callee.__self__ if isinstance(callee, MethodType) else callee
        if isinstance(owner, type):
            if issubclass(owner, BaseLanguageModel):
                return Value(Kind.MODEL)
            if issubclass(owner, BasePromptTemplate | BaseOutputParser):
                return PURE
        module, name = where_from(callee)
        whose = origin(module, name, self.home)
        if isinstance(callee, type) and whose is Origin.USER:
            return Value(Kind.INSTANCE, (callee,))
        quiet = isinstance(callee, type) and whose is Origin.QUIET
        return PURE if quiet and module.partition(".")[0] not in known.ACTING_CLASSES else UNKNOWN

    def _getattr(self, node: ast.Call) -> Value:
        match node.args:
            case [base, ast.Constant(value=str(name)), *rest]:
                return values.union(
                    [values.attribute(self.value(base), name), *(self.value(default) for default in rest)]
                )
            case _:
                return UNKNOWN

    # --- what is used ---------------------------------------------------------------------------------------

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Load):
            return
        value = self.value(node)
        self._reach(value, node.id, called=False)
        if self.scope.find(node.id) is None and node.id not in self.outside:
            self.body.cannot_see("name", f"`{node.id}` cannot be resolved")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        base, value = self.value(node.value), self.value(node)
        self._visit_base(node.value)
        if not isinstance(node.ctx, ast.Load):
            return
        self._run_getters(base, node.attr)
        self._reach(value, node.attr, called=False)
        if base.kind is Kind.STORE:
            self._uses_store(node.attr)
        elif base.kind in (Kind.UNKNOWN, Kind.INJECTED) and node.attr in known.RUN_VERBS:
            self.body.cannot_see("call", f"`.{node.attr}` of a value made at run time")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        value = self.value(node)
        self._visit_base(node.value)
        self.visit(node.slice)
        self._reach(value, ast.unparse(node.value)[:60], called=False)

    def visit_Call(self, node: ast.Call) -> None:
        callee = node.func
        value = self.value(callee)
        if isinstance(callee, ast.Attribute):
            self._method(node, callee, value)
        elif value.kind is Kind.UNKNOWN or value.kind is Kind.INJECTED:
            if not (isinstance(callee, ast.Name) and self._unresolved(callee.id)):
                self.body.cannot_see("call", f"`{ast.unparse(callee)[:60]}` is called, and known only at run time")
            self._visit_base(callee)
        elif not isinstance(callee, ast.Name):
            self._visit_base(callee)
        self._reach(value, ast.unparse(callee)[:60], called=True)
        for thing in value.objects if value.kind is Kind.OBJECT else ():
            self._known_callee(thing, node)
        if self._binds_tools(node):
            return
        for argument in (*node.args, *(keyword.value for keyword in node.keywords)):
            self.visit(argument)

    def _unresolved(self, name: str) -> bool:
        if self.scope.find(name) is not None or name in self.outside:
            return False
        self.body.cannot_see("name", f"`{name}` cannot be resolved")
        return True

    def _visit_base(self, node: ast.expr) -> None:
        """Visit what an attribute or element is taken from; a plain name is only a way to it."""
        if isinstance(node, ast.Name):
            self._unresolved(node.id)
        elif isinstance(node, ast.Attribute):
            self._run_getters(self.value(node.value), node.attr)
            self._visit_base(node.value)
        elif isinstance(node, ast.Subscript):
            self._visit_base(node.value)
            self.visit(node.slice)
        else:
            self.visit(node)

    def _method(self, node: ast.Call, callee: ast.Attribute, value: Value) -> None:
        base, name = self.value(callee.value), callee.attr
        self._visit_base(callee.value)
        if base.kind is Kind.STORE:
            self._uses_store(name)
        elif base.kind in (Kind.PURE, Kind.MODEL, Kind.RUNTIME):
            return
        elif base.kind is Kind.OBJECT and value.kind is Kind.UNKNOWN and not _all_plain(base):
            self.body.cannot_see("attribute", f"`.{name}` of a `{_types(base)}` cannot be resolved")
        elif base.kind is Kind.INSTANCE and value.kind is Kind.UNKNOWN:
            self.body.cannot_see("attribute", f"`.{name}` of a new `{_types(base)}` cannot be resolved")
        elif base.kind is Kind.INJECTED:
            allowed = hasattr(str, name) or (name in known.MAPPING_METHODS and not self._is_picked(callee.value))
            if not allowed:
                self.body.cannot_see("call", f"`.{name}` of something out of the run's config or context")
        elif value.kind is Kind.UNKNOWN and name not in known.PLAIN_METHODS:
            self.body.cannot_see("call", f"`.{name}` of a value made at run time")

    def _uses_store(self, method: str) -> None:
        self.body.store_reads |= method in STORE_READS
        self.body.store_writes |= method not in STORE_READS

    def _is_picked(self, node: ast.expr) -> bool:
        """Whether an expression picks one thing out of the context: an object of the caller's, not a mapping."""
        if isinstance(node, ast.Attribute):
            return self.value(node.value).kind is Kind.INJECTED
        return isinstance(node, ast.Subscript) and isinstance(node.value, ast.Subscript | ast.Attribute | ast.Call)

    def _known_callee(self, thing: Any, node: ast.Call) -> None:
        if isinstance(thing, type) and issubclass(thing, Command):
            self._command(node)
        elif isinstance(thing, type) and issubclass(thing, BaseLanguageModel):
            self.body.models_made[thing.__name__] = None
        elif isinstance(thing, type) and issubclass(thing, RUNS_BY_ITSELF) and self._result(node).kind is not Kind.PURE:
            self.body.cannot_see("made", f"a `{thing.__name__}` is made in the body")
        elif thing is getattr and self._result(node).kind is Kind.UNKNOWN:
            self.body.cannot_see("attribute", "`getattr` with a name known only at run time")

    def _command(self, node: ast.Call) -> None:
        """Read where a ``Command`` leads."""
        keywords = {keyword.arg: keyword.value for keyword in node.keywords}
        if None in keywords or node.args:  # ``Command(**x)``
            self.body.goto_any = True
        graph = keywords.get("graph")
        if graph is not None and not (isinstance(graph, ast.Constant) and graph.value is None):
            self.body.goto_parent = True
            return
        goto = keywords.get("goto")
        targets = goto.elts if isinstance(goto, ast.Tuple | ast.List) else [goto] if goto is not None else []
        for target in targets:
            if isinstance(target, ast.Call) and target.args and isinstance(target.args[0], ast.Constant):  # a Send
                target = target.args[0]
            name = target.value if isinstance(target, ast.Constant) else self._text(target)
            if isinstance(name, str):
                self.body.gotos[name] = None
            else:
                self.body.goto_any = True

    def _text(self, node: ast.expr) -> str | None:
        """Return a text that an expression certainly is: ``END`` is a name for one."""
        objects = self.value(node).objects
        return objects[0] if len(objects) == 1 and isinstance(objects[0], str) else None

    def _binds_tools(self, node: ast.Call) -> bool:
        """Read ``bind_tools`` and ``bind(tools=...)``: what they are given is offered to a model, not run here."""
        callee = node.func
        if not isinstance(callee, ast.Attribute) or callee.attr not in ("bind_tools", "bind"):
            return False
        given = {keyword.arg: keyword.value for keyword in node.keywords}
        tools = node.args[0] if callee.attr == "bind_tools" and node.args else given.get("tools")
        if callee.attr == "bind_tools" or tools is not None or None in given:
            self.body.cannot_see(
                "bind_tools", f"`{callee.attr}` is called in the body: the tools are chosen at run time"
            )
        if tools is not None:
            self._offer(tools)
        for name, argument in given.items():
            if name != "tools":
                self.visit(argument)
        return True

    def _offer(self, tools: ast.expr) -> None:
        parts = tools.elts if isinstance(tools, ast.List | ast.Tuple) else [tools]
        for part in parts:
            try:
                self.body.bound.append(ast.literal_eval(part))
                continue
            except (ValueError, TypeError):
                pass
            for thing in self.value(part).objects:
                self.body.bound += values.items(thing) if isinstance(thing, list | tuple | set) else [thing]

    def _run_getters(self, base: Value, name: str) -> None:
        for getter in values.getters(base, name):
            self.body.reached.append(Reached(getter, name, called=True))

    def _reach(self, value: Value, name: str, *, called: bool) -> None:
        for thing in value.objects if value.kind is not Kind.INSTANCE else ():
            self.body.reached.append(Reached(thing, name, called, value.via))


def _all_run(value: Value) -> bool:
    return bool(value.objects) and all(isinstance(thing, RUNS_BY_ITSELF) for thing in value.objects)


def _all_plain(value: Value) -> bool:
    return all(isinstance(thing, (*CONTAINERS, *values.PLAIN_TYPES)) for thing in value.objects)


def _types(value: Value) -> str:
    return " or ".join(
        dict.fromkeys(each.__name__ if isinstance(each, type) else type(each).__name__ for each in value.objects)
    )
