"""The README's Python runs as it stands, and its commands exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent_hedge.cli.__main__ import main
from agent_hedge.testing.engine import FakeEngine
from tests.examples.page import KEYS, snippets, with_replicas

PAGE = Path(__file__).parents[2] / "README.md"
README = PAGE.read_text(encoding="utf-8")
SNIPPETS = snippets(PAGE)
COMMANDS = sorted(set(re.findall(r"agent-hedge ([a-z]+)((?: --[a-z-]+)*)", README)))


@pytest.mark.parametrize("snippet", SNIPPETS, ids=range(len(SNIPPETS)))
def test_runs(snippet: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them alone, as a program."""
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    names: dict[str, Any] = {}
    with FakeEngine.in_thread() as one, FakeEngine.in_thread() as other:
        exec(with_replicas(snippet, (one.base_url, other.base_url)), names)
    if "answer" in names:
        assert names["answer"].text
        assert names["run"].report()["steps"] == 1


@pytest.mark.parametrize(("command", "options"), COMMANDS)
def test_the_commands_and_their_options_exist(
    command: str, options: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    said = capfd.readouterr().out
    for option in options.split():
        assert option in said


def test_the_readme_is_about_this_package_and_no_machine() -> None:
    assert len(SNIPPETS) == 3
    for path in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (PAGE.parent / path).is_file()
    declared = tomllib.loads((PAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = re.search(r"Extras: ((?:`\w+`,?\s+)*`\w+`)", README)
    assert extras
    assert set(re.findall(r"\w+", extras[1])) == declared["optional-dependencies"].keys()
    assert COMMANDS
    here = str(Path(__file__).parents[3])
    for word in (here, "/home/", "/tmp/", "localhost", "127.0.0.1", "internal"):
        assert word not in README
