"""Acceptance E3: hedging on real chains of LLM calls, with defaults, learning online from the first call on.

    python -m tests.benchmarks.chains FILE.csv [--draws N] [--seed N] [--json]

FILE has the columns ``chain``, ``turn`` and ``ttft_ms`` (or ``ttft_s``). Turn 0 (a cold prefix) stands apart. The
primary's times are those of a whole chain; a copy meets the time of the same turn in another chain. Each chain is
drawn equally often; chains run one after another in random order on a virtual clock of TTFT plus 1.5 s a step. The
fleet's caps are on. Beside it runs the same with two attempts at most: the effect of the third.

Where p99/p50 of the steps is below 2.5 there is nothing to win, and extra dispatches must stay below 0.5 %. Else the
bounds are those of the headline set (conversations of 30 steps with gemma-4-31b; unhedged their p95 is 34 s):
a p95 of at most 16.5 s, the worst 2 % at most 0.45 of unhedged, 2.6 % extra dispatches, 70 % of the hedges win.
Exit code 1 when one is missed; another series has a tail of its own, so look at its figures rather than at the code.
20,000 draws of 29 steps take some two minutes; progress goes to the error stream.
"""

from __future__ import annotations

import csv
import json
import math
import random
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from agent_hedge import Hedger, Quantile
from agent_hedge.core.step import Attempt
from tests.benchmarks.simulated import Draw, Simulated

BETWEEN_STEPS_S = 1.5
"""Decode and tool time of a step, outside the race."""
DRAWS = 20_000
LIGHT_TAIL, LIGHT_BOUND = 2.5, 0.005
"""A series with p99/p50 below this is light; extra dispatches per step that are too many for it."""
P95_S, WORST2_RATIO, RATE, WIN_RATE = 16.5, 0.45, 0.026, 0.70
"""Bounds of the headline set (E3)."""
POLICIES = {"hedged": Quantile(), "two_attempts": Quantile(attempts=2)}

Chain = Mapping[int, float]


def read_chains(path: Path) -> list[Chain]:
    """Return the chains of a CSV: seconds to the first token by turn, turn 0 left out, in the order of the turns.

    Rows without a time are left out. Raises `SystemExit` with one clear line for a file that cannot be meant.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError) as error:
        raise SystemExit(f"{path}: cannot be read: {error}") from None
    columns = {name for name in rows[0] if name} if rows else set()
    if not {"chain", "turn"} <= columns or not columns & {"ttft_ms", "ttft_s"}:
        raise SystemExit(f"{path}: needs the columns chain, turn and ttft_ms or ttft_s; found {sorted(columns)}")
    column, unit = ("ttft_ms", 1e-3) if "ttft_ms" in columns else ("ttft_s", 1.0)
    chains: dict[str, dict[int, float]] = {}
    for line, row in enumerate(rows, start=2):
        try:
            turn, seconds = int(row["turn"]), float(row[column] or "nan") * unit
        except (TypeError, ValueError):
            raise SystemExit(f"{path}, line {line}: {row['turn']!r}, {row[column]!r} are no turn and time") from None
        if seconds < 0 or seconds == math.inf:
            raise SystemExit(f"{path}, line {line}: a time of {row[column]} cannot be meant")
        if turn > 0 and seconds == seconds:
            chains.setdefault(row["chain"], {})[turn] = seconds
    if len(chains) < 2:
        raise SystemExit(
            f"{path}: needs two chains at least, so that a copy can meet another's time; found {len(chains)}"
        )
    return [dict(sorted(chain.items())) for chain in chains.values()]


def summed(chain: Chain) -> float:
    return sum(chain.values())


def statistics(sums: Sequence[float]) -> dict[str, float]:
    ordered = sorted(sums)
    worst = ordered[-max(1, len(ordered) // 50) :]

    def at(q: float) -> float:
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]

    return {"p50_s": at(0.50), "p95_s": at(0.95), "p99_s": at(0.99), "worst2_s": sum(worst) / len(worst)}


def play(
    chains: Sequence[Chain], order: Sequence[int], hedger: Hedger, seed: int, name: str = ""
) -> tuple[list[float], Simulated]:
    """Run the chains in order; return the summed times to first token of each. A `name` tells how far it is."""
    rng = random.Random(seed)
    by_turn: dict[int, list[tuple[int, float]]] = {}
    for number, chain in enumerate(chains):
        for turn, ttft in chain.items():
            by_turn.setdefault(turn, []).append((number, ttft))
    world = Simulated(hedger, ["primary", "second", "third"], node="chain")
    sums = []
    for played, number in enumerate(order):
        if name and played % max(1, len(order) // 5) == 0:
            print(f"  {name}: {played:,} of {len(order):,} chains", file=sys.stderr, flush=True)
        total = 0.0
        for turn, ttft in chains[number].items():
            others = by_turn[turn]

            def serve(attempt: Attempt, own: float = ttft, others: list[tuple[int, float]] = others) -> Draw:
                if attempt.number == 0:
                    return Draw(own)
                while (drawn := rng.choice(others))[0] == number and len(others) > 1:  # noqa: B023 - used at once
                    pass
                return Draw(drawn[1])

            total += world.step(serve)
            world.now += BETWEEN_STEPS_S
        sums.append(total)
    return sums, world


def _played(
    chains: Sequence[Chain], order: Sequence[int], name: str, seed: int
) -> tuple[dict[str, float], float, float | None]:
    """Return the statistics of one policy, its hedges per step, and the share of them that won."""
    sums, world = play(chains, order, Hedger(policy=POLICIES[name]), seed, name)
    wins = world.hedge_wins / world.hedges if world.hedges else None
    return statistics(sums), world.hedges / world.steps, wins


def measure(path: Path, draws: int, seed: int) -> dict[str, object]:
    chains = read_chains(path)
    order = [number for number in range(len(chains)) for _ in range(-(-draws // len(chains)))]
    random.Random(seed).shuffle(order)
    steps = sorted(ttft for chain in chains for ttft in chain.values())
    figures: dict[str, object] = {
        "chains": len(chains),
        "draws": len(order),
        "p99_over_p50": steps[int(0.99 * len(steps))] / max(steps[len(steps) // 2], 1e-9),
        "unhedged": statistics([summed(chains[number]) for number in order]),
    }
    with ProcessPoolExecutor(len(POLICIES)) as processes:
        playing = {name: processes.submit(_played, chains, order, name, seed) for name in POLICIES}
        for name, one in playing.items():
            prefix = "" if name == "hedged" else f"{name}_"
            figures[name], figures[f"{prefix}hedge_rate"], figures[f"{prefix}win_rate"] = one.result()
    return figures


def main(arguments: Sequence[str]) -> int:
    def option(name: str, default: int) -> int:
        return int(arguments[arguments.index(name) + 1]) if name in arguments else default

    values = {index + 1 for index, argument in enumerate(arguments) if argument in ("--draws", "--seed")}
    files = [word for index, word in enumerate(arguments) if not word.startswith("--") and index not in values]
    if len(files) != 1:
        print(__doc__)
        return 2
    figures = measure(Path(files[0]), option("--draws", DRAWS), option("--seed", 1))
    tail, rate, wins = figures["p99_over_p50"], figures["hedge_rate"], figures["win_rate"]
    assert isinstance(tail, float)
    assert isinstance(rate, float)
    assert wins is None or isinstance(wins, float)
    unhedged, hedged = figures["unhedged"], figures["hedged"]
    assert isinstance(unhedged, dict)
    assert isinstance(hedged, dict)
    if tail < LIGHT_TAIL:
        bounds = {f"extra dispatches, light tail: {rate:.2%} (bound {LIGHT_BOUND:.1%})": rate < LIGHT_BOUND}
    else:
        worst = hedged["worst2_s"] / unhedged["worst2_s"]
        bounds = {
            f"p95 {hedged['p95_s']:.1f} s (bound {P95_S})": hedged["p95_s"] <= P95_S,
            f"worst 2 % over unhedged {worst:.2f} (bound {WORST2_RATIO})": worst <= WORST2_RATIO,
            f"extra dispatches {rate:.2%} (bound {RATE:.1%})": rate <= RATE,
            f"of which won {wins or 0:.1%} (bound {WIN_RATE:.0%})": (wins or 0) >= WIN_RATE,
        }
    met = all(bounds.values())
    if "--json" in arguments:
        print(json.dumps(figures))
        return 0 if met else 1
    print(f"{figures['chains']} chains, {figures['draws']} draws; steps: p99/p50 {tail:.1f}")
    print("summed TTFT per chain, seconds")
    for name in ("unhedged", *POLICIES):
        row = figures[name]
        assert isinstance(row, dict)
        print(f"{name:14s}" + "".join(f"  {key[:-2]} {value:7.2f}" for key, value in row.items()))
    print(
        f"the third attempt: p95 {_change(figures, 'p95_s'):+.2%}, p99 {_change(figures, 'p99_s'):+.2%}, worst 2 % "
        f"{_change(figures, 'worst2_s'):+.2%}, extra dispatches {figures['two_attempts_hedge_rate']:.2%} -> {rate:.2%}"
    )
    for bound, held in bounds.items():
        print(f"{'met' if held else 'MISSED':8s}{bound}")
    return 0 if met else 1


def _change(figures: dict[str, object], key: str) -> float:
    """Return what the third attempt changes in a figure, as a ratio."""
    three, two = figures["hedged"], figures["two_attempts"]
    assert isinstance(three, dict)
    assert isinstance(two, dict)
    return float(three[key] / two[key] - 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
