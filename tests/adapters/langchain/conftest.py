"""Two fake engines for the tests of this folder, fresh faults for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_hedge.testing.engine import FakeEngine, Hardware

HERE = Path(__file__).parent
SDK_GENERATORS = (
    r"ignore:Exception ignored in. <async_generator object \w*(Stream|Response)\."
    r":pytest.PytestUnraisableExceptionWarning"
)
"""The SDK leaves the inner generators of an abandoned stream (a loser's, say) in a cycle, to the collector. When that
runs in an engine's thread while the loop closes them, it finds them "already executing", which harms nobody."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings(SDK_GENERATORS))


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
