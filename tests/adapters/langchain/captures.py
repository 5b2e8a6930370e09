"""Real streams of real providers, replayed byte for byte by a fake engine (`../shared/data/sse_captures.jsonl`)."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILE = Path(__file__).parents[4] / "shared" / "data" / "sse_captures.jsonl"
_KEPT_HEAD = 14
"""Events at the beginning of a capture whose middle was cut out."""
_UNNAMED = re.compile(rb'(?m)^data: (\{"type": ?"(\w+)")')


@dataclass(frozen=True, slots=True)
class Capture:
    """One captured body; `first` is the event that its label calls the first meaningful one (None: there is none)."""

    name: str
    protocol: str
    body: bytes
    first: int | None
    kind: str
    has_error: bool

    def __str__(self) -> str:
        return self.name


@cache
def captures() -> dict[str, Capture]:
    """Return the captures of the protocols we speak, by a name of their own; none where the file is absent."""
    if not FILE.exists():
        return {}
    found: dict[str, Capture] = {}
    for number, row in enumerate(map(json.loads, FILE.read_text().splitlines())):
        if row["protocol"] not in ("oai-chat", "oai-responses", "anthropic"):
            continue
        first = None if row["first_semantic_index"] is None else int(row["first_semantic_index"])
        if row["truncated_middle"] and first is not None and first >= _KEPT_HEAD:
            continue  # the labelled event itself was cut out
        body = row["body"].encode()
        if body.startswith(b" "):
            continue  # edited by hand: a line that begins with a blank is no field of an event stream
        if row["protocol"] == "anthropic" and not body.startswith(b"event:"):
            body = _UNNAMED.sub(rb"event: \2\ndata: \1", body)  # kept as JSON lines by its source, without the names
        name = f"{row['protocol']}-{number}-{Path(row['path']).stem}"
        kind = row["first_semantic_kind"] if isinstance(row["first_semantic_kind"], str) else ""
        found[name] = Capture(name, row["protocol"], body, first, kind, row["error_in_stream"])
    return found
