"""Is there an earlier call that this one may repeat? Pure: the claims of the thread and the history in, a reason out.

In this order (R11):

1. A claim of the same run that is running, or in doubt, with the same tool and the same arguments: the model may have
   been told "please try again" in some way we do not see.
2. A claim of the same tool that is in doubt, with whatever arguments: nobody knows yet what happened. Calls that one
   message asked for together are no repetitions of each other.
3. A claim with the same call id, tool and arguments under another key: the same call, reached on another way.
4. An unconfirmed claim that the history does not know: the step that made it was lost, and has been run again.

Confirmed means that the checkpointer has returned the call: it was in the state of a later invocation, of another
process, or of a later step under ``durability="sync"``. Seen in memory is not enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from agent_hedge.core.step import Effect
from agent_hedge.core.stores import Claim, ClaimState
from agent_hedge.tools.calls import SINGLE
from agent_hedge.tools.site import Frame, Site, durable_since, goes_forward

ABANDONED = "abandoned by a person"
"""Note of a claim that stays in doubt and waits for nobody."""

_OPEN = frozenset({ClaimState.RUNNING, ClaimState.IN_DOUBT})


@dataclass(slots=True)
class Findings:
    """`doubt`: why the call is in doubt, or empty. `seen`: keys of claims that the checkpointer has returned.

    `missing`: claims that the history does not know; where they are the only doubt, other evidence may clear it.
    """

    doubt: str = ""
    seen: list[str] = field(default_factory=list)
    missing: list[Claim] = field(default_factory=list)


def examine(
    mine: Claim,
    site: Site,
    rows: Iterable[Claim],
    *,
    trace: Callable[[str], tuple[Frame, ...] | None],
    later: Callable[[str], bool],
) -> Findings:
    """Compare a claim that has just been made with the others of its thread and run.

    `trace` gives the frames of a claim of this process, or None; `later` tells of one that was begun after `mine`.
    """
    found = Findings()
    left = dict(site.history)
    if left.get(mine.call_id):
        left[mine.call_id] -= 1
    for row in rows:
        if row.effect_key == mine.effect_key:
            continue
        known = bool(row.call_id and left.get(row.call_id, 0) > 0)
        if known:
            left[row.call_id] -= 1
        frames = trace(row.effect_key)
        doubt = _overlap(mine, site, row, frames, later)
        if not doubt and not row.confirmed and _counts(row):
            if _returned(site, row, known, frames):
                found.seen.append(row.effect_key)
            elif not known and _must_be_known(site, row, frames):
                found.missing.append(row)
        found.doubt = found.doubt or doubt
    if found.missing and not found.doubt:
        found.doubt = "an earlier call is missing in the history that led here"
    elif found.doubt:
        found.missing = []
    return found


def _forward(frames: tuple[Frame, ...], site: Site) -> bool:
    return goes_forward(frames, site.frames, persistent=site.persistent)


def _must_be_known(site: Site, row: Claim, frames: tuple[Frame, ...] | None) -> bool:
    """Another process's claims of this thread; of this process, those whose step runs again."""
    if frames is not None:
        return not _forward(frames, site)
    return bool(site.thread) and row.thread == site.thread


def _counts(row: Claim) -> bool:
    """Whether a claim has to be in the history: one named by its call, whose effect may have happened."""
    if not row.call_id:
        return False
    if row.effect in SINGLE:
        return row.state is not ClaimState.FAILED
    return row.effect is Effect.KEYED


def _overlap(
    mine: Claim, site: Site, row: Claim, frames: tuple[Frame, ...] | None, later: Callable[[str], bool]
) -> str:
    if row.tool != mine.tool or row.effect not in SINGLE:
        return ""
    alike = row.args_fingerprint == mine.args_fingerprint
    if row.state in _OPEN and not later(row.effect_key):
        if alike and row.run_key == mine.run_key:
            return f"a call with the same arguments is {_word(row.state)}"
        if row.state is ClaimState.IN_DOUBT and row.call_id not in site.siblings and row.note != ABANDONED:
            return "an earlier call of this tool is in doubt"
    same_call = alike and row.call_id and row.call_id == mine.call_id and row.state is not ClaimState.FAILED
    if same_call and not (frames is not None and _forward(frames, site)):
        return "this call was claimed in another place"
    return ""


def _returned(site: Site, row: Claim, known: bool, frames: tuple[Frame, ...] | None) -> bool:
    """Whether the checkpointer has returned the step of a claim."""
    if frames is None:
        return known
    if durable_since(frames, site):
        return True
    other_invocation = bool(frames and site.frames and frames[0].execution != site.frames[0].execution)
    return known and other_invocation and site.persistent


def _word(state: ClaimState) -> str:
    return "still running" if state is ClaimState.RUNNING else "in doubt"


def merged(*lists: Sequence[Claim]) -> list[Claim]:
    """Return the claims of several lists, each once, oldest first."""
    rows = {row.effect_key: row for rows in lists for row in rows}
    return sorted(rows.values(), key=lambda row: (row.claimed_at, row.effect_key))
