"""langchain-tests' chat-model suites for a plain ChatOpenAI on the fake engine: they prove the engine."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_openai import ChatOpenAI
from langchain_tests.integration_tests import ChatModelIntegrationTests
from langchain_tests.unit_tests import ChatModelUnitTests

from tests.testing.langchain_standard import NOWHERE, Offline, OnEngines

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore:.*is marked with '@pytest.mark.asyncio' but it is not an async function"),
]


class TestPlainUnit(Offline, ChatModelUnitTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "fake-model", "base_url": NOWHERE}

    @property
    def init_from_env_params(self) -> tuple[dict[str, str], dict[str, Any], dict[str, Any]]:
        env = {"OPENAI_API_KEY": "none", "OPENAI_API_BASE": NOWHERE}
        return env, {"model": "fake-model"}, {"openai_api_key": "none", "openai_api_base": NOWHERE}


class TestPlainIntegration(OnEngines, ChatModelIntegrationTests):
    @property
    def chat_model_class(self) -> type[BaseChatModel]:
        return ChatOpenAI

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return {"model": "fake-model", "base_url": self.engines[0].base_url, "api_key": "none", "stream_usage": True}
