"""The contract of `StepStore` (R18): partial rows merge by id, an outcome is settled once, no unknown column."""

from __future__ import annotations

import pytest

from agent_hedge.core.stores import StepStore
from agent_hedge.errors import ConfigurationError


@pytest.mark.anyio
class StepStoreSuite:
    """Give it a fixture `steps`: an empty store."""

    async def test_a_step_is_filled_in_as_it_is_known(self, steps: StepStore) -> None:
        await steps.add_steps([{"step_id": "s", "run_key": "r", "node": "plan", "started_at": 10.0, "d0": 0.5}])
        await steps.add_steps([{"step_id": "s", "outcome": "won", "ttft_s": 0.25, "node": None}])
        (row,) = await steps.steps_of("r")
        assert (row["node"], row["d0"], row["outcome"], row["ttft_s"]) == ("plan", 0.5, "won", 0.25)
        assert row["slack_s"] is None

    async def test_r18_an_outcome_is_settled_once(self, steps: StepStore) -> None:
        await steps.add_steps([{"step_id": "s", "run_key": "r", "started_at": 1.0}])
        await steps.add_attempts([{"attempt_id": "a", "step_id": "s", "started_at": 1.0}])
        for outcome in ("superseded", "unknown"):
            await steps.add_attempts([{"attempt_id": "a", "outcome": outcome, "tokens_computed": 7}])
        (row,) = await steps.attempts_of("r")
        assert (row["outcome"], row["tokens_computed"]) == ("superseded", 7)

    async def test_one_batch_may_say_several_things_of_one_id(self, steps: StepStore) -> None:
        await steps.add_steps(
            [
                {"step_id": "s1", "run_key": "r", "started_at": 1.0},
                {"step_id": "s2", "run_key": "r", "started_at": 2.0, "reason": "cold"},
                {"step_id": "s1", "outcome": "won"},
                {"step_id": "s1", "launched": 2},
            ]
        )
        first, second = await steps.steps_of("r")
        assert (first["outcome"], first["launched"], second["reason"]) == ("won", 2, "cold")

    async def test_attempts_are_found_by_run(self, steps: StepStore) -> None:
        await steps.add_steps([{"step_id": s, "run_key": r, "started_at": 1.0} for s, r in (("s", "r"), ("t", "q"))])
        await steps.add_attempts(
            [
                {"attempt_id": f"a{n}", "step_id": "s" if n < 2 else "t", "number": n, "started_at": float(n)}
                for n in range(3)
            ]
        )
        assert [row["attempt_id"] for row in await steps.attempts_of("r")] == ["a0", "a1"]

    async def test_since_and_prune(self, steps: StepStore) -> None:
        await steps.add_steps([{"step_id": f"s{n}", "run_key": "r", "started_at": float(n)} for n in range(4)])
        await steps.add_attempts([{"attempt_id": f"a{n}", "step_id": "s", "started_at": float(n)} for n in range(4)])
        assert [row["step_id"] for row in await steps.since(1.0, 2)] == ["s3", "s2"]
        assert [row["attempt_id"] for row in await steps.attempts_since(1.0, 2)] == ["a3", "a2"]
        assert await steps.prune(2.0) == 2
        assert [row["step_id"] for row in await steps.steps_of("r")] == ["s2", "s3"]
        await steps.add_steps([{"step_id": "s", "run_key": "q"}])
        assert [row["attempt_id"] for row in await steps.attempts_of("q")] == ["a2", "a3"]

    async def test_r20_a_column_nobody_has_is_refused(self, steps: StepStore) -> None:
        with pytest.raises(ConfigurationError, match="prompt"):
            await steps.add_steps([{"step_id": "s", "prompt": "secret"}])
        with pytest.raises(ConfigurationError, match="attempt_id"):
            await steps.add_attempts([{"step_id": "s"}])
        await steps.add_steps([])
