"""What tests of several observers begin with."""

from __future__ import annotations

import pytest

from .spans import Backend


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Backend:
    """The application's SDK."""
    backend = Backend()
    monkeypatch.setattr("agent_hedge.observers.otel.get_tracer_provider", lambda: backend.provider)
    return backend
