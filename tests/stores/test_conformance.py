"""Each store port's suite on each backend."""

from __future__ import annotations

import pytest

from agent_hedge.core.ports import ClaimStore, Stores
from agent_hedge.testing.suites.claims import ClaimStoreSuite


class TestClaims(ClaimStoreSuite):
    @pytest.fixture
    def claims(self, stores: Stores) -> ClaimStore:
        return stores.claims
