"""Acceptance D5 of issue 5: LangGraph's own suite, plain and with every node wrapped. See README.md in this folder.

    python -m tests.peers.langgraph_suite [--wrap model|every|graph|node] SUITE PYTHON [FILE ...]

SUITE is LangGraph's ``libs/langgraph``, PYTHON the interpreter of the environment it runs in. It prints passes before
and after, and each test that passed before and does not after: those are run again by themselves, plain and wrapped, to
tell what is unsteady from what is lost. Exit code 1 when one is lost. Tests that fail before (other versions, no
network) do not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from xml.etree import ElementTree

ASYNC_FILES = (
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
"""About nodes, streams, interrupts, retries and time travel."""

SYNC_FILES = (
    "test_large_cases.py",
    "test_parent_command.py",
    "test_pregel.py",
    "test_subgraph_persistence.py",
    "test_time_travel.py",
)
"""Their sync twins: of use where sync nodes are wrapped too."""

AGAIN = 3
"""Times a test that was lost is run again, on each side."""

HERE = Path(__file__).parents[2]


def outcomes(suite: Path, python: str, tests: list[str], *, wrap: str) -> dict[str, str]:
    """Run test files or tests and return what became of each test: passed, failed, skipped. `wrap`: empty for plain."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "addopts="]
        command += ["--snapshot-warn-unused", f"--junitxml={report.name}", "--tb=short"]
        if wrap:
            command += ["-p", "tests_of_agent_hedge.langgraph_wrapping"]
        command += tests
        with tempfile.TemporaryDirectory() as shelf:  # their package is called `tests`, as ours is
            (Path(shelf) / "tests_of_agent_hedge").symlink_to(HERE / "tests" / "peers")
            path = os.pathsep.join([shelf, str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
            environment = {**os.environ, "NO_DOCKER": "true", "PYTHONPATH": path, "AGENT_HEDGE_PEER_WRAP": wrap}
            subprocess.run(command, cwd=suite, env=environment, check=False)
        cases = ElementTree.parse(report.name).getroot().iter("testcase")
        return {_name(case): _outcome(case) for case in cases}


def _name(case: ElementTree.Element) -> str:
    """Return the test as pytest takes it: ``tests/test_x.py::TestY::test_z[a]``."""
    parts = str(case.get("classname")).split(".")
    file = next(index for index, part in enumerate(parts) if part.startswith("test_"))
    return "::".join(["/".join(parts[: file + 1]) + ".py", *parts[file + 1 :], str(case.get("name"))])


def _outcome(case: ElementTree.Element) -> str:
    kinds = {child.tag for child in case}
    return "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.peers.langgraph_suite", description=__doc__)
    parser.add_argument("--wrap", choices=["model", "every", "graph", "node"], default="model")
    parser.add_argument("suite", type=Path)
    parser.add_argument("python")
    parser.add_argument("files", nargs="*")
    asked = parser.parse_args()
    files = asked.files or [*ASYNC_FILES, *(SYNC_FILES if asked.wrap in ("every", "graph") else ())]
    chosen = [f"tests/{name}" for name in files if (asked.suite / "tests" / name).exists()]

    def run(tests: list[str], wrap: str) -> dict[str, str]:
        return outcomes(asked.suite, asked.python, tests, wrap=wrap)

    before, after = run(chosen, ""), run(chosen, asked.wrap)
    lost = sorted(name for name, found in before.items() if found == "passed" and after.get(name) != "passed")
    again = {wrap: [run(lost, wrap) if lost else {} for _ in range(AGAIN)] for wrap in ("", asked.wrap)}
    for what, found in (("before", before), ("after", after)):
        counts = {kind: sum(each == kind for each in found.values()) for kind in ("passed", "failed", "skipped")}
        print(f"{what}: {counts}")
    print(f"passed before and not after: {len(lost)}")
    unsteady = 0
    for name in lost:
        plain, wrapped = (sum(each.get(name) == "passed" for each in again[wrap]) for wrap in ("", asked.wrap))
        unsteady += plain < AGAIN or wrapped > 0
        print(f"  {name}: passes again {plain} of {AGAIN} plain, {wrapped} of {AGAIN} wrapped")
    print(f"of these, unsteady: {unsteady}; lost: {len(lost) - unsteady}")
    return 1 if unsteady < len(lost) or not before else 0


if __name__ == "__main__":
    sys.exit(main())
