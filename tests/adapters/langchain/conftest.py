"""Two fake engines for the tests of this folder, fresh faults for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from agent_hedge.testing.engine import FakeEngine, Hardware


@pytest.fixture(scope="session")
def _two_engines() -> Iterator[tuple[FakeEngine, FakeEngine]]:
    hardware = Hardware(decode_rate=20_000.0)
    with FakeEngine.in_thread(hardware=hardware) as one, FakeEngine.in_thread(hardware=hardware, seed=1) as other:
        yield one, other


@pytest.fixture
def engines(_two_engines: tuple[FakeEngine, FakeEngine]) -> Iterator[tuple[FakeEngine, FakeEngine]]:
    """Two engines that answer at once. What a test makes go wrong is undone; both are idle in the end."""
    yield _two_engines
    for engine in _two_engines:
        engine.faults = None
        engine.wait(lambda engine: engine.is_idle)
