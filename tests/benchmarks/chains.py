"""Acceptance E3: hedging on real chains of LLM calls, with defaults, learning online from the first call on.

    python -m tests.benchmarks.chains FILE.csv [--draws N] [--seed N] [--json]

FILE has the columns ``chain``, ``turn`` and ``ttft_ms`` (or ``ttft_s``). Turn 0 (a cold prefix) stands apart. The
primary's times are those of a whole chain; a copy meets the time of the same turn in another chain. Each chain is
drawn equally often; chains run one after another in random order on a virtual clock of TTFT plus 1.5 s a step. The
fleet's caps are on.
"""

from __future__ import annotations

import csv
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_hedge import Hedger, Quantile
from agent_hedge.core.step import Attempt
from tests.benchmarks.simulated import Draw, Simulated

BETWEEN_STEPS_S = 1.5
"""Decode and tool time of a step, outside the race."""
DRAWS = 20_000

Chain = Mapping[int, float]


def read_chains(path: Path) -> list[Chain]:
    """Return the chains of a CSV: seconds to the first token by turn, turn 0 left out."""
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    columns = set(rows[0]) if rows else set()
    if not {"chain", "turn"} <= columns or not columns & {"ttft_ms", "ttft_s"}:
        raise SystemExit(f"{path}: needs the columns chain, turn and ttft_ms or ttft_s; found {sorted(columns)}")
    column, unit = ("ttft_ms", 1e-3) if "ttft_ms" in columns else ("ttft_s", 1.0)
    chains: dict[str, dict[int, float]] = {}
    for row in rows:
        if int(row["turn"]) > 0 and row[column]:
            chains.setdefault(row["chain"], {})[int(row["turn"])] = float(row[column]) * unit
    return list(chains.values())


def summed(chain: Chain) -> float:
    return sum(chain.values())


def statistics(sums: Sequence[float]) -> dict[str, float]:
    ordered = sorted(sums)
    worst = ordered[-max(1, len(ordered) // 50) :]

    def at(q: float) -> float:
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))]

    return {"p50_s": at(0.50), "p95_s": at(0.95), "p99_s": at(0.99), "worst2_s": sum(worst) / len(worst)}


def play(chains: Sequence[Chain], order: Sequence[int], hedger: Hedger, seed: int) -> tuple[list[float], Simulated]:
    """Run the chains in order; return the summed times to first token of each."""
    rng = random.Random(seed)
    by_turn: dict[int, list[tuple[int, float]]] = {}
    for number, chain in enumerate(chains):
        for turn, ttft in chain.items():
            by_turn.setdefault(turn, []).append((number, ttft))
    world = Simulated(hedger, ["primary", "second", "third"], node="chain")
    sums = []
    for number in order:
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


def measure(path: Path, draws: int, seed: int) -> dict[str, object]:
    chains = read_chains(path)
    order = [number for number in range(len(chains)) for _ in range(-(-draws // len(chains)))]
    random.Random(seed).shuffle(order)
    figures: dict[str, object] = {"chains": len(chains), "draws": len(order)}
    figures["unhedged"] = statistics([summed(chains[number]) for number in order])
    for name, hedger in {"hedged": Hedger(), "two_attempts": Hedger(policy=Quantile(attempts=2))}.items():
        sums, world = play(chains, order, hedger, seed)
        figures[name] = statistics(sums)
        prefix = "" if name == "hedged" else f"{name}_"
        figures[f"{prefix}hedge_rate"] = world.hedges / world.steps
        figures[f"{prefix}win_rate"] = world.hedge_wins / world.hedges if world.hedges else None
    return figures


def main(arguments: Sequence[str]) -> int:
    files = [argument for argument in arguments if not argument.startswith("--")]
    if not files:
        print(__doc__)
        return 2

    def option(name: str, default: int) -> int:
        return int(arguments[arguments.index(name) + 1]) if name in arguments else default

    figures = measure(Path(files[0]), option("--draws", DRAWS), option("--seed", 1))
    if "--json" in arguments:
        print(json.dumps(figures))
        return 0
    print(f"{figures['chains']} chains, {figures['draws']} draws; summed TTFT per chain, seconds")
    for name in ("unhedged", "hedged", "two_attempts"):
        row = figures[name]
        assert isinstance(row, dict)
        print(f"{name:14s}" + "".join(f"  {key[:-2]} {value:7.2f}" for key, value in row.items()))
    print(f"hedge rate {figures['hedge_rate']:.2%}, win rate {figures['win_rate'] or 0:.1%}")
    print(f"without a third attempt: hedge rate {figures['two_attempts_hedge_rate']:.2%}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
