"""The pages under docs/: their Python runs, their links lead somewhere, mkdocs builds them."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HUNG_S
from tests.examples.page import snippets

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = {str(page.relative_to(DOCS)): page for page in sorted(DOCS.rglob("*.md"))}
LINK = re.compile(r"\]\((?!https?:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@pytest.mark.parametrize("page", [name for name, page in PAGES.items() if snippets(page)])
def test_the_python_of_a_page_runs(page: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.examples.page", str(PAGES[page])]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=30 * HUNG_S, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_tests_on_the_page_about_tests_pass(tmp_path: Path) -> None:
    (tmp_path / "test_page.py").write_text(snippets(PAGES["testing.md"])[0], encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30 * HUNG_S, cwd=tmp_path)
    assert "3 passed" in done.stdout, done.stdout + done.stderr


def test_there_are_snippets() -> None:
    assert {"index.md", "production.md", "coming-from.md", "adapters.md"} <= PAGES.keys()
    for page in ("index.md", "production.md", "coming-from.md", "adapters.md"):
        assert snippets(PAGES[page])


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for path, anchor in LINK.findall(PAGES[page].read_text(encoding="utf-8")):
        there = (PAGES[page].parent / path).resolve() if path else PAGES[page]
        assert there.is_file(), f"{page} links to {path}"
        assert there.is_relative_to(DOCS), f"{page} links out of the site, to {path}"
        if anchor:
            assert anchor in _anchors(there), f"{page} links to {path}#{anchor}"


def test_the_navigation_holds_every_page() -> None:
    named = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(named) == sorted(PAGES)


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="mkdocs is not installed (extra docs)")
def test_mkdocs_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30 * HUNG_S, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert (tmp_path / "index.html").is_file()


def _anchors(page: Path) -> set[str]:
    """Return the ids that Python-Markdown gives the headings of a page."""
    found: set[str] = set()
    for heading in HEADING.findall(page.read_text(encoding="utf-8")):
        words = re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", heading)).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", words))
    return found
