"""The root of the command line: versions, mistakes, missing extras, Ctrl-C."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.core import TyperGroup

from agent_hedge import __version__
from agent_hedge.cli import __main__ as root
from agent_hedge.errors import ConfigurationError, HedgeError
from tests.conftest import HUNG_S


def run(capfd: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        root.main(arguments)
    out, err = capfd.readouterr()
    assert isinstance(ended.value.code, int)
    return ended.value.code, out, err


def test_version(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(capfd, "--version") == (0, f"agent-hedge {__version__}\n", "")


def test_version_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from agent_hedge.cli.__main__ import main\n"
        "try:\n    main(['--version'])\nexcept SystemExit: pass\n"
        "heavy = {'langchain_core', 'langgraph', 'openai', 'sqlalchemy', 'numpy', 'agent_hedge.hedger'}\n"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_help_lists_the_commands(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capfd, "--help")
    assert code == 0
    for name in ("demo", "engine", "explain", "tools", "db"):
        assert f" {name} " in out


@pytest.mark.parametrize("name", root.Commands().list_commands(None))
def test_every_command_is_there(capfd: pytest.CaptureFixture[str], name: str) -> None:
    assert run(capfd, name, "--help")[0] == 0


def test_r20_an_unknown_command(capfd: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capfd, "dmeo")
    assert (code, out) == (2, "")
    assert "dmeo" in err


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigurationError("no such\nthing"), 2, "agent-hedge: no such thing\n"),
        (FileNotFoundError(2, "No such file", "x.csv"), 2, "agent-hedge: [Errno 2] No such file: 'x.csv'\n"),
        (HedgeError("the store is gone"), 1, "agent-hedge: the store is gone\n"),
        (
            ModuleNotFoundError("No module named 'langgraph'", name="langgraph.graph"),
            2,
            "agent-hedge: this needs langgraph: pip install 'agent-hedge[langgraph]'\n",
        ),
        (KeyboardInterrupt(), 130, "agent-hedge: interrupted\n"),
    ],
)
def test_r20_a_mistake_is_one_clear_line(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str
) -> None:
    def broken(*_: object) -> None:
        raise error

    monkeypatch.setattr(TyperGroup, "invoke", broken)
    assert run(capfd, "db") == (code, "", said)


def test_a_missing_package_of_nobodys_extra_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ModuleNotFoundError("No module named 'agent_hedge.gone'", name="agent_hedge.gone")

    monkeypatch.setattr(TyperGroup, "invoke", broken)
    with pytest.raises(ModuleNotFoundError):
        root.main(["db"])


def test_r20_a_port_in_use(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, out, err = run(capfd, "engine", "--port", str(port))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"cannot listen on 127.0.0.1:{port}" in err


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT to a process group")
def test_ctrl_c_ends_the_engine(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "agent_hedge.cli.__main__", "engine", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path) as engine:
        assert engine.stdout is not None
        assert engine.stderr is not None
        assert "http://127.0.0.1:" in engine.stdout.readline()
        engine.send_signal(signal.SIGINT)
        assert engine.wait(HUNG_S) == 0
        assert "Traceback" not in engine.stderr.read()
