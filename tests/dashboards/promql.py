"""What a PromQL expression reads: metric names, and the labels it asks of each. No parser, but nothing slips through:
a word that is neither a metric, a function, a keyword nor a label is an error."""

from __future__ import annotations

import re
from typing import NamedTuple

KEYWORDS = {"and", "or", "unless", "by", "without", "on", "ignoring", "bool"}
FUNCTIONS = {"sum", "min", "max", "vector", "rate", "increase", "delta", "histogram_quantile"}
WORDS = KEYWORDS | FUNCTIONS
GROUPING = re.compile(r"\b(?:by|without|on|ignoring)\s*\(([^)]*)\)")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"')
SELECTOR = re.compile(r"([A-Za-z_:][\w:]*)\s*(\{[^}]*\})?")


class Selector(NamedTuple):
    """One metric that is read. `matchers` are label -> value (or pattern)."""

    name: str
    matchers: dict[str, str]


def selectors(expression: str) -> list[Selector]:
    """Return every metric that is read, in order."""
    bare = re.sub(r"\[[^\]]*\]", "", GROUPING.sub("", expression))
    return [
        Selector(name, {label: value for label, _, value in MATCHER.findall(matchers)})
        for name, matchers in SELECTOR.findall(bare)
        if name not in WORDS
    ]


def groupings(expression: str) -> set[str]:
    """Return the labels that series are grouped by."""
    return {label.strip() for labels in GROUPING.findall(expression) for label in labels.split(",")}
