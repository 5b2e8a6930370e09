"""What langchain-tests' suites need to run on fake engines, for any model over them.

A suite is a class ``class TestMine(OnEngines, ChatModelIntegrationTests)`` that gives `chat_model_class` and
`chat_model_params`; its engines are in `engines`, in threads of their own so that sync and async tests reach them.
Async tests need the mark ``pytest.mark.asyncio(loop_scope="module")``: langchain-openai caches its async client
across loops (langchain#35783).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, ClassVar
from unittest.mock import ANY

import pytest

from agent_hedge.testing.engine import FakeEngine, Hardware

OTHER_MODEL = "another-model"
NOWHERE = "http://127.0.0.1:9/v1"
"""A base URL for suites that must not send anything."""


class Offline:
    """For the unit suites: credentials in the environment, and no snapshot of what a serialized model looks like.

    The round trip is still tested; the serialized form names the versions installed and belongs to langchain.
    """

    @pytest.fixture(autouse=True)
    def credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Set what ChatOpenAI reads from the environment."""
        monkeypatch.setenv("OPENAI_API_KEY", "none")

    @pytest.fixture
    def snapshot(self) -> Callable[..., Any]:
        """Stand in for syrupy's fixture; equal to anything."""
        return lambda **_: ANY


class OnEngines:
    """Serves a class of tests from fake engines, and says what they can do."""

    engine_count: ClassVar[int] = 1
    profile: ClassVar[str] = "fixed:0"
    engines: ClassVar[list[FakeEngine]] = []

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def serve(cls) -> Iterator[None]:
        """Start the engines of the class."""
        with ExitStack() as stack:
            hardware = Hardware(decode_rate=20_000.0)
            cls.engines = [
                stack.enter_context(FakeEngine.in_thread(cls.profile, hardware=hardware, seed=seed))
                for seed in range(cls.engine_count)
            ]
            yield
            for engine in cls.engines:
                engine.wait(lambda engine: engine.is_idle)

    @property
    def supports_json_mode(self) -> bool:
        return True

    @property
    def supports_model_override(self) -> bool:
        return True

    @property
    def model_override_value(self) -> str:
        return OTHER_MODEL
