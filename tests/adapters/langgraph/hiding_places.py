"""Nodes that all send mail, each by another way of Python's, and nodes that do nothing of the kind.

Every function of `HIDING` really calls the tool (a test runs them); every one of `HARMLESS` may be raced.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import operator
import re
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, trim_messages
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.config import get_stream_writer
from langgraph.runtime import Runtime
from langgraph.types import Command, Send, StreamWriter
from pydantic import BaseModel

from tests.adapters.langgraph.sample_graphs import State, hedged, prompt, send_email

MAIL = {"to": "a"}
TOOLS = [send_email]
NESTED = {"mail": {"send": [send_email]}}
PAIRS = [("send", send_email)]
CALLS = {"send": send_email.invoke}


def run(tool: Any) -> Any:
    return tool.invoke(MAIL)


@functools.lru_cache
def cached(_: int) -> Any:
    return send_email.invoke(MAIL)


@contextmanager
def entered() -> Iterator[Any]:
    yield send_email.invoke(MAIL)


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def wrapper(state: State) -> Any:
        send_email.invoke(MAIL)
        return function(state)

    return wrapper


class WithClassAttribute:
    tool = send_email

    def __call__(self, state: State) -> Any:
        return {"log": [self.tool.invoke(MAIL)]}


class WithSlots:
    __slots__ = ("act",)

    def __init__(self) -> None:
        self.act = send_email.invoke

    def __call__(self, state: State) -> Any:
        return {"log": [self.act(MAIL)]}


class WithProperty:
    @property
    def tool(self) -> Any:
        return send_email

    def node(self, state: State) -> Any:
        return {"log": [self.tool.invoke(MAIL)]}


class WithActingProperty:
    @property
    def sent(self) -> str:
        return str(send_email.invoke(MAIL))

    def node(self, state: State) -> Any:
        return {"log": [self.sent.upper().strip()]}


class WithGetattr:
    def __getattr__(self, name: str) -> Any:
        return send_email.invoke

    def node(self, state: State) -> Any:
        return {"log": [self.anything(MAIL)]}


class Parent:
    def act(self) -> Any:
        return send_email.invoke(MAIL)


class Child(Parent):
    def node(self, state: State) -> Any:
        return {"log": [super().act()]}

    @staticmethod
    def static() -> Any:
        return send_email.invoke(MAIL)

    @classmethod
    def of_class(cls) -> Any:
        return send_email.invoke(MAIL)


@dataclass
class Holder:
    tool: Any = field(default_factory=lambda: send_email)


holder = Holder()
getattr_holder = WithGetattr()


def h_default(state: State, tool: Any = send_email) -> Any:
    return {"log": [tool.invoke(MAIL)]}


def h_argument(state: State) -> Any:
    return {"log": [run(send_email)]}


def h_holder_as_argument(state: State) -> Any:
    return {"log": [run(holder.tool)]}


def h_list(state: State) -> Any:
    return {"log": [TOOLS[0].invoke(MAIL)]}


def h_nested(state: State) -> Any:
    return {"log": [NESTED["mail"]["send"][0].invoke(MAIL)]}


def h_items(state: State) -> Any:
    return {"log": [each.invoke(MAIL) for name, each in {"send": send_email}.items()]}


def h_global_items(state: State) -> Any:
    done = []
    for _, each in PAIRS:
        done.append(each.invoke(MAIL))
    return {"log": done}


def h_stored_calls(state: State) -> Any:
    return {"log": [CALLS["send"](MAIL)]}


def h_comprehension(state: State) -> Any:
    return {"log": [[each for each in TOOLS if each.name][-1].invoke(MAIL)]}


def h_sorted(state: State) -> Any:
    return {"log": [next(iter(sorted(TOOLS, key=str))).invoke(MAIL)]}


def h_tuple(state: State) -> Any:
    first, _ = send_email, None
    return {"log": [first.invoke(MAIL)]}


def h_walrus(state: State) -> Any:
    return {"log": [(found := TOOLS[-1]) and found.invoke(MAIL)]}


def h_conditional(state: State) -> Any:
    return {"log": [(send_email if state else None).invoke(MAIL)]}  # type: ignore[union-attr]


def h_map(state: State) -> Any:
    return {"log": list(map(send_email.invoke, [MAIL]))}


def h_func(state: State) -> Any:
    return {"log": [send_email.invoke({"to": "b"}), send_email.func("a")]}  # type: ignore[attr-defined]


def h_getattr(state: State) -> Any:
    return {"log": [getattr(send_email, "invoke")(MAIL)]}  # noqa: B009


def h_methodcaller(state: State) -> Any:
    return {"log": [operator.methodcaller("invoke", MAIL)(send_email)]}


def h_itemgetter(state: State) -> Any:
    return {"log": [operator.itemgetter(0)(TOOLS).invoke(MAIL)]}


def h_partial(state: State) -> Any:
    act = functools.partial(send_email.invoke, MAIL)
    return {"log": [act()]}


def h_lambda(state: State) -> Any:
    act: Callable[[], Any] = lambda: send_email.invoke(MAIL)  # noqa: E731
    return {"log": [act()]}


def h_inner(state: State) -> Any:
    def inner() -> Any:
        return send_email.invoke(MAIL)

    return {"log": [inner()]}


def h_globals(state: State) -> Any:
    return {"log": [globals()["send_email"].invoke(MAIL)]}


def h_thread(state: State) -> Any:
    with ThreadPoolExecutor() as pool:
        return {"log": [pool.submit(send_email.invoke, MAIL).result()]}


def h_cached(state: State) -> Any:
    cached.cache_clear()
    return {"log": [cached(1)]}


def h_context_manager(state: State) -> Any:
    with entered() as done:
        return {"log": [done]}


@decorated
def h_decorated(state: State) -> Any:
    return {}


def h_static(state: State) -> Any:
    return {"log": [Child.static()]}


def h_class_method(state: State) -> Any:
    return {"log": [Child.of_class()]}


def h_inherited(state: State) -> Any:
    return {"log": [Child().act()]}


def h_getattr_object(state: State) -> Any:
    return {"log": [getattr_holder.get(MAIL)]}


def h_returns_a_runnable(state: State) -> Any:
    return RunnableLambda(lambda given: {"log": [send_email.invoke(MAIL)]})


def as_mail(given: str) -> dict[str, Any]:
    return dict(MAIL)


def h_chain(state: State) -> Any:
    return {"log": [(RunnableLambda(as_mail) | send_email).invoke("x")]}


async def ha_gather(state: State) -> Any:
    return {"log": await asyncio.gather(*(each.ainvoke(MAIL) for each in TOOLS))}


async def ha_to_thread(state: State) -> Any:
    return {"log": [await asyncio.to_thread(send_email.invoke, MAIL)]}


async def ha_task_group(state: State) -> Any:
    async with asyncio.TaskGroup() as group:
        done = group.create_task(send_email.ainvoke(MAIL))
    return {"log": [done.result()]}


HIDING: dict[str, Any] = {name: each for name, each in list(globals().items()) if name.startswith(("h_", "ha_"))} | {
    "partial": functools.partial(lambda tool, state: {"log": [tool.invoke(MAIL)]}, send_email),
    "keyword partial": functools.partial(h_default, tool=send_email),
    "lambda": lambda state: {"log": [send_email.invoke(MAIL)]},
    "class attribute": WithClassAttribute(),
    "slots": WithSlots(),
    "property": WithProperty().node,
    "property that acts": WithActingProperty().node,
    "__getattr__": WithGetattr().node,
    "super": Child().node,
}


# --- nothing to bar -----------------------------------------------------------------------------------------------

log = logging.getLogger(__name__)
WORD = re.compile(r"\w+")
LIMITS = {"short": 3, "long": 30}
SYSTEM = SystemMessage("be brief")


class Plan(BaseModel):
    steps: list[str] = []
    done: bool = False


def g_messages(state: State) -> Any:
    messages = [SYSTEM, *state["messages"], HumanMessage("next?")]
    recent = trim_messages(messages, max_tokens=LIMITS["long"], token_counter=len)
    answer = hedged.invoke(recent)
    log.info("answered %s", answer.id)
    return {"messages": [answer]}


def g_structured(state: State) -> Any:
    plan = Plan(steps=WORD.findall(str(state["messages"][-1].content)))
    return {"log": [plan.model_dump(), json.dumps(plan.steps), Counter(plan.steps).most_common(1)]}


def g_time(state: State) -> Any:
    return {"log": [datetime.now(UTC).isoformat(), uuid.uuid4().hex.upper(), deque([1]).popleft()]}


def g_config(state: State, config: RunnableConfig, writer: StreamWriter) -> Any:
    writer({"thread": config["configurable"].get("thread_id", "").strip()})
    get_stream_writer()({"more": 1})
    return {}


def g_context(state: State, runtime: Runtime[Any]) -> Any:
    runtime.stream_writer({"user": runtime.context["user"].lower()})
    return {"log": [runtime.context.get("user")]}


def g_errors(state: State) -> Any:
    try:
        return {"log": [int(state["log"][0]) / 2]}
    except (ValueError, ZeroDivisionError) as error:
        log.warning("no number: %s", error)
        raise RuntimeError("no number") from error


def g_match(state: State) -> Any:
    match state["log"]:
        case [str(word), *rest]:
            return {"log": [word.title(), len(rest)]}
        case _:
            return {"log": sorted(set(map(str, state["log"])), key=len)}


def g_command(state: State) -> Any:
    return Command(update={"log": []}, goto=[Send("n", {"log": []})])


def g_names_only(state: State) -> Any:
    return {"log": [send_email.name, [each.name for each in TOOLS]]}


async def g_async(state: State) -> Any:
    chain = prompt | hedged.with_retry()
    async with asyncio.timeout(5):
        pieces = [piece async for piece in chain.astream({"question": "x"})]
    await asyncio.sleep(0)
    return {"messages": [AIMessage("".join(str(piece.content) for piece in pieces))]}


def g_generator(state: State) -> Iterator[Any]:
    yield from ({"log": [each]} for each in range(3))


HARMLESS = {name: each for name, each in list(globals().items()) if name.startswith("g_")}
