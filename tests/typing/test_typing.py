"""The public face under ``mypy --strict``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_a_type_checker_sees_the_public_face_as_it_is() -> None:
    command = [sys.executable, "-m", "mypy", "--strict", "tests/typing/public_face.py"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
