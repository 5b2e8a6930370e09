"""Acceptance D5 of issue 5: LangGraph's own suite, plain and with every async node wrapped at unit="model".

    git clone --depth 1 --branch <tag> https://github.com/langchain-ai/langgraph /tmp/langgraph
    python -m venv /tmp/lg && /tmp/lg/bin/pip install -e . "langgraph==<tag>" syrupy pytest-mock pytest-repeat \
        pytest-dotenv pytest-xdist langgraph-checkpoint-sqlite langgraph-checkpoint-postgres redis pycryptodome
    python -m tests.peers.langgraph_suite /tmp/langgraph/libs/langgraph /tmp/lg/bin/python [file ...]

Without files it runs those about nodes, streams, interrupts, retries and time travel. Databases are left out
(``NO_DOCKER=true``). It prints passes before and after, and each test that passed before and does not after; exit
code 1 when there is one. Tests that fail before (other versions, no network) do not count.

With ``AGENT_HEDGE_PEER_UNIT=node`` the nodes are wrapped as a whole and never hedged: then what differs is what is held
back until a node is decided, and what is run again as a recovery (nodes that raise a ConnectionError).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

FILES = (
    "test_config_async.py",
    "test_graph_callbacks.py",
    "test_interrupt_migration.py",
    "test_interruption.py",
    "test_large_cases_async.py",
    "test_parent_command_async.py",
    "test_pregel_async.py",
    "test_pregel_stream_events_v3.py",
    "test_retry.py",
    "test_runtime.py",
    "test_stream_events_v3.py",
    "test_stream_events_v3_e2e.py",
    "test_subgraph_detection.py",
    "test_subgraph_persistence_async.py",
    "test_time_travel_async.py",
    "test_tool_stream_handler.py",
)
HERE = Path(__file__).parents[2]


def outcomes(suite: Path, python: str, files: list[str], *, wrapped: bool) -> dict[str, str]:
    """Run the files and return what became of each test: passed, failed, skipped."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
        command += ["--snapshot-warn-unused", f"--junitxml={report.name}", "--tb=short"]
        if wrapped:
            command += ["-p", "tests_of_agent_hedge.langgraph_wrapping"]
        command += [f"tests/{name}" for name in files]
        with tempfile.TemporaryDirectory() as shelf:  # their package is called `tests`, as ours is
            (Path(shelf) / "tests_of_agent_hedge").symlink_to(HERE / "tests" / "peers")
            path = os.pathsep.join([shelf, str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
            subprocess.run(command, cwd=suite, env={**os.environ, "NO_DOCKER": "true", "PYTHONPATH": path}, check=False)
        cases = ElementTree.parse(report.name).getroot().iter("testcase")
        return {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def main(suite: str, python: str, *files: str) -> int:
    chosen = list(files) or [name for name in FILES if (Path(suite) / "tests" / name).exists()]
    before = outcomes(Path(suite), python, chosen, wrapped=False)
    after = outcomes(Path(suite), python, chosen, wrapped=True)
    lost = sorted(name for name, found in before.items() if found == "passed" and after.get(name) != "passed")
    for what, found in (("before", before), ("after", after)):
        counts = {kind: sum(each == kind for each in found.values()) for kind in ("passed", "failed", "skipped")}
        print(f"{what}: {counts}")
    print(f"passed before and not after: {len(lost)}")
    for name in lost:
        print(f"  {name}: {after.get(name, 'missing')}")
    return 1 if lost or not before else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(str(__doc__))
    sys.exit(main(*sys.argv[1:]))
