"""Other people's servers as processes, for tests that are off by default."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

START_S = 120.0


@contextmanager
def serving(
    command: Sequence[str], *, ready: str, folder: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    """Run a server in `folder`, with all that it starts, until the block is left; `ready` is a URL that then answers.

    Raises:
        RuntimeError: it has ended, or did not answer in time; with the end of its log.
    """
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(environment or {})},
            cwd=folder,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            until = time.monotonic() + START_S
            while not _answers(ready):
                if process.poll() is not None or time.monotonic() > until:
                    raise RuntimeError(f"{command[0]} did not start:\n{(folder / 'log').read_text()[-2000:]}")
                time.sleep(0.2)  # another process's start cannot be awaited
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=5):
            return True
    except (URLError, OSError):
        return False
