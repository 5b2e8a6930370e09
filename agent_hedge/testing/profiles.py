"""How long a request waits for its first token: frozen values that answer one question, drawn reproducibly.

A profile gives the *extra* time before the first token, in engine seconds, on top of queueing and prefill. The same
draw key under the same seed gives the same number whatever else happened (common random numbers): two policies can
then be compared on one set of draws, and the difference is theirs.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import Protocol

from agent_hedge.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Draw:
    """One request, as a profile sees it.

    `key` names the draw (for example ``run/step/target``); without one, the `ordinal` of the request does. `at` is
    in engine seconds since the engine's start.
    """

    seed: int
    key: str
    ordinal: int
    at: float = 0.0

    def random(self, salt: str = "") -> Random:
        """Return a generator that depends on seed, key and salt alone (never on Python's own hash seed)."""
        name = f"{self.seed}|{salt}|{self.key or f'#{self.ordinal}'}"
        return Random(int.from_bytes(blake2b(name.encode(), digest_size=8).digest()))


class Profile(Protocol):
    """When does the first token of an otherwise ready request come?"""

    def extra(self, draw: Draw) -> float:
        """Return the extra seconds (engine time, >= 0) before the first token."""
        ...


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise ConfigurationError(message)


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same number of seconds."""

    seconds: float = 0.0

    def __post_init__(self) -> None:
        _require(0 <= self.seconds < math.inf, f"a fixed TTFT must be finite and not negative, not {self.seconds}")

    def extra(self, draw: Draw) -> float:
        return self.seconds


@dataclass(frozen=True, slots=True)
class Lognormal:
    """A light tail around a `median` in seconds; `sigma` is the standard deviation of the logarithm."""

    median: float
    sigma: float

    def __post_init__(self) -> None:
        _require(0 < self.median < math.inf, f"a lognormal needs a positive median, not {self.median}")
        _require(0 <= self.sigma < math.inf, f"a lognormal needs sigma >= 0, not {self.sigma}")

    def extra(self, draw: Draw) -> float:
        return self.median * math.exp(self.sigma * draw.random().gauss(0.0, 1.0))


@dataclass(frozen=True, slots=True)
class Stragglers:
    """A lognormal body, and a `share` of requests that fall into a Pareto tail.

    A straggler takes at least `scale` seconds, longer than x with probability (scale / x) ** alpha, never more than
    `cap` seconds: below alpha = 2 a single draw could otherwise outlast the experiment.
    """

    median: float
    sigma: float
    share: float
    scale: float
    alpha: float
    cap: float = 120.0

    def __post_init__(self) -> None:
        Lognormal(self.median, self.sigma)
        _require(0 <= self.share <= 1, f"the share of stragglers must be within 0 and 1, not {self.share}")
        _require(0 < self.scale <= self.cap, f"need 0 < scale <= cap, not scale {self.scale} and cap {self.cap}")
        _require(0.1 <= self.alpha < math.inf, f"a Pareto tail needs alpha >= 0.1, not {self.alpha}")

    def extra(self, draw: Draw) -> float:
        random = draw.random()
        body = self.median * math.exp(self.sigma * random.gauss(0.0, 1.0))
        if random.random() >= self.share:
            return body
        return min(self.cap, self.scale * math.pow(1.0 - random.random(), -1.0 / self.alpha))


SHARED_ENDPOINT = Stragglers(median=0.494, sigma=0.11, share=0.022, scale=5.0, alpha=1.87, cap=32.0)
"""A shared endpoint on a bad day: p50 0.49 s, p99 7.6 s, p99.9 26 s, largest 31.5 s of 2,407 calls.

Fitted to the two upper quantiles of the BaseTen gemma-4-31b conversations of 2026-08-07 in kwindla/aiewf-eval
(commit 9526aac, MIT): stragglers come without memory, so a duplicate is almost independent.
"""


@dataclass(frozen=True, slots=True)
class Recorded:
    """Real first-token times in seconds, replayed.

    A whole number as draw key indexes the list (modulo its length), any other key picks an entry by its hash;
    without keys the list is replayed in order, from the top again when it ends.
    """

    seconds: Sequence[float]

    def __post_init__(self) -> None:
        _require(len(self.seconds) > 0, "a replay needs at least one TTFT")
        _require(all(0 <= value < math.inf for value in self.seconds), "a replayed TTFT is finite and not negative")

    def extra(self, draw: Draw) -> float:
        if not draw.key:
            index = draw.ordinal
        elif draw.key.isdecimal():
            index = int(draw.key)
        else:
            index = draw.random().randrange(len(self.seconds))
        return self.seconds[index % len(self.seconds)]

    @classmethod
    def from_csv(cls, path: str | Path) -> Recorded:
        """Read the column ``ttft_ms`` or ``ttft_s`` of a CSV file; rows where it is empty are skipped."""
        return cls(tuple(seconds for seconds, _ in recorded_rows(path)))


def recorded_rows(path: str | Path) -> list[tuple[float, dict[str, str]]]:
    """Return the first-token times of a CSV file in seconds, each with its row; see `Recorded.from_csv`.

    Raises:
        ConfigurationError: the file cannot be read, has not the column, or holds what is no time.
    """
    source = Path(path)
    try:
        with source.open(newline="", encoding="utf-8-sig") as lines:
            return _rows(csv.DictReader(lines), source)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ConfigurationError(f"cannot read the replay file {source}: {error}") from error


@dataclass(frozen=True, slots=True)
class Spells:
    """Slow spells: once in `every` seconds, at a drawn instant, `body` is `factor` times slower for `lasts` seconds.

    The spells depend on the seed and the engine's clock alone, so engines of one seed share them (a common cause).
    """

    body: Profile
    every: float
    lasts: float
    factor: float

    def __post_init__(self) -> None:
        _require(0 < self.lasts <= self.every < math.inf, f"need 0 < lasts <= every, not {self.lasts}, {self.every}")
        _require(0 < self.factor < math.inf, f"a spell needs a positive factor, not {self.factor}")

    def slow(self, seed: int, at: float) -> bool:
        """Whether `at` (engine seconds) lies inside a spell."""
        period, offset = divmod(at, self.every)
        start = Draw(seed, f"spell/{period:.0f}", 0).random("spells").uniform(0.0, self.every - self.lasts)
        return start <= offset < start + self.lasts

    def extra(self, draw: Draw) -> float:
        return self.body.extra(draw) * (self.factor if self.slow(draw.seed, draw.at) else 1.0)


GRAMMAR = (
    "fixed:SECONDS | lognormal:MEDIAN,SIGMA | stragglers:MEDIAN,SIGMA,SHARE,SCALE,ALPHA[,CAP] | shared-endpoint | "
    "replay:FILE | spells:EVERY,LASTS,FACTOR/PROFILE"
)


def parse(text: str) -> Profile:
    """Read a profile from the command line's words, see `GRAMMAR`; seconds throughout.

    Raises:
        ConfigurationError: the text names no profile, or a number in it cannot be meant.
    """
    kind, _, rest = text.partition(":")
    if text == "shared-endpoint":
        return SHARED_ENDPOINT
    if kind == "replay" and rest:
        return Recorded.from_csv(rest)
    if kind == "spells" and "/" in rest:
        numbers, _, body = rest.partition("/")
        every, lasts, factor = _numbers(text, numbers, range(3, 4))
        return Spells(parse(body), every, lasts, factor)
    makers: dict[str, tuple[Callable[..., Profile], range]] = {
        "fixed": (Fixed, range(1, 2)),
        "lognormal": (Lognormal, range(2, 3)),
        "stragglers": (Stragglers, range(5, 7)),
    }
    if kind not in makers:
        raise ConfigurationError(f"{text!r} is no TTFT profile; known: {GRAMMAR}")
    make, counts = makers[kind]
    return make(*_numbers(text, rest, counts))


def _numbers(text: str, words: str, counts: range) -> list[float]:
    try:
        numbers = [float(word) for word in words.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in counts:
        raise ConfigurationError(f"{text!r} does not give the numbers a profile needs: {GRAMMAR}")
    return numbers


def _rows(rows: csv.DictReader[str], source: Path) -> list[tuple[float, dict[str, str]]]:
    columns = [name for name in rows.fieldnames or () if name is not None]
    name = next((name for name in ("ttft_ms", "ttft_s") if name in columns), None)
    if name is None:
        found = ", ".join(columns) or "none"
        raise ConfigurationError(f"{source} has no column ttft_ms or ttft_s; columns found: {found}")
    scale = 1e-3 if name == "ttft_ms" else 1.0
    found_rows: list[tuple[float, dict[str, str]]] = []
    for row in rows:
        if not (text := (row[name] or "").strip()):
            continue
        try:
            value = float(text) * scale
        except ValueError:
            value = math.nan
        if not 0 <= value < math.inf:
            raise ConfigurationError(f"{source}, line {rows.line_num}: {name} is {text!r}, not a time")
        found_rows.append((value, row))
    if not found_rows:
        raise ConfigurationError(f"{source} has no value in its column {name}")
    return found_rows
