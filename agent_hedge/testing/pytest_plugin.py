"""The pytest plugin: virtual time, and suites that run with hedging forced or off.

- fixture `virtual_clock`: a `VirtualClock`; `clock.run(async_fn, *args)` runs in virtual time. On trio by
  ``@pytest.mark.parametrize("virtual_clock", ["asyncio", "trio"], indirect=True)``.
- fixture `agent_hedge_force`: every step hedges at once; the test runs twice, the primary wins, then the hedge.
- fixture `agent_hedge_off`: no step hedges.
- option ``--agent-hedge=force|off``: the same for a whole session, where forced hedges win; a fixture overrides it.

Forcing is a context variable, set where pytest runs. `asyncio.run`, `virtual_clock`, anyio's and pytest-asyncio's test
runners inherit it. The one exception: anyio runs all that shares an event loop in the context of its first use, so
where an async fixture of a wider scope (or one set up earlier) already holds the loop, a test does not see these
fixtures. The option is always seen.

Every pytest session of every user loads this module, so it imports what it needs where it needs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from agent_hedge.testing.clock import VirtualClock


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("agent-hedge").addoption(
        "--agent-hedge",
        choices=("off", "force"),
        help="off: no step hedges; force: every step hedges at once and its first hedge wins",
    )


def pytest_configure(config: pytest.Config) -> None:
    option = config.getoption("--agent-hedge")
    if option is not None:
        session = ExitStack()
        session.enter_context(_forcing(hedge=True, winner=1) if option == "force" else _forcing(hedge=False))
        config.add_cleanup(session.close)


@pytest.fixture
def virtual_clock(request: pytest.FixtureRequest) -> VirtualClock:
    """A `VirtualClock` on asyncio, or on the backend the test is parametrised with."""
    from agent_hedge.testing.clock import VirtualClock

    return VirtualClock(getattr(request, "param", "asyncio"))


@pytest.fixture(params=[0, 1], ids=["primary-wins", "hedge-wins"])
def agent_hedge_force(request: pytest.FixtureRequest) -> Iterator[int]:
    """Every step hedges at once; yields the number of the attempt that wins: 0, then 1."""
    winner: int = request.param
    with _forcing(hedge=True, winner=winner):
        yield winner


@pytest.fixture
def agent_hedge_off() -> Iterator[None]:
    """No step hedges."""
    with _forcing(hedge=False):
        yield


@contextmanager
def _forcing(*, hedge: bool, winner: int = 0) -> Iterator[None]:
    from agent_hedge.core.scope import Forced, forced

    token = forced.set(Forced(hedge=hedge, winner=winner))
    try:
        yield
    finally:
        forced.reset(token)
