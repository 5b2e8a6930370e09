"""``agent-hedge``: the root of the command line.

Commands are imported when they are named, so that ``agent-hedge --version`` is quick and a command whose extra is not
installed stands in nobody's way. Exit codes: 2 for an error of the user's making, 1 for one of the world's and for a
check that found something, 130 for Ctrl-C; one line each, on stderr. Commands raise; it is said here.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from typing import Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from agent_hedge import __version__
from agent_hedge.errors import ConfigurationError, HedgeError

COMMANDS = {
    "demo": "demo:demo",
    "explain": "explain:explain",
    "tools": "tools:app",
    "ledger": "ledger:app",
    "status": "status:status",
    "report": "report:report",
    "runs": "runs:app",
    "targets": "targets:app",
    "on": "switches:on",
    "shadow": "switches:shadow",
    "off": "switches:off",
    "db": "db:app",
    "engine": "engine:engine",
}
"""Name -> module of this package and its Typer app or function, in the order of the help."""
EXTRAS = {
    "aiosqlite": "sql",
    "alembic": "sql",
    "asyncpg": "sql",
    "h11": "demo",
    "langchain_core": "langgraph",
    "langchain_openai": "demo",
    "langgraph": "langgraph",
    "opentelemetry": "otlp",
    "psycopg": "sql",
    "sqlalchemy": "sql",
}
"""Package -> the extra that brings it."""


class Commands(TyperGroup):
    """The commands of `COMMANDS`, each imported when it is asked for; what they raise ends as one line."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if find_spec(_module(name)) is not None]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in self.list_commands(ctx):
            return None
        found = getattr(import_module(_module(cmd_name)), COMMANDS[cmd_name].partition(":")[2])
        if not isinstance(found, typer.Typer):
            single = typer.Typer(add_completion=False)
            single.command(cmd_name)(found)
            found = single
        command = typer.main.get_command(found)
        command.name = cmd_name
        return command

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            _fail("interrupted", 130)
        except BrokenPipeError:  # whoever read the output has seen enough
            raise
        except ModuleNotFoundError as error:
            _fail(*_missing(error))
        except (ConfigurationError, OSError) as error:
            _fail(str(error), 2)
        except HedgeError as error:
            _fail(str(error), 1)


app = typer.Typer(cls=Commands, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"agent-hedge {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Hedged LLM steps for LangGraph agents: cut the tail of long runs, and run no side effect twice."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; `arguments` default to the process's own. Always ends in `SystemExit`."""
    app(args=None if arguments is None else list(arguments), prog_name="agent-hedge")


def _module(name: str) -> str:
    return f"agent_hedge.cli.{COMMANDS[name].partition(':')[0]}"


def _missing(error: ModuleNotFoundError) -> tuple[str, int]:
    package = (error.name or "").partition(".")[0]
    if package not in EXTRAS:
        raise error
    return f"this needs {package}: pip install 'agent-hedge[{EXTRAS[package]}]'", 2


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(f"agent-hedge: {' '.join(message.split())}", err=True)
    raise typer.Exit(code)


if __name__ == "__main__":
    main()
