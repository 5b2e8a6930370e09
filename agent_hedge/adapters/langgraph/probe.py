"""Handlers of ours inside an attempt of a raced node: they see its first token, its tools, and its open model runs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from agent_hedge.core.ports import EffectSource
from agent_hedge.core.scope import ActiveAttempt
from agent_hedge.core.step import Effect
from agent_hedge.errors import EffectBarred

IsMeaningful = Callable[[Any], bool]
"""Whether a chunk of a chat model's stream says something (R2)."""


class Speaker:
    """Says an attempt's first token in the thread of its race, whatever thread it came in."""

    def __init__(self, active: ActiveAttempt) -> None:
        self._active = active
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    def __call__(self) -> None:
        if self._active.spoken:
            return
        if threading.get_ident() == self._thread:
            self._active.first_token()
        else:
            self._loop.call_soon_threadsafe(self._active.first_token)


class Probe(BaseCallbackHandler):
    """Hears the chat models of one attempt."""

    run_inline = True

    def __init__(self, speak: Callable[[], None], is_meaningful: IsMeaningful) -> None:
        self._speak = speak
        self._is_meaningful = is_meaningful
        self.open_runs: dict[UUID, UUID | None] = {}
        """Model runs that have started and not ended, with their parents: a cancelled one is left open by LangChain."""

    def on_chat_model_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None = None, **__: Any) -> None:
        self.open_runs[run_id] = parent_run_id

    def on_llm_start(self, *_: Any, run_id: UUID, parent_run_id: UUID | None = None, **__: Any) -> None:
        self.open_runs[run_id] = parent_run_id

    def on_llm_end(self, *_: Any, run_id: UUID, **__: Any) -> None:
        self.open_runs.pop(run_id, None)

    def on_llm_error(self, *_: Any, run_id: UUID, **__: Any) -> None:
        self.open_runs.pop(run_id, None)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, **_: Any) -> None:
        message = getattr(chunk, "message", None)
        if self._is_meaningful(chunk) if message is not None else bool(token):
            self._speak()

    def on_stream_event(self, event: Any, **_: Any) -> None:
        if event.get("event") == "content-block-delta":
            self._speak()


class StreamingProbe(Probe):
    """A probe that makes `ainvoke` of a chat model stream, as a stream mode of the graph would (facts 2a).

    Not to be used around a subgraph: it would run that graph's nodes by `astream`.
    """

    def tap_output_aiter(self, run_id: UUID, output: Any) -> Any:
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[Any]) -> Iterator[Any]:
        return output


class ToolFence(BaseCallbackHandler):
    """Lets a tool run inside an undecided race only if it reads, or if its attempt wins the race by it (R10)."""

    raise_error = True
    run_inline = True

    def __init__(self, active: ActiveAttempt, effects: EffectSource) -> None:
        self._active = active
        self._effects = effects

    def on_tool_start(self, serialized: dict[str, Any] | None, input_str: str, **kwargs: Any) -> None:
        name = str((serialized or {}).get("name") or kwargs.get("name") or "")
        if self._effects.effect(name) is not Effect.READ_ONLY and not self._active.claim():
            raise EffectBarred(f"The tool {name!r} was refused: another attempt of this node has won.")
