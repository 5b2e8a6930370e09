"""The demo against its bounds: ``python -m tests.benchmarks.demo [--replay FILE] [--json]``; exit 1 when one is missed.

Runs the command as a user would, so the figures are those of a busy or a quiet machine, whichever this is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple


class Bound(NamedTuple):
    """One figure beside what it must keep."""

    name: str
    value: float
    bound: float
    at_least: bool = False

    @property
    def held(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


def measure(options: list[str]) -> list[Bound]:
    """Run the demo and return its bounds (B1, A9)."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder, "page.html")
        command = [sys.executable, "-m", "agent_hedge.cli.__main__", "demo", "--json", "--page", str(page), *options]
        started = time.monotonic()
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        wall = time.monotonic() - started
        if done.returncode:
            sys.exit(f"the demo ended with exit code {done.returncode}")
        found: dict[str, Any] = json.loads(done.stdout)
        written = page.stat().st_size
    none, quantile = found["policies"]["none"], found["policies"]["quantile"]
    return [
        Bound("wall time, s", wall, 120.0),
        Bound("fewest runs of a policy", min(one["runs"] for one in found["policies"].values()), 300, at_least=True),
        Bound("summed TTFT p99, hedged / unhedged", quantile["ttft_sum_p99_s"] / none["ttft_sum_p99_s"], 0.5),
        Bound("hedges per logical request", quantile["hedge_rate"], 0.05),
        Bound("client CPU, share of two cores", found["client_cpu_share_of_two_cores"], 0.5),
        Bound("bytes of the page", written, 1, at_least=True),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replay", metavar="FILE")
    parser.add_argument("--seed", default="0")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    bounds = measure(["--seed", given.seed, *(["--replay", given.replay] if given.replay else [])])
    if given.json:
        print(json.dumps([bound._asdict() | {"held": bound.held} for bound in bounds], indent=2))
    else:
        for bound in bounds:
            sign = ">=" if bound.at_least else "<="
            print(f"{bound.name:36} {bound.value:12,.3f} {sign} {bound.bound:<8g} {'' if bound.held else 'MISSED'}")
    sys.exit(not all(bound.held for bound in bounds))


if __name__ == "__main__":
    main()
