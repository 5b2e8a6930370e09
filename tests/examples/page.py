"""Runs the Python of one page as its reader would: ``python -m tests.examples.page PAGE``.

The snippets of a page follow one another in one module; ``await`` stands where it would in a notebook. What a reader
has of his own is there: two replicas (`urls`, or by the addresses of `REPLICAS`) and the keys of the providers.
OpenAI's address is that of a replica.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import sys
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent_hedge.testing.engine import FakeEngine
from agent_hedge.testing.engine.hosting import in_thread

SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
KEYS = {
    "OPENAI_API_KEY": "none",
    "AZURE_OPENAI_API_KEY": "none",
    "AZURE_OPENAI_ENDPOINT": "https://azure.invalid",
    "OPENAI_API_VERSION": "2025-01-01",
}
"""What the providers' packages want to see before they make a client; nothing is called there."""
REPLICAS = ("http://replica-1:8000/v1", "http://replica-2:8000/v1")
"""What pages call the reader's own."""


def snippets(page: Path) -> list[str]:
    """Return the Python snippets of a page."""
    return SNIPPET.findall(page.read_text(encoding="utf-8"))


def with_replicas(snippet: str, urls: Iterable[str]) -> str:
    """Return the snippet with addresses that answer."""
    for theirs, ours in zip(REPLICAS, urls, strict=True):
        snippet = snippet.replace(theirs, ours)
    return snippet


def run(page: Path) -> None:
    """Run the snippets of a page, one after the other."""
    warnings.simplefilter("ignore", ResourceWarning)  # clients of models live until the interpreter ends
    with in_thread(FakeEngine("fixed:0.01")) as one, in_thread(FakeEngine("fixed:0.01")) as other:
        os.environ.update(KEYS, OPENAI_BASE_URL=one.base_url)
        urls = [one.base_url, other.base_url]
        names: dict[str, Any] = {"__name__": page.stem, "urls": urls}
        with asyncio.Runner() as runner:
            for number, snippet in enumerate(snippets(page), start=1):
                source = f"{page.name}, snippet {number}"
                code = compile(with_replicas(snippet, urls), source, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
                if code.co_flags & inspect.CO_COROUTINE:
                    runner.run(eval(code, names))
                else:
                    exec(code, names)


if __name__ == "__main__":
    run(Path(sys.argv[1]))
