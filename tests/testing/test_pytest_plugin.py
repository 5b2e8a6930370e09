"""The pytest plugin, run inside pytest: its fixtures, its option, its limit, and what it costs at import."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import agent_hedge
from agent_hedge.core.scope import Forced, forced  # here, so that the inner sessions share this module

INSTALLED = "agent_hedge" in entry_points(group="pytest11").names


def run(pytester: pytest.Pytester, code: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile("import asyncio, pytest\nfrom agent_hedge.core.scope import Forced, forced\n" + code)
    plugin = () if INSTALLED else ("-p", "agent_hedge.testing.pytest_plugin")
    return pytester.runpytest_inprocess(*plugin, "-p", "no:asyncio", *options)


SEEN = """
async def seen():
    await asyncio.sleep(0)
    return await asyncio.create_task(asyncio.to_thread(forced.get))
"""


def test_the_clock_runs_on_asyncio_unless_told_otherwise(pytester: pytest.Pytester) -> None:
    code = """
import anyio

def test_default(virtual_clock):
    virtual_clock.run(asyncio.sleep, 3600)
    assert (virtual_clock.backend, virtual_clock.now()) == ("asyncio", 3600)

@pytest.mark.parametrize("virtual_clock", ["asyncio", "trio"], indirect=True)
def test_both(virtual_clock, request):
    async def main():
        await anyio.sleep(3600)
        return anyio.get_cancelled_exc_class().__module__.split(".")[0]
    assert virtual_clock.run(main) == virtual_clock.backend == request.node.callspec.params["virtual_clock"]
    assert virtual_clock.now() == 3600
"""
    run(pytester, code).assert_outcomes(passed=3)


def test_force_runs_each_test_twice_with_another_winner(pytester: pytest.Pytester) -> None:
    code = """
winners = []

def test_forced(agent_hedge_force, virtual_clock):
    expected = Forced(hedge=True, winner=agent_hedge_force)
    assert forced.get() == expected
    assert asyncio.run(seen()) == expected
    assert virtual_clock.run(seen) == expected
    winners.append(agent_hedge_force)

def test_off(agent_hedge_off):
    assert asyncio.run(seen()) == Forced(hedge=False)

def test_neither():
    assert forced.get() is None
    assert winners == [0, 1]
"""
    run(pytester, SEEN + code).assert_outcomes(passed=4)
    assert forced.get() is None


@pytest.mark.parametrize(
    ("option", "expected"),
    [("off", Forced(hedge=False)), ("force", Forced(hedge=True, winner=1))],
)
def test_the_option_holds_for_the_session_and_ends_with_it(
    pytester: pytest.Pytester, option: str, expected: Forced
) -> None:
    code = f"""
at_collection = forced.get()

def test_session():
    assert at_collection == asyncio.run(seen()) == {expected!r}

def test_a_fixture_overrides_it(agent_hedge_force):
    assert forced.get() == Forced(hedge=True, winner=agent_hedge_force)

def test_and_gives_it_back():
    assert forced.get() == {expected!r}
"""
    run(pytester, SEEN + code, f"--agent-hedge={option}").assert_outcomes(passed=4)
    assert forced.get() is None


def test_a_wrong_option_is_refused(pytester: pytest.Pytester) -> None:
    result = run(pytester, "", "--agent-hedge=sometimes")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*invalid choice*sometimes*"])


ANYIO = """
@pytest.fixture
def anyio_backend():
    return "asyncio"

@pytest.fixture
async def first():
    await asyncio.sleep(0)
"""


def test_async_tests_of_anyio_are_forced_too(pytester: pytest.Pytester) -> None:
    code = """
@pytest.mark.anyio
async def test_alone(agent_hedge_force):
    assert await seen() == Forced(hedge=True, winner=agent_hedge_force)

@pytest.mark.anyio
async def test_before_async_fixtures(agent_hedge_force, first):
    assert await seen() == Forced(hedge=True, winner=agent_hedge_force)
"""
    run(pytester, SEEN + ANYIO + code).assert_outcomes(passed=4)


def test_the_limit_an_anyio_fixture_set_up_earlier_hides_the_fixtures_but_not_the_option(
    pytester: pytest.Pytester,
) -> None:
    code = """
@pytest.mark.anyio
async def test_hidden(first, agent_hedge_off):
    assert await seen() == Forced(hedge=True, winner=1)
"""
    run(pytester, SEEN + ANYIO + code, "--agent-hedge=force").assert_outcomes(passed=1)


def test_the_plugin_itself_imports_nothing() -> None:
    """Beyond what pytest has loaded and what `agent_hedge/__init__.py` loads, which a bare package stands in for."""
    code = """
import sys, types, pytest
package = types.ModuleType("agent_hedge")
package.__path__ = ["agent_hedge"]
sys.modules["agent_hedge"] = package
before = set(sys.modules)
import agent_hedge.testing.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""
    root = Path(agent_hedge.__path__[0]).parent
    result = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert result.stdout.split() == ["agent_hedge.testing", "agent_hedge.testing.pytest_plugin"]


def test_the_plugin_loads_no_framework() -> None:
    code = "import sys, agent_hedge.testing.pytest_plugin; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in result.stdout.split()}
    assert loaded.isdisjoint(
        {"langchain_core", "langgraph", "numpy", "opentelemetry", "pydantic", "sqlalchemy", "trio"}
    )
