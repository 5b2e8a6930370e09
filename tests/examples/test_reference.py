"""The reference pages hold what the code has: settings with their defaults, errors, refusals, commands."""

from __future__ import annotations

import inspect
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import agent_hedge
from agent_hedge import errors
from agent_hedge.adapters.langgraph.adapter import GraphAdapter
from agent_hedge.adapters.langgraph.seed import SETTINGS
from agent_hedge.cli.report.remedies import REMEDIES
from agent_hedge.core.events import Reason
from agent_hedge.engine.driver import accept_all
from agent_hedge.hedger import Hedger, ModelSettings, NodeSettings, WrapSettings
from agent_hedge.tools.registry import Registry
from tests.examples import cli_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

SETTINGS_OF: dict[str, tuple[Callable[..., Any], ...]] = {
    "Hedger(...)": (Hedger.__init__,),
    "chat_model": (Hedger.chat_model,),
    "middleware": (Hedger.middleware,),
    "Target": (agent_hedge.Target,),
    "run": (Hedger.run,),
    "wrap": (Hedger._wrap,),
    "node": (GraphAdapter.node, GraphAdapter._raced, Hedger._node_lane),
    "tool_effect": (agent_hedge.tool_effect,),
    "once": (Hedger.once,),
    "declare": (Registry.declare,),
    "prime": (Hedger.prime,),
    "Planned": (agent_hedge.Planned,),
    "Quantile": (agent_hedge.Quantile,),
    "Fixed": (agent_hedge.Fixed,),
    "FleetBudget": (agent_hedge.FleetBudget,),
}
"""Heading in settings.md -> what has these arguments, the first that names one being asked for its default."""
NOT_SETTINGS = {"self", "fn", "action", "name", "surroundings", "commit_on_token"}
"""What the functions inside `wrap` and `node` take from the outer ones; `name` is a setting of classes."""
SAID_IN_WORDS = {accept_all: ("any result", "any item")}


def test_every_public_name_is_in_a_reference() -> None:
    text = (DOCS / "settings.md").read_text(encoding="utf-8") + (DOCS / "errors.md").read_text(encoding="utf-8")
    assert [name for name in agent_hedge.__all__ if not re.search(rf"\b{name}\b", text)] == []


@pytest.mark.parametrize("heading", SETTINGS_OF)
def test_every_setting_has_its_default(heading: str) -> None:
    wanted = {name: _shown(default) for name, default in _arguments(SETTINGS_OF[heading]).items()}
    assert wanted
    found = {name: default for name, default, _ in _table(DOCS / "settings.md", heading)}
    assert found.keys() == wanted.keys()
    for name, default in found.items():
        assert default in wanted[name], f"the default of {name}"


def test_what_is_said_of_wrap_node_and_models_is_what_their_types_allow() -> None:
    for heading, settings in (("wrap", WrapSettings), ("node", NodeSettings), ("chat_model", ModelSettings)):
        assert {row[0] for row in _table(DOCS / "settings.md", heading)} == settings.__annotations__.keys()


def test_what_configuration_may_say_of_a_run() -> None:
    rows = _table(DOCS / "settings.md", "Runs by configuration")
    assert {name: argument.strip("`") for name, argument in rows} == SETTINGS


def test_every_environment_variable_is_named() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "agent_hedge").rglob("*.py"))
    section = _section(DOCS / "settings.md", "Environment variables")
    assert set(re.findall(r"AGENT_HEDGE_[A-Z_]+", section)) == set(re.findall(r"\bAGENT_HEDGE_[A-Z]+\b", code))


def test_every_error_has_its_place() -> None:
    public = {
        name for name, thing in vars(errors).items() if isinstance(thing, type) and thing.__module__ == errors.__name__
    }
    assert {row[0] for row in _rows((DOCS / "errors.md").read_text(encoding="utf-8"))} == public
    bases = {name: is_ for name, is_, *_ in _rows((DOCS / "errors.md").read_text(encoding="utf-8"))}
    for name in public:
        named = re.findall(r"\w+", bases[name])
        assert [base.__name__ for base in getattr(errors, name).__bases__] == named, f"the bases of {name}"


def test_every_refusal_has_its_meaning_and_the_remedy_of_the_report() -> None:
    rows = {reason: (meaning, remedy) for reason, meaning, remedy in _rows((DOCS / "refusals.md").read_text("utf-8"))}
    assert list(rows) == [reason.value for reason in Reason]
    assert {reason: remedy for reason, (_, remedy) in rows.items()} == {
        reason.value: remedy for reason, remedy in REMEDIES.items()
    }
    assert all(meaning for meaning, _ in rows.values())


def test_the_refusals_that_are_reserved_are_those_that_nothing_says() -> None:
    speaking = (path for path in (ROOT / "agent_hedge").rglob("*.py") if path.name not in ("events.py", "remedies.py"))
    said = set(re.findall(r"\bReason\.([A-Z_]+)", "\n".join(path.read_text(encoding="utf-8") for path in speaking)))
    reserved = re.search(r"^Reserved.*$", (DOCS / "refusals.md").read_text(encoding="utf-8"), re.MULTILINE)
    named = re.findall(r"`(\w+)`", reserved[0]) if reserved else []
    assert named == [reason.value for reason in Reason if reason.name not in said]


def test_the_command_line_is_as_the_page_says() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert page == cli_page.page(), "write it anew: python -m tests.examples.cli_page"


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.name)
def test_every_command_that_is_shown_exists(page: Path) -> None:
    commands = cli_page.commands()
    for words in _shown_commands(page.read_text(encoding="utf-8")):
        name = " ".join(words[:2]) if " ".join(words[:2]) in commands else words[0]
        assert name in commands or words[0] in ("COMMAND", "--help")
        for option in (word for word in words if re.match(r"--?[a-z]", word)):
            assert option in {*commands.get(name, ()), "--help"}, f"agent-hedge {name} has no {option}"


def _shown_commands(text: str) -> list[list[str]]:
    """Return the words after ``agent-hedge`` of every command in a text: after a prompt, or as code in a sentence."""
    lines = re.findall(r"^\$ (.+)$", text, re.MULTILINE) + re.findall(r"`(agent-hedge [^`]+)`", text)
    parts = [part.strip() for line in lines for part in line.partition("  #")[0].split("&&")]
    return [shlex.split(part)[1:] for part in parts if part.startswith("agent-hedge ")]


def _arguments(functions: tuple[Callable[..., Any], ...]) -> dict[str, object]:
    """Return argument -> default, the first function that has it coming first."""
    found: dict[str, object] = {}
    for function in functions:
        for name, parameter in inspect.signature(function).parameters.items():
            variadic = parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
            hidden = name in NOT_SETTINGS and not isinstance(function, type)
            if not variadic and not hidden and not name.startswith("_"):
                found.setdefault(name, parameter.default)
    return found


def _shown(default: object) -> tuple[str, ...]:
    """Return how a page may write a default."""
    if default is inspect.Parameter.empty:
        return ("required",)
    if callable(default) and default in SAID_IN_WORDS:
        return SAID_IN_WORDS[default]
    if isinstance(default, agent_hedge.Effect):
        return (f"`{type(default).__name__}.{default.name}`",)
    if type(default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS":
        return ("`Quantile()`",)  # of `Planned`, the only one
    return (f"`{default!r}`",)


def _section(page: Path, heading: str) -> str:
    text = page.read_text(encoding="utf-8")
    found = re.search(rf"^(#+) `?{re.escape(heading)}`?\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, f"{page.name} has no heading {heading}"
    return found[2]


def _table(page: Path, heading: str) -> list[list[str]]:
    return _rows(_section(page, heading))


def _rows(text: str) -> list[list[str]]:
    """Return the rows of the tables in a text whose first cell is code, as plain text: name, then the other cells."""
    rows = []
    for line in re.findall(r"^\| `.*\|$", text, re.MULTILINE):
        first, *rest = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
        rows.append([first.strip("`"), *rest])
    return rows
