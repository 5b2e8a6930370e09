"""Walks through the objects behind one node: what can be reached inside it, and what cannot be seen.

Nothing of the user's runs. Where an object is one the walk knows (a tool, a model, a graph, one of LangChain's
building blocks), its parts are followed; the user's functions are read (`reader`); everything else is a blind spot.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from langchain_core.language_models import BaseLanguageModel
from langchain_core.runnables import Runnable
from langchain_core.tools import BaseTool
from langgraph.prebuilt import ToolNode
from langgraph.pregel import Pregel
from langgraph.pregel.protocol import PregelProtocol
from langgraph.types import interrupt

from agent_hedge.adapters.langgraph import middleware, objects, private, source, values
from agent_hedge.adapters.langgraph.findings import BlindSpot, Findings, ModelUse, ToolUse
from agent_hedge.adapters.langgraph.origin import Origin, origin, where_from
from agent_hedge.adapters.langgraph.reader import read
from agent_hedge.adapters.langgraph.runnables import take_apart
from agent_hedge.adapters.langgraph.values import Kind, Value
from agent_hedge.tools.bound import BoundTool, read_call, read_tools

HEDGED = "__agent_hedge_model__"
CALLS = "__agent_hedge_calls__"
"""Attributes of the library's own chat models: told by name, so that no adapter imports another."""

DECLARED = "__agent_hedge_effect__"
NAMESPACE = "__agent_hedge_namespace__"
"""What `tool_effect` and `registry.declare` leave on a tool: told by name, too."""

MAKERS = frozenset({"create_agent", "create_react_agent", "init_chat_model"})
"""Functions of the frameworks that make something able to run."""

NamespaceOf = Callable[[Any], str]


def namespace_of(tool: Any) -> str:
    """Return the registry's namespace a tool was declared in: the mark that `registry.declare` leaves on it.

    What a server says of itself is not asked: a server could take another's name, and with it its trust.
    """
    found = objects.attribute(tool, NAMESPACE)
    return found if isinstance(found, str) else ""


class Walker:
    """One walk. `findings` fills as things are visited; an object is visited once."""

    def __init__(self, *, namespace_of: NamespaceOf = namespace_of, home: frozenset[str] = frozenset()) -> None:
        self.findings = Findings()
        self._namespace_of = namespace_of
        self._home = home
        self._seen: dict[tuple[object, ...], Any] = {}
        self._tools_above: list[str] = []
        self._where = ""

    def visit(self, thing: Any, *, called: bool = True) -> None:
        """Follow one object. `called`: it is run here, not merely held or passed on."""
        if isinstance(thing, (*values.PLAIN_TYPES, types.ModuleType)):
            return
        key = (*objects.identity(thing), called, bool(self._tools_above))
        if key in self._seen:
            return
        self._seen[key] = thing  # kept alive: an identity may not come back
        if isinstance(thing, type):
            if called:
                self._class(thing)
        elif isinstance(thing, values.CONTAINERS):
            self._container(thing)
        elif not self._framework_object(thing):
            self._python_object(thing, called=called)

    # --- objects of the frameworks --------------------------------------------------------------------------

    def _framework_object(self, thing: Any) -> bool:
        agent_middleware = private.middleware_class()
        if isinstance(thing, ToolNode):
            self._tool_node(thing)
        elif isinstance(thing, BaseTool):
            self._tool(thing, "may be called")
        elif isinstance(thing, private.TaskFunction):
            self.findings.tasks[f"`{getattr(thing, '__name__', 'task')}`"] = None
            self.visit(thing.func)
        elif isinstance(thing, PregelProtocol):
            self._graph(thing)
        elif isinstance(thing, BaseLanguageModel):
            self._model(thing)
        elif agent_middleware is not None and isinstance(thing, agent_middleware):
            self._middleware(thing)
        elif isinstance(thing, Runnable):
            self._runnable(thing)
        else:
            return False
        return True

    def _tool_node(self, node: ToolNode) -> None:
        for tool in node.tools_by_name.values():
            self._tool(tool, "runs in the tool node")
        if origin(type(node).__module__, home=self._home) is not Origin.FRAMEWORK:
            self._cannot_see("runnable", f"`{type(node).__name__}` is a tool node of another make")
        wrap, awrap = private.tool_call_wrappers(node)
        if wrap is not None and awrap is None:
            self._note("only wrap_tool_call is set: in an async run it wraps the tools' sync side, inside the loop")
        if awrap is not None and wrap is None:
            self._note("only awrap_tool_call is set: a sync run calls the tools bare")
        for wrapper in filter(None, (wrap, awrap)):
            if where_from(wrapper)[0].partition(".")[0] != "agent_hedge":
                self._cannot_see("wrapper", "a tool-call wrapper may replace the tool or call it again")
            self.visit(wrapper)

    def _tool(self, tool: BaseTool, how: str) -> None:
        if self._tools_above:
            how = f"is reached inside the tool `{self._tools_above[-1]}`"
        use = ToolUse(tool.name, self._namespace_of(tool), how, tool)
        self.findings.tools.setdefault((use.namespace, use.name), use)
        with self._inside(tool.name):
            for name in ("func", "coroutine"):
                body = getattr(tool, name, None)
                self.visit(_undeclared(body))
            for name in ("_run", "_arun"):
                method = getattr(type(tool), name, None)
                if isinstance(method, types.FunctionType) and self._origin(method) is Origin.USER:
                    self.visit(types.MethodType(method, tool))

    def _declared(self, function: types.FunctionType) -> None:
        """A plain function that `tool_effect` marks is a tool."""
        use = ToolUse(function.__name__, self._namespace_of(function), "may be called", function)
        self.findings.tools.setdefault((use.namespace, use.name), use)
        with self._inside(use.name):
            self.visit(_undeclared(function))

    def _graph(self, graph: PregelProtocol[Any, Any, Any, Any]) -> None:
        if not isinstance(graph, Pregel):
            self._cannot_see("remote", f"a `{type(graph).__name__}` runs elsewhere")
            return
        if graph.checkpointer is True:
            self.findings.memory[f"the subgraph `{graph.name}` remembers its thread (checkpointer=True)"] = None
        self.findings.subgraphs.append((graph, bool(self._tools_above)))

    def _model(self, model: BaseLanguageModel[Any]) -> None:
        label = getattr(model, "model_name", None) or getattr(model, "model", None)
        name = f"{type(model).__name__}({label})" if isinstance(label, str) and label else type(model).__name__
        hedged = bool(getattr(type(model), HEDGED, False))
        self.findings.models[ModelUse(name, hedged)] = None
        own = {"mcp_servers": getattr(model, "mcp_servers", None)}
        for arguments in getattr(model, CALLS)() if hedged else [own]:
            self._offer(read_call(arguments))

    def _offer(self, tools: Iterable[BoundTool]) -> None:
        for tool in tools:
            if tool.server_side:
                self.findings.server_side[tool] = None
            else:
                self.findings.bound[tool.name] = None

    def _runnable(self, runnable: Runnable[Any, Any]) -> None:
        parts = take_apart(runnable)
        if parts is None:
            self._other_runnable(runnable)
            return
        for spot in parts.blind:
            self._blind(spot)
        if parts.memory:
            self.findings.memory[parts.memory] = None
        self._offer(read_call(parts.bound))
        for part in parts.inner:
            self.visit(part)

    def _other_runnable(self, runnable: Runnable[Any, Any]) -> None:
        """A Runnable of someone's own: its methods are read where they are the user's."""
        methods = [
            method
            for name in ("invoke", "ainvoke", "stream", "astream", "_get_relevant_documents")
            if isinstance(method := getattr(type(runnable), name, None), types.FunctionType)
            and self._origin(method) is Origin.USER
        ]
        if not methods:
            self._cannot_see("runnable", f"what a `{type(runnable).__name__}` does")
        for method in methods:
            self.visit(types.MethodType(method, runnable))

    def _middleware(self, thing: Any) -> None:
        for note in middleware.one_sided(thing):
            self._note(note)
        for function in middleware.hooks(thing):
            self._scan(function, f"the middleware `{thing.name}`")
        for held in middleware.holds(thing):
            self.visit(held)

    # --- Python ---------------------------------------------------------------------------------------------

    def _python_object(self, thing: Any, *, called: bool) -> None:
        if isinstance(thing, functools.partial):
            self._partial(thing)
        elif isinstance(thing, types.MethodType):
            self._method(thing)
        elif isinstance(thing, types.FunctionType) and DECLARED in thing.__dict__:
            self._declared(thing)
        elif isinstance(thing, types.FunctionType):
            self._function(thing, {})
        elif isinstance(thing, types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType):
            self._foreign(thing)
        elif called and isinstance(call := inspect.getattr_static(thing, "__call__", None), types.FunctionType):
            self.visit(types.MethodType(call, thing))
        elif (wrapped := objects.attribute(thing, "__wrapped__")) is not None:  # ``functools.cache`` and its like
            self.visit(wrapped)
        elif called and callable(thing):
            self._foreign(type(thing))
        elif origin(type(thing).__module__, home=self._home) is Origin.USER:
            for name, held in (objects.attribute(thing, "__dict__") or {}).items():
                if values.acts(held):
                    self._blind(values.from_attribute(thing, name))
                    self.visit(held)

    def _container(self, container: Any) -> None:
        acting = [item for item in values.items(container) if values.acts(item)]
        if acting:
            self._blind(values.from_container(container))
        for item in acting:
            self.visit(item)

    def _partial(self, partial: functools.partial[Any]) -> None:
        for argument in (*partial.args, *partial.keywords.values()):
            self.visit(argument)
        function = partial.func
        if isinstance(function, types.FunctionType) and self._origin(function) is Origin.USER:
            names = function.__code__.co_varnames
            given = {name: values.of(argument) for name, argument in zip(names, partial.args, strict=False)}
            self._function(function, given | {name: values.of(held) for name, held in partial.keywords.items()})
        else:
            self.visit(function)

    def _method(self, method: types.MethodType) -> None:
        owner, function = method.__self__, method.__func__
        agent_middleware = private.middleware_class()
        if isinstance(owner, values.RUNS_BY_ITSELF) and self._origin(function) is not Origin.USER:
            self.visit(owner)
            return
        if agent_middleware is not None and isinstance(owner, agent_middleware):
            self.visit(owner)
            if spot := middleware.unread(owner, function):
                self._blind(spot)
        if not isinstance(function, types.FunctionType):
            self.visit(function)
            return
        first = function.__code__.co_varnames[:1]
        self._function(function, {name: values.of(owner) for name in first})

    def _function(self, function: types.FunctionType, given: dict[str, Value]) -> None:
        if function is interrupt:
            self.findings.interrupts["it calls interrupt()"] = None
            return
        if isinstance(wrapped := function.__dict__.get("__wrapped__"), types.FunctionType):
            self._function(wrapped, given)
        else:
            self.visit(wrapped)
        whose = self._origin(function)
        if whose is Origin.USER:
            self._read(function, objects.defaults(function) | given)
        elif whose is Origin.FRAMEWORK:
            self._framework_function(function)
        else:
            self._foreign(function)

    def _read(self, function: types.FunctionType, given: dict[str, Value]) -> None:
        body = read(function, given, self._home)
        above, self._where = self._where, body.where
        for spot in body.blind:
            self._blind(spot)
        for reached in body.reached:
            if reached.via is not None and (reached.called or values.acts(reached.thing)):
                self._blind(reached.via)
            self.visit(reached.thing, called=reached.called)
        self._where = above
        self._offer(read_tools(body.bound))
        self.findings.models.update(dict.fromkeys(ModelUse(name, hedged=False) for name in body.models_made))
        if not self._tools_above:  # a tool's declared effect stands for what it writes
            self.findings.store_reads |= body.store_reads
            self.findings.store_writes |= body.store_writes
        self.findings.gotos.update(body.gotos)
        self.findings.goto_any |= body.goto_any
        self.findings.goto_parent |= body.goto_parent

    def _framework_function(self, function: types.FunctionType) -> None:
        """A function of LangChain, LangGraph or ours acts through what it carries."""
        module, name = where_from(function)
        self._scan(function, f"`{name}`")
        if name in MAKERS:
            self._cannot_see("made", f"`{name}` makes something at run time")
        cells = objects.cells(function)
        if module == private.AGENT_MODULE and function.__qualname__ in private.AGENT_MODEL_NODES:
            self.visit(cells.get("model"))
            self._offer(read_tools(cells.get("default_tools")))
            for wrapper in middleware.of_model_calls(cells):
                if getattr(wrapper, middleware.OURS, False):
                    self.findings.models = {replace(use, hedged=True): None for use in self.findings.models}
                    continue
                name = middleware.name_of(wrapper)
                self._cannot_see("middleware", f"`{name}` wraps the model call: model and tools may be others")
            cells = {name: cells.get(name) for name in private.AGENT_MODEL_WRAPPERS}
        carried: tuple[type, ...] = (types.FunctionType, types.MethodType, functools.partial)
        if module != private.AGENT_MODULE:
            carried += values.RUNS_BY_ITSELF
        for held in cells.values():
            if isinstance(held, carried):
                self.visit(held)

    def _scan(self, function: types.FunctionType, where: str) -> None:
        names = source.names_of(function.__code__)
        if any(function.__globals__.get(name) is interrupt for name in names):
            self.findings.interrupts[f"{where} calls interrupt()"] = None

    def _class(self, cls: type) -> None:
        """A class is called: any method of the new instance may run."""
        if self._origin(cls) is not Origin.USER:
            self._foreign(cls)
            return
        if issubclass(cls, values.RUNS_BY_ITSELF):
            return  # the reader has said so
        for base in cls.__mro__:
            for held in vars(base).values() if self._origin(base) is Origin.USER else ():
                function = held.__func__ if isinstance(held, classmethod | staticmethod) else held
                function = function.fget if isinstance(function, property) else function
                if isinstance(function, types.FunctionType) and function.__code__.co_filename != "<string>":
                    first = function.__code__.co_varnames[:1]
                    self._function(function, {name: Value(Kind.INSTANCE, (cls,)) for name in first})

    def _foreign(self, thing: Any) -> None:
        """Something callable that is not read: known to be quiet, or a blind spot."""
        module, name = where_from(thing)
        match origin(module, name, self._home):
            case Origin.OUTSIDE:
                self._cannot_see("outside", f"`{module}.{name}` reaches out of the process")
            case Origin.PACKAGE | Origin.USER:
                self._cannot_see("package", f"`{module}.{name}` was not read")
            case _:
                pass

    # --- book-keeping ---------------------------------------------------------------------------------------

    def _origin(self, thing: Any) -> Origin:
        return origin(*where_from(thing), self._home)

    def _cannot_see(self, kind: str, why: str) -> None:
        self._blind(BlindSpot(kind, why))

    def _blind(self, spot: BlindSpot) -> None:
        if not self._tools_above:  # the declared effect of a tool stands for its body
            self.findings.blind[spot if spot.where else replace(spot, where=self._where)] = None

    def _note(self, note: str) -> None:
        self.findings.notes[note] = None

    @contextmanager
    def _inside(self, tool: str) -> Iterator[None]:
        self._tools_above.append(tool)
        try:
            yield
        finally:
            self._tools_above.pop()


def _undeclared(function: Any) -> Any:
    """Return the function behind a declaration: it was counted as the tool it belongs to."""
    return function.__wrapped__ if DECLARED in getattr(function, "__dict__", {}) else function
