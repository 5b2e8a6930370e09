"""Effect sources for these tests."""

from __future__ import annotations

from collections.abc import Mapping

from agent_hedge.core.step import Effect


class Known:
    """Knows what it is given, by full name."""

    def __init__(self, effects: Mapping[str, Effect] | None = None) -> None:
        self._effects = dict(effects or {})

    def effect(self, name: str, namespace: str = "") -> Effect:
        return self._effects.get(f"{namespace}/{name}" if namespace else name, Effect.UNKNOWN)


USUAL = Known({"lookup": Effect.READ_ONLY, "send_email": Effect.ONCE, "pay": Effect.KEYED})
