"""Plugins of the whole suite: `pytester`, and ours where it is not installed as an entry point."""

from __future__ import annotations

import os
import signal
from importlib.metadata import entry_points

import hypothesis
import pytest

hypothesis.settings.register_profile(  # no wall clock judges a test: on a busy machine it says nothing
    "agent_hedge", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("agent_hedge")

HUNG_S = 60.0
"""Real seconds after which what a test waits for counts as hung, on any machine."""

pytest_plugins = ["pytester"]

if "agent_hedge" not in entry_points(group="pytest11").names:
    pytest_plugins.append("agent_hedge.testing.pytest_plugin")


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> None:
    """A shell starts what it runs in the background deaf to Ctrl-C, and so would be the programs that tests start."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def unhurried() -> None:
    """Have this process give up only what hangs: a store that a busy machine keeps waiting is no lost store.

    Tests of a time-out set their own, and only where nothing can come.
    """
    from agent_hedge.engine import runbook
    from agent_hedge.hedger import shared
    from agent_hedge.stores.sql import engine, sqlite

    engine.TIMEOUT_S = sqlite.BUSY_S = shared.SETTLE_S = runbook.PATIENCE_S = HUNG_S


@pytest.fixture(scope="session", autouse=True)
def _unhurried() -> None:
    unhurried()


@pytest.fixture(scope="session", autouse=True)
def _spools(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Hedgers with a store keep a spool below the user's home: not in tests."""
    os.environ["AGENT_HEDGE_SPOOL"] = str(tmp_path_factory.mktemp("spool"))
