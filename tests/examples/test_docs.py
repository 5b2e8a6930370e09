"""The Python of every page under docs/ runs, one snippet after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PAGES = {page.name: SNIPPET.findall(page.read_text()) for page in DOCS.glob("*.md")}


@pytest.mark.parametrize("page", sorted(name for name, snippets in PAGES.items() if snippets))
def test_it_runs(page: str, tmp_path: Path) -> None:
    code = "\n".join(PAGES[page])
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_there_are_snippets() -> None:
    assert "adapters.md" in PAGES
    assert PAGES["adapters.md"]
