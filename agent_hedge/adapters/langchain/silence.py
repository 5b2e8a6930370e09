"""What a member does inside itself is shown to nobody: it may be a loser (R5).

A chat model may run other runnables or write to LangGraph's custom stream. Both find their way through the ambient
configuration, so an attempt gets one of its own, without callbacks and with a writer that drops what it is given. The
hedged model's own run, its tokens and its usage are not concerned: they are told of by the model, for the winner.
"""

from __future__ import annotations

from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

_RUNTIME = "__pregel_runtime"
"""Where LangGraph keeps the stream writer (private; `test_r05_what_a_member_does_inside_itself...` is its canary)."""


def silence() -> None:
    """Give the running attempt's task an ambient configuration that nobody listens to."""
    config = var_child_runnable_config.get()
    if not config:
        return
    own: dict[str, Any] = {**config, "callbacks": None}
    configurable = config.get("configurable") or {}
    runtime = configurable.get(_RUNTIME)
    if runtime is not None:
        own["configurable"] = {**configurable, _RUNTIME: runtime.override(stream_writer=_drop)}
    var_child_runnable_config.set(cast("RunnableConfig", own))


def _drop(_: object) -> None:
    """Write nothing."""
