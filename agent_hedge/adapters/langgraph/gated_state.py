"""What an attempt of a raced node leaves behind: checkpoints of its subgraphs wait, store writes decide (R5, R10)."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.store.base import BaseStore, Op, PutOp, Result

from agent_hedge.adapters.langgraph.gate import Gate
from agent_hedge.core.scope import ActiveAttempt
from agent_hedge.errors import EffectBarred


def claim(active: ActiveAttempt, what: str) -> None:
    """Win the race before a side effect, or refuse it."""
    if not active.claim():
        raise EffectBarred(f"{what} was refused: another attempt of this node has won.")


class FencedStore(BaseStore):
    """A store that is read freely. The first write wins the race for its attempt: it cannot be taken back."""

    def __init__(self, store: BaseStore, active: ActiveAttempt) -> None:
        self._store = store
        self._active = active
        self.supports_ttl = store.supports_ttl
        self.ttl_config = store.ttl_config

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        return self._store.batch(self._fenced(ops))

    async def abatch(self, ops: Iterable[Op]) -> list[Result]:
        return await self._store.abatch(self._fenced(ops))

    def _fenced(self, ops: Iterable[Op]) -> list[Op]:
        listed = list(ops)
        if any(isinstance(op, PutOp) for op in listed):
            claim(self._active, "A write to the store")
        return listed


class HeldSaver(BaseCheckpointSaver[Any]):
    """A checkpointer for the subgraphs of one attempt: what they save waits behind the gate.

    A subgraph reads its checkpoints when it starts, before it has saved any, so nothing that waits is missed.
    """

    def __init__(self, saver: BaseCheckpointSaver[Any], gate: Gate) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver
        self._put, self._put_writes = gate.wrap(saver.put), gate.wrap(saver.put_writes)
        self._aput, self._aput_writes = gate.wrap_async(saver.aput), gate.wrap_async(saver.aput_writes)

    @property
    def config_specs(self) -> list[Any]:
        return self._saver.config_specs

    def get_next_version(self, current: Any, channel: None) -> Any:
        return self._saver.get_next_version(current, channel)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return self._saver.get_tuple(config)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await self._saver.aget_tuple(config)

    def list(self, config: RunnableConfig | None, **kwargs: Any) -> Iterator[CheckpointTuple]:
        return self._saver.list(config, **kwargs)

    async def alist(self, config: RunnableConfig | None, **kwargs: Any) -> AsyncIterator[CheckpointTuple]:
        async for found in self._saver.alist(config, **kwargs):
            yield found

    def put(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: Any
    ) -> RunnableConfig:
        return self._put(config, copy.copy(checkpoint), metadata, new_versions) or _saved(config, checkpoint)

    async def aput(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata, new_versions: Any
    ) -> RunnableConfig:
        return await self._aput(config, copy.copy(checkpoint), metadata, new_versions) or _saved(config, checkpoint)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._put_writes(config, list_of(writes), task_id, task_path)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        await self._aput_writes(config, list_of(writes), task_id, task_path)


def list_of(writes: Sequence[tuple[str, Any]]) -> Sequence[tuple[str, Any]]:
    """Return the writes of now: the caller goes on adding to them."""
    return [*writes]


def _saved(config: RunnableConfig, checkpoint: Checkpoint) -> RunnableConfig:
    """Return what savers answer: where the checkpoint will be found."""
    configurable = config["configurable"]
    return {
        "configurable": {
            "thread_id": configurable["thread_id"],
            "checkpoint_ns": configurable.get("checkpoint_ns", ""),
            "checkpoint_id": checkpoint["id"],
        }
    }
