"""The fake engine in a thread, in a process, and from the command line."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import anyio
import pytest
from typer.testing import CliRunner

from agent_hedge.cli.__main__ import app
from agent_hedge.core.step import Attempt, Role
from agent_hedge.errors import ConfigurationError
from agent_hedge.testing.engine import Ending, FakeEngine, Hardware, RemoteEngine, serve_in_process
from agent_hedge.testing.engine.hosting import deaf_to_ctrl_c
from agent_hedge.testing.fakes import place
from tests.conftest import HUNG_S

QUICK = Hardware(decode_rate=5_000)
ROOT = Path(__file__).parents[2]


def ask(base_url: str, **headers: str) -> str:
    body = json.dumps({"messages": [{"role": "user", "content": "Hello"}]}).encode()
    with urlopen(Request(f"{base_url}/chat/completions", body, headers)) as answer:
        return str(json.load(answer)["choices"][0]["message"]["content"])


def say_whether_deaf(pipe: Connection) -> None:
    pipe.send(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def ask_a_child(pipe: Connection, method: str) -> None:
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=say_whether_deaf, args=(theirs,))  # type: ignore[attr-defined]
    with deaf_to_ctrl_c():
        process.start()
    pipe.send((ours.recv(), signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())))
    process.join()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_process_is_deaf_to_ctrl_c_from_its_first_instruction_on(method: str) -> None:
    context = multiprocessing.get_context("spawn")  # a fresh one: other tests may have started this one's fork server
    ours, theirs = context.Pipe()
    process = context.Process(target=ask_a_child, args=(theirs, method))
    process.start()
    child, itself = ours.recv()
    process.join()
    assert child
    assert not itself


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield taken.getsockname()[1]


def test_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def talk() -> None:
        async with FakeEngine(hardware=QUICK) as engine:
            assert (await asyncio.to_thread(ask, engine.base_url)).startswith("On Hello")
            await engine.wait_for(lambda engine: engine.is_idle and engine.connections == 0)

    uvloop.run(talk())


def test_in_a_thread() -> None:
    before = set(threading.enumerate())
    with FakeEngine.in_thread("fixed:0.01", hardware=QUICK) as engine:
        assert ask(engine.base_url).startswith("On Hello")
        engine.wait(lambda engine: engine.is_idle)
        assert [record.ending for record in engine.records] == [Ending.COMPLETED]
        with pytest.raises(TimeoutError, match="1 records"):
            engine.wait(lambda engine: engine.running == 9, timeout=0.01)
    assert "agent-hedge-engine" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_r20_a_thread_that_cannot_listen_says_so(taken_port: int) -> None:
    with pytest.raises(ConfigurationError, match=str(taken_port)), FakeEngine.in_thread(port=taken_port):
        pass


def test_in_a_process() -> None:
    with serve_in_process(profile="fixed:0.01", hardware=QUICK, seed=3) as engine:
        assert ask(engine.base_url).startswith("On Hello")
        engine.set_faults("status=503")
        with pytest.raises(HTTPError, match="503"):
            ask(engine.base_url)
        records = engine.records()
        assert [record.ending for record in records] == [Ending.COMPLETED, Ending.REJECTED]
        assert records[0].ttft is not None
        assert records[0].ttft >= 0.01
        engine.set_faults("")
        ask(engine.base_url)


def test_r18_an_engine_tells_when_it_has_let_go_of_an_attempt() -> None:
    known, unknown = (Attempt(0, Role.PRIMARY, place("a"), 0.0, 9.0, None, nonce) for nonce in (5, 6))

    async def told(engine: FakeEngine | RemoteEngine) -> list[bool]:
        answers = [await engine.cancel(known)]
        with anyio.move_on_after(0.05):  # nobody has asked for anything under this id
            answers.append(await engine.cancel(unknown))
        return answers

    with (
        FakeEngine.in_thread("fixed:0.01", hardware=QUICK) as near,
        serve_in_process(profile="fixed:0.01", hardware=QUICK) as far,
    ):
        for engine in (near, far):
            ask(engine.base_url, **{"X-Request-Id": known.id})
            assert asyncio.run(told(engine)) == [True]


def test_r20_a_process_that_cannot_listen_says_so(taken_port: int) -> None:
    with pytest.raises(ConfigurationError, match=str(taken_port)), serve_in_process(port=taken_port):
        pass


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--profile", "gauss:1"], "'gauss:1' is no TTFT profile"),
        (["--profile", "replay:/nowhere.csv"], "/nowhere.csv"),
        (["--slots", "0"], "slots must be at least 1"),
        (["--speedup", "-2"], "speedup must be positive"),
        (["--fault", "explode"], "'explode' is no fault"),
    ],
)
def test_r20_the_command_refuses_in_one_line(arguments: list[str], says: str) -> None:
    result = CliRunner().invoke(app, ["engine", *arguments, "--port", "0"])
    assert result.exit_code == 2
    assert says in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_r20_the_command_names_a_port_in_use(taken_port: int) -> None:
    result = CliRunner().invoke(app, ["engine", "--port", str(taken_port)])
    assert result.exit_code == 2
    assert result.stderr == f"agent-hedge: cannot listen on 127.0.0.1:{taken_port}: Address already in use\n"


def test_the_command_serves_until_ctrl_c() -> None:
    start = "import typer; from agent_hedge.cli.engine import engine; typer.run(engine)"
    options = ["--port", "0", "--model", "m", "--profile", "fixed:0", "--fault", "pings=1", "--fault", "role_first"]
    process = subprocess.Popen(
        [sys.executable, "-c", start, *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[0]
    assert ask(url).startswith("On Hello")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=HUNG_S)
    assert (process.returncode, out, err) == (0, "", "")
