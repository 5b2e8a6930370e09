"""B2: langchain-tests' chat-model suites for a hedged model, while hedges are launched and both members win some."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from agent_hedge import Fixed, FleetBudget, Hedger, Target
from agent_hedge.adapters.langchain.model import HedgedChatModel
from agent_hedge.core.events import Committed, Event
from agent_hedge.core.step import Role
from agent_hedge.testing.engine import Ending
from tests.testing.langchain_standard import NOWHERE, Offline, OnEngines

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio' but it is not an async function"),
]


class Wins:
    """Counts the attempts that win, by the thread of their loop (sync callers race in the background) and role."""

    def __init__(self) -> None:
        self.by_path: Counter[tuple[str, Role]] = Counter()

    def on_event(self, event: Event) -> None:
        if isinstance(event, Committed):
            path = "async" if threading.current_thread() is threading.main_thread() else "sync"
            self.by_path[path, event.attempt.role] += 1


WINS = Wins()
HEDGER = Hedger(policy=Fixed(0.0), budget=FleetBudget(1.0, floor=100_000, burst=100_000), observers=[WINS])
"""Hedges every call at once (a timer would be late, and move, on a loaded machine); random TTFTs say who wins."""


class Pair(HedgedChatModel):
    """Constructed like a ChatOpenAI, as the suites do; `urls` are its two engines."""

    urls: ClassVar[tuple[str, str]] = (NOWHERE, NOWHERE)

    def __new__(cls, **settings: Any) -> HedgedChatModel:  # type: ignore[misc]
        settings.pop("base_url", None)
        return HEDGER.chat_model(
            *(Target(f"replica-{n}", ChatOpenAI(base_url=url, **settings)) for n, url in enumerate(cls.urls))
        )


class TestHedgedUnit(Offline, ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return Pair

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "fake-model"}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        return {"OPENAI_API_KEY": "none"}, {"model": "fake-model"}, {"openai_api_key": "none"}


class TestHedgedIntegration(OnEngines, ChatModelIntegrationTests):
    engine_count = 2
    profile = "lognormal:0.025,1.5"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def pair(cls, serve: None) -> Iterator[None]:
        """Point the members at the engines, and prove at the end that the suite ran while hedging."""
        Pair.urls = (cls.engines[0].base_url, cls.engines[1].base_url)
        yield
        counts = HEDGER.status()["last_60_minutes"]
        assert counts["hedges"] == counts["requests"] >= 60
        for path in ("sync", "async"):
            assert WINS.by_path[path, Role.PRIMARY] >= 3
            assert WINS.by_path[path, Role.HEDGE] >= 3
        for engine in cls.engines:
            endings = Counter(record.ending for record in engine.records)
            assert endings[Ending.COMPLETED] >= 10
            assert endings[Ending.ABORTED] >= 5
            assert endings[Ending.FAILED] == 0

    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return Pair

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "fake-model", "api_key": "none"}
