"""What needs a package that is not installed says which, and how to get it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import HUNG_S

WITHOUT = """
import sys
sys.modules[{package!r}] = None
from agent_hedge import Hedger
hedger = Hedger()
try:
    {call}
except ModuleNotFoundError as error:
    print(error.name, error)
"""


@pytest.mark.parametrize(
    ("package", "call", "says"),
    [
        ("langchain_core", "hedger.chat_model('openai:x')", "langchain-core: pip install 'agent-hedge[langgraph]'"),
        ("langgraph", "hedger.explain(None)", "langgraph: pip install 'agent-hedge[langgraph]'"),
        ("langgraph", "hedger.guard_tools([])", "langgraph: pip install 'agent-hedge[langgraph]'"),
        ("langchain", "hedger.middleware('openai:x')", "langchain: pip install langchain"),
    ],
)
def test_a_missing_package_is_named_with_its_extra(package: str, call: str, says: str) -> None:
    code = WITHOUT.format(package=package, call=call)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=10 * HUNG_S)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(package)
    assert says in done.stdout
