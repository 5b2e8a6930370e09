"""What the two replicas take to answer: a named profile fitted to public measurements, or real times from a file.

Both replicas hold a list or a law of first-token times, and every request names its draw by a whole number (the
header ``X-Draw``). The same draw on the same replica takes the same time under every policy, so two policies differ
by what they did and not by their luck. The replicas are independent of each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import fmean, median

from agent_hedge.testing.profiles import SHARED_ENDPOINT, Draw, Profile, Recorded, recorded_rows

STEPS = 20
"""LLM calls of one run: the middle of the 10 to 50 that agents make."""


@dataclass(frozen=True, slots=True)
class Draws:
    """First-token times of both replicas: what they are called, where they come from, and who serves which.

    `seeds` go to the engines beside the profiles; `mean` and `median` are of the primary's draws, in seconds.
    """

    name: str
    source: str
    profiles: tuple[Profile, Profile]
    seeds: tuple[int, int]
    mean: float
    median: float


def shared_endpoint(runs: int, seed: int) -> Draws:
    """Return the draws of the shipped profile: a shared endpoint whose stragglers come without memory."""
    seeds = (2 * seed, 2 * seed + 1)
    times = [SHARED_ENDPOINT.extra(Draw(seeds[0], str(number), number)) for number in range(runs * STEPS)]
    source = (
        "lognormal body, Pareto stragglers (2.2 %), fitted to 4,350 calls of BaseTen gemma-4-31b, 2026-08-07: "
        "github.com/kwindla/aiewf-eval @ 9526aac (MIT)"
    )
    profiles = (SHARED_ENDPOINT, SHARED_ENDPOINT)
    return Draws("shared-endpoint", source, profiles, seeds, fmean(times), median(times))


def replay(path: Path, runs: int, seed: int) -> Draws:
    """Return the draws of a CSV file with a column ``ttft_ms`` or ``ttft_s``.

    A file with the columns ``chain`` and ``turn`` holds conversations: a run takes `STEPS` turns in a row of one of
    them on the primary, and its copies are the same turns of other, independently drawn conversations. The first turn
    is left out (it meets a cold cache). Any other file is one series: a run takes a stretch of it, a copy any row.

    Raises:
        ConfigurationError: no such file, no such column, or a row that is no time.
    """
    random = Random(f"replay {seed}")
    rows = recorded_rows(path)
    chains = _chains(rows)
    if chains:
        primary, copy = _from_chains(chains, runs, random)
        what = f"{len(chains)} conversations"
    else:
        series = [seconds for seconds, _ in rows]
        primary, copy = _from_series(series, runs, random)
        what = f"{len(series):,} times"
    profiles = (Recorded(primary), Recorded(copy))
    return Draws(path.name, f"{what}, replayed", profiles, (0, 0), fmean(primary), median(primary))


def _chains(rows: Sequence[tuple[float, dict[str, str]]]) -> list[list[float]]:
    """Return the conversations with at least `STEPS` warm turns, each in order; none where the file has no turns."""
    turns: dict[str, list[tuple[float, float]]] = {}
    for seconds, row in rows:
        try:
            turns.setdefault(row["chain"], []).append((float(row["turn"]), seconds))
        except (KeyError, TypeError, ValueError):
            return []
    chains = [[seconds for _, seconds in sorted(chain)[1:]] for chain in turns.values()]
    chains = [chain for chain in chains if len(chain) >= STEPS]
    return chains if len(chains) > 1 else []


def _from_chains(chains: list[list[float]], runs: int, random: Random) -> tuple[list[float], list[float]]:
    primary: list[float] = []
    copy: list[float] = []
    order: list[int] = []
    for _ in range(runs):
        if not order:  # every conversation once, then every one again
            order = random.sample(range(len(chains)), len(chains))
        mine = order.pop()
        first = random.randint(0, len(chains[mine]) - STEPS)
        for turn in range(first, first + STEPS):
            others = [chain for number, chain in enumerate(chains) if number != mine and len(chain) > turn]
            primary.append(chains[mine][turn])
            copy.append(random.choice(others or chains)[turn if others else first % STEPS])
    return primary, copy


def _from_series(series: list[float], runs: int, random: Random) -> tuple[list[float], list[float]]:
    primary: list[float] = []
    for _ in range(runs):
        first = random.randrange(len(series))
        primary.extend(series[(first + step) % len(series)] for step in range(STEPS))
    return primary, random.choices(series, k=len(primary))


@dataclass(frozen=True, slots=True)
class Tempo:
    """How fast the demo plays: so many times faster than real, with so many runs of a policy in flight."""

    compression: float
    in_flight: int


RATE = 100.0
"""LLM calls a second and policy: three policies at about 4 ms CPU a call leave half of two cores free."""
IN_FLIGHT = 22
LEAST_MEDIAN_S = 0.05
"""The median first-token time is not compressed below this: there the client's own work would show."""


def tempo(draws: Draws) -> Tempo:
    """Return the tempo at which a policy makes `RATE` calls a second, or fewer where that cannot be."""
    compression = min(RATE * draws.mean / IN_FLIGHT, draws.median / LEAST_MEDIAN_S)
    compression = max(1.0, math.floor(compression * 10) / 10)
    in_flight = math.floor(RATE * draws.mean / compression)
    return Tempo(compression, max(1, min(in_flight, IN_FLIGHT)))
