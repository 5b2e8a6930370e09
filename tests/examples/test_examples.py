"""Every example runs, in a process of its own as a reader would start it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HUNG_S

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
SAYS = {
    "01_wrap.py": "hedged, p99:",
    "02_chat_model.py": "'hedged': True",
    "03_payment.py": "payments made: 1",
    "04_plan_and_execute.py": "20 steps",
    "05_map_reduce.py": "20 summaries, ",
    "06_agent_with_tools.py": "model: its model calls are hedgeable",
    "07_interrupt.py": "sent: yes",
    "08_sync_graph.py": "from 127.0.0.1",
}
"""What must be on its output."""


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_runs(example: Path) -> None:
    done = subprocess.run([sys.executable, example], capture_output=True, text=True, timeout=30 * HUNG_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert SAYS.get(example.name, "") in done.stdout
    assert done.stdout


def test_there_are_examples() -> None:
    assert {example.name for example in EXAMPLES} >= SAYS.keys()
    readme = (EXAMPLES[0].parent / "README.md").read_text(encoding="utf-8")
    assert [example.name for example in EXAMPLES if f"({example.name})" not in readme] == []
