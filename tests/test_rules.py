"""Every built rule of the design has a test that names it (``test_r07_...``), here or in a suite of the test kit.

A part that builds a rule adds it to `BUILT` in the commit that builds it. Built in part: R15 (pushback; its breaker and
load probes come later). Not built: R17 (coalescing).
"""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NAMED = re.compile(r"^\s*(?:async )?def test_r(\d\d)_", re.MULTILINE)

RULES = range(1, 22)
BUILT = frozenset({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21})


def named() -> Counter[int]:
    """Count the tests that name each rule."""
    sources = [*(ROOT / "tests").rglob("test_*.py"), *(ROOT / "agent_hedge" / "testing" / "suites").glob("*.py")]
    return Counter(int(rule) for source in sources for rule in NAMED.findall(source.read_text(encoding="utf-8")))


@pytest.mark.parametrize("rule", sorted(BUILT))
def test_a_built_rule_has_a_test_that_names_it(rule: int) -> None:
    assert named()[rule] > 0, f"no test is called test_r{rule:02d}_..., but R{rule} is built"


def test_a_rule_that_tests_name_exists_and_is_said_to_be_built() -> None:
    assert BUILT.issubset(RULES)
    assert set(named()) <= BUILT, "a test names a rule that is not in BUILT: add it there"
