"""Writes docs/cli.md from the command line itself: ``python -m tests.examples.cli_page``. A test compares the two."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from agent_hedge.cli.__main__ import app

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
INTRODUCTION = """\
# The command line

`agent-hedge COMMAND --help` says the same. This page is written from it: `python -m tests.examples.cli_page`.

Exit codes: 0; 2 for an error of the user's making; 1 for one of the world's, such as a store that does not answer, and
for a check that found something; 130 after Ctrl-C (0 from `engine`, which ends so). An error is one line on stderr,
below the usage where an option is wrong.

Of commands that have them, these options mean the same everywhere:

| option | meaning |
|---|---|
| `--store URL` | the store's database; without it `AGENT_HEDGE_STORE` |
| `--schema NAME` | PostgreSQL schema of the tables |
| `--json` | print plain data |
"""
COMMON = ("--store", "--schema", "--json")


def tree(command: Any = None, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every command, groups before what is in them, by its name without the program's."""
    command = command or typer.main.get_command(app)
    if name:
        yield name, command
    if hasattr(command, "list_commands"):
        context = command.make_context(name or "agent-hedge", [], resilient_parsing=True)
        for sub in command.list_commands(context):
            yield from tree(command.get_command(context, sub), f"{name} {sub}".strip())


def commands() -> dict[str, set[str]]:
    """Return command -> its options."""
    return {name: {opt for param in command.params for opt in param.opts} for name, command in tree()}


def page() -> str:
    """Return the whole page."""
    return INTRODUCTION + "".join(_section(name, command) for name, command in tree())


def _section(name: str, command: Any) -> str:
    group = hasattr(command, "list_commands")
    level = "###" if " " in name else "##"
    text = f"\n{level} `agent-hedge {name}`\n\n{_text(command.help)}\n"
    if group:
        return text
    params = [param for param in command.params if not {*param.opts} & {*COMMON}]
    if params:
        text += "\n| argument or option | default | meaning |\n|---|---|---|\n"
        text += "".join(_row(param) for param in params)
    common = [f"`{option}`" for option in COMMON if any(option in param.opts for param in command.params)]
    return text + (f"\nAlso {', '.join(common)}.\n" if common else "")


def _row(param: Any) -> str:
    if param.param_type_name == "argument":
        name = f"`{param.metavar or param.name.upper()}`"
    else:
        value = "" if getattr(param, "is_flag", False) else f" {param.metavar or 'VALUE'}"
        name = ", ".join(f"`{opt}{value if opt.startswith('--') else ''}`" for opt in param.opts)
    return f"| {name} | {_default(param)} | {_text(param.help)} |\n"


def _default(param: Any) -> str:
    if param.required:
        return "required"
    return "" if param.default is None or param.default is False or param.default == "" else f"`{param.default}`"


def _text(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in inspect.cleandoc(text or "").split("\n\n")).replace(
        "|", r"\|"
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
