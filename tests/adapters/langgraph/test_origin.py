"""Whose code something is: the user's is read, the rest is known or a blind spot."""

from __future__ import annotations

import asyncio
import datetime
import functools
import json
import os
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer
from langchain_core.messages import AIMessage
from langgraph.pregel.remote import RemoteGraph

from agent_hedge.adapters.langgraph.origin import Origin, home_of, origin, where_from
from tests.adapters.langgraph import sample_graphs as samples

CASES: list[tuple[Any, Origin]] = [
    (samples.helper, Origin.USER),
    (samples.Service, Origin.USER),
    (samples.Service().run, Origin.USER),
    (AIMessage, Origin.FRAMEWORK),
    (RemoteGraph, Origin.OUTSIDE),
    (json.dumps, Origin.QUIET),
    (len, Origin.QUIET),
    ([].append, Origin.QUIET),
    (str.upper, Origin.QUIET),
    (datetime.datetime.now, Origin.QUIET),
    (asyncio.gather, Origin.QUIET),
    (urllib.parse.quote, Origin.QUIET),
    (os.getenv, Origin.QUIET),
    (os.path.join, Origin.QUIET),
    (os.remove, Origin.OUTSIDE),
    (os.system, Origin.OUTSIDE),
    (open, Origin.OUTSIDE),
    (eval, Origin.OUTSIDE),
    (exec, Origin.OUTSIDE),
    (subprocess.run, Origin.OUTSIDE),
    (socket.socket, Origin.OUTSIDE),
    (urllib.request.urlopen, Origin.OUTSIDE),
    (asyncio.open_connection, Origin.OUTSIDE),
    (httpx.Client, Origin.OUTSIDE),
    (httpx.Client.post, Origin.OUTSIDE),
    (typer.echo, Origin.PACKAGE),
]


@pytest.mark.parametrize(("thing", "whose"), CASES, ids=lambda each: getattr(each, "__qualname__", str(each)))
def test_r09_whose_code_it_is(thing: Any, whose: Origin) -> None:
    assert origin(*where_from(thing)) is whose


def test_r09_a_decorator_does_not_hide_whose_code_it_is() -> None:
    @functools.wraps(json.dumps)
    def wrapper(*args: Any) -> Any:
        return None

    assert wrapper.__module__ == "json"
    assert origin(*where_from(wrapper)) is Origin.USER


def test_r09_code_without_a_module_is_the_users() -> None:
    space: dict[str, Any] = {}
    exec("def act(state): ...", space)
    assert origin(*where_from(space["act"])) is Origin.USER


def test_r09_a_file_of_the_users_may_hide_a_standard_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "antigravity.py").write_text("def act(state): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    import antigravity

    assert origin("antigravity", "act") is Origin.USER
    assert antigravity.__file__ == str(tmp_path / "antigravity.py")


def test_the_package_of_a_nodes_function_is_the_users_even_when_installed() -> None:
    home = home_of(typer.echo)
    assert home == frozenset({where_from(typer.echo)[0].partition(".")[0]})
    assert origin(*where_from(typer.echo), home) is Origin.USER
    assert home_of(samples.one(samples.n_plain).nodes["n"].runnable) == frozenset({"tests"})
    assert home_of(json.dumps) == frozenset()
