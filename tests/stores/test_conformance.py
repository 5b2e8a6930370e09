"""Each store port's suite on each backend: memory, SQLite, PostgreSQL by psycopg and by asyncpg."""

from __future__ import annotations

import pytest

from agent_hedge.core.stores import ClaimStore, EffectStore, RunStore, SliceStore, StepStore, Stores, SwitchStore
from agent_hedge.testing.suites.claims import ClaimStoreSuite
from agent_hedge.testing.suites.effects import EffectStoreSuite
from agent_hedge.testing.suites.runs import RunStoreSuite
from agent_hedge.testing.suites.slices import SliceStoreSuite
from agent_hedge.testing.suites.steps import StepStoreSuite
from agent_hedge.testing.suites.switches import SwitchStoreSuite


class TestClaims(ClaimStoreSuite):
    @pytest.fixture
    def claims(self, stores: Stores) -> ClaimStore:
        return stores.claims


class TestEffects(EffectStoreSuite):
    @pytest.fixture
    def effects(self, stores: Stores) -> EffectStore:
        return stores.effects


class TestRuns(RunStoreSuite):
    @pytest.fixture
    def runs(self, stores: Stores) -> RunStore:
        return stores.runs


class TestSteps(StepStoreSuite):
    @pytest.fixture
    def steps(self, stores: Stores) -> StepStore:
        return stores.steps


class TestSlices(SliceStoreSuite):
    @pytest.fixture
    def slices(self, stores: Stores) -> SliceStore:
        return stores.slices


class TestSwitches(SwitchStoreSuite):
    @pytest.fixture
    def switches(self, stores: Stores) -> SwitchStore:
        return stores.switches
