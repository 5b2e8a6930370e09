"""The spool: what a killed process was doing is found by the next one, and only then."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from agent_hedge.observers.accounting import Accounting
from agent_hedge.observers.recorder import Recorder, adopt
from agent_hedge.observers.spool import Spool, orphans
from agent_hedge.stores.memory import MemorySteps
from tests.conftest import HUNG_S

from .kit import IdlePortal, play

KILLED = textwrap.dedent(
    """
    import asyncio, os, signal, sys
    from pathlib import Path
    from agent_hedge import Effect, Fixed, Hedger
    from agent_hedge.observers.accounting import Accounting
    from agent_hedge.observers.recorder import Recorder
    from agent_hedge.observers.spool import Spool
    from agent_hedge.stores.memory import MemorySteps
    from tests.observers.kit import IdlePortal

    accounting = Accounting(Recorder(MemorySteps, IdlePortal(), Spool(Path(sys.argv[1]))))
    calls = 0

    async def work():
        global calls
        calls += 1
        if calls <= 2:
            return "answered"
        if calls == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)
        await asyncio.sleep(60)

    async def main():
        hedger = Hedger(observers=[accounting], policy=Fixed(0.05))
        call = hedger.wrap(work, key="work", effect=Effect.READ_ONLY, targets=["a", "b"])
        for _ in range(3):
            await call()

    asyncio.run(main())
    """
)


def recorder(folder: Path, store: MemorySteps | None = None) -> Recorder:
    known = store or MemorySteps()
    return Recorder(lambda: known, IdlePortal(), Spool(folder))


@pytest.mark.parametrize("killed_in_call", [3, 4], ids=["primary", "hedge"])
def test_r18_a_killed_process_is_found_and_settled_as_unknown(tmp_path: Path, killed_in_call: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path), str(killed_in_call)], timeout=10 * HUNG_S, check=False
    )
    assert done.returncode == -signal.SIGKILL
    store = MemorySteps()
    next_start = Accounting(recorder(tmp_path, store))
    asyncio.run(next_start.flush())
    steps, attempts = asyncio.run(store.steps_of("")), asyncio.run(store.attempts_of(""))
    assert [row["outcome"] for row in steps] == ["answered", "answered", "unknown"]
    expected = ["won", "won", "unknown"] + ["unknown"] * (killed_in_call - 3)
    assert [row["outcome"] for row in attempts] == expected, "recorded before they were dispatched"
    assert {row["computed_certainty"] for row in attempts[2:]} == {"unknown"}
    assert next_start.recorder.adopted == killed_in_call - 2
    assert list(tmp_path.glob("*.jsonl")) == [], "and found once"


def test_a_living_process_is_left_alone(tmp_path: Path) -> None:
    play(Accounting(recorder(tmp_path)), ("a", 0.5, "ok"))
    assert list(tmp_path.glob("*.jsonl"))
    store = MemorySteps()
    assert asyncio.run(adopt(store, Spool(tmp_path))) == 0
    assert asyncio.run(store.steps_of("")) == []


def test_the_spool_is_emptied_as_rows_are_shipped(tmp_path: Path) -> None:
    spool = Spool(tmp_path, segment_bytes=2000)
    accounting = Accounting(Recorder(MemorySteps, IdlePortal(), spool))
    for _ in range(30):
        play(accounting, ("a", 0.5, "ok"))
    assert len(list(tmp_path.glob("*.jsonl"))) > 3
    asyncio.run(accounting.flush())
    assert len(list(tmp_path.glob("*.jsonl"))) == 1, "the running file"
    accounting.recorder.close()
    assert list(tmp_path.glob("*.jsonl")) == []


def test_what_was_not_shipped_is_kept_for_the_next_start(tmp_path: Path) -> None:
    first = Accounting(recorder(tmp_path))
    play(first, ("a", 9.0, "slow"), ("b", 0.25, "fast"), policy=1.0)
    first.recorder.close()
    store = MemorySteps()
    assert asyncio.run(adopt(store, Spool(tmp_path))) == 0, "it was settled: nothing is unknown"
    assert [row["outcome"] for row in asyncio.run(store.attempts_of(""))] == ["superseded", "won"]


def test_torn_and_foreign_lines_are_left_out(tmp_path: Path) -> None:
    good = '[["steps",{"step_id":"s","run_key":"r","started_at":1.0,"column_of_a_later_version":1}]]'
    foreign = ['[["secrets",{}]]', '[["attempts",{"attempt_id":"a\\u0000","step_id":"s"}]]', "[1]", "2", '[["steps"]]']
    lines = [good, *foreign, '[["attempts",{"att']
    (tmp_path / "1-x.jsonl").write_text("\n".join(lines))
    store = MemorySteps()
    asyncio.run(adopt(store, Spool(tmp_path)))
    assert [row["outcome"] for row in asyncio.run(store.steps_of("r"))] == ["unknown"]


def test_a_fork_has_books_of_its_own(tmp_path: Path) -> None:
    accounting = Accounting(recorder(tmp_path))
    play(accounting, ("a", 0.5, "ok"))
    child = os.fork()
    if child == 0:
        clean = accounting.recorder.waiting == 0
        play(accounting, ("a", 0.5, "ok"))
        os._exit(0 if clean and len(list(tmp_path.glob("*.jsonl"))) == 2 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [orphan.path.name.startswith(f"{child}-") for orphan in orphans(tmp_path)] == [True]


def test_r18_a_spool_that_cannot_be_written_stops_nothing(tmp_path: Path, caplog: Any) -> None:
    (tmp_path / "file").write_text("")
    accounting = Accounting(recorder(tmp_path / "file"))
    for _ in range(3):
        assert play(accounting, ("a", 0.5, "ok")).value == "ok"
    asyncio.run(accounting.flush())
    assert len(caplog.records) == 1


def test_what_is_left_behind_has_one_finder(tmp_path: Path) -> None:
    first = Accounting(recorder(tmp_path))
    play(first, ("a", 0.5, "ok"))
    first.recorder.close()
    (found,) = orphans(tmp_path)
    assert list(orphans(tmp_path)) == []
    found.leave()
    assert len(list(orphans(tmp_path))) == 1, "unless it leaves it"


@pytest.mark.parametrize("name", ["plan", "höhe", "half \ud800 of a pair", 'quo"te\n'])
@pytest.mark.parametrize("fast", [True, False])
def test_a_line_reads_the_same_whoever_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fast: bool
) -> None:
    if not fast:
        monkeypatch.setattr("agent_hedge.observers.spool.orjson", None)
    row = {"step_id": "s", "node": name, "started_at": 0.1, "generation": 0}
    spool = Spool(tmp_path)
    spool.write("s", [("steps", row), ("attempts", {"attempt_id": "a"})])
    spool.close()
    (orphan,) = orphans(tmp_path)
    assert list(orphan.rows()) == [("steps", row), ("attempts", {"attempt_id": "a"})]
    assert spool.lost == 0
    orphan.remove()
