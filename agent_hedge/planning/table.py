"""The planned delay d*(k, s, b): when to hedge a step with k steps, s seconds and b hedges left to its run.

A step takes min(X1, d + X2) + R: the first token of the primary or of the copy sent after d seconds, then decode and
tool time. With the expected lateness as objective and a price per hedge,

    V_0(s, b) = -lateness(s)
    V_k(s, b) = max over d of  E[V_{k-1}(s - R - X1, b);               X1 <= d]
                             + E[V_{k-1}(s - R - min(X1, d + X2), b - 1); X1 > d] - price * P(X1 > d)

Inside a step the only news is that it still waits, so choosing d at its start loses nothing. One table serves every
run, deadline and length up to its size: only (k, s, b) differs. Where the length is a distribution, the step after this
one comes with probability 1 - h_i, h_i being the hazard of the length at i.

Lateness counts in full for as long as `LATE` mean steps, and a tenth beyond. Counted in full throughout, the last
hedges of a purse are kept back for stalls after which the run is late by far even so: p99 at the rail is then 2.2 %
over that of runs without a purse, and not 1.9 %. Not counted beyond, which would come to the hard objective P(T <= D),
a hopeless run would stop hedging, which wrecks its p99. Below that kink V_k is exactly linear, which closes the grid;
above the grid nothing is late.

The expectation is a convolution, done for all delays and prices at once by FFT on a grid of seconds. The grid may be
coarse (a third of a step, where a run has 60) because what is put on it keeps its mean: a value between two cells is
shared by both. Twice as many cells choose no better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent_hedge.errors import ConfigurationError
from agent_hedge.planning.distribution import Array, Distribution

GRID = 256
"""Cells of the slack axis."""
PURSES = 4
"""Hedges left up to which runs are told apart."""
ENOUGH = PURSES + 1
"""What stands for more of them where they are ample. Elsewhere `PURSES` does: as if it had enough, a run of 50 steps
that falls behind would spend two of its six hedges at once; as if it had four, it fares as with a table of six."""
AMPLE = 5
"""Steps left for each hedge left, up to which these are ample."""
LATE = 1.0
"""Mean steps of lateness that count in full."""
LATE_WEIGHT = 0.1
"""What a second of lateness beyond them counts."""
PRICE_STEP = 2.0
"""Ratio between neighbouring prices of a table; delays between two are interpolated. A table is centred on the price
in force when it is built, and built again as the window rolls: far from its centre a third of its gain is lost."""
PRICE_RANGE = range(-2, 3)
"""The tabled prices, in steps around the price in force when the table is built."""
TYPICAL_PRICE = 3e-3
"""In mean steps of expected lateness per hedge: where 5 % of the steps are hedged at a deadline that 1 % miss."""
_QUANTILES = (0.0, 0.3, 0.6, 0.8, 0.88, 0.92, 0.95, 0.96, 0.97, 0.98, 0.99)
_PREFER_NEVER = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Delays by hedges, steps and seconds left, and by price; reads are O(1)."""

    prices: Array
    cell: float
    """Seconds of one cell of the slack axis."""
    late: int
    """Cells of the slack axis below 0."""
    delays: Sequence[float]
    """The delays chosen from, in seconds, ascending; the last is infinite: never."""
    choices: NDArray[np.uint8]
    """Shape (purses, prices, steps, cells): which delay. Purses of 1, 2, ... hedges, and of enough."""

    @property
    def steps(self) -> int:
        return int(self.choices.shape[2])

    def delay(self, step: int, slack: float, price: float, purse: int = ENOUGH) -> float:
        """Return the delay in seconds, infinity for never.

        `step` counts from 0: steps left minus one where the length is known, steps done where it is a distribution.
        A price between two tabled ones is interpolated on its logarithm; one beyond them is the nearest. `purse`:
        hedges left; an empty one is read as a last hedge, which is then refused, and said so.
        """
        steps, cells = self.choices.shape[2:]
        place = min(max(purse, 1), ENOUGH) - 1
        step = min(max(step, 0), steps - 1)
        cell = min(max(int(slack / self.cell + self.late), 0), cells - 1)
        low, weight = self.place(price)
        first = self.delays[self.choices.item(place, low, step, cell)]
        second = self.delays[self.choices.item(place, low + 1, step, cell)]
        if first == second:
            return first
        if math.isinf(first) or math.isinf(second):
            return first if weight < 0.5 else second
        return first + weight * (second - first)

    def purse(self, hedges: int, left: int) -> int:
        """Return the purse of a run with so many hedges and steps left, as the table tells purses apart."""
        if hedges <= PURSES:
            return hedges
        return ENOUGH if hedges * AMPLE >= left else PURSES

    def place(self, price: float) -> tuple[int, float]:
        """Return the tabled price below `price` and how far it is to the next (0 to 1, on the logarithm)."""
        last = len(self.prices) - 1
        if price <= self.prices[0]:
            return 0, 0.0
        if price >= self.prices[last]:
            return last - 1, 1.0
        at = math.log(price / self.prices[0]) / math.log(self.prices[last] / self.prices[0]) * last
        low = min(int(at), last - 1)
        return low, at - low


def known_length(steps: int) -> list[float]:
    """Return the hazards of a run that ends with its last step, for `build` (index: steps left minus one)."""
    return [1.0] + [0.0] * (steps - 1)


def build(
    first_token: Distribution,
    rest: Distribution | None,
    *,
    steps: int,
    hazards: Sequence[float] | None = None,
    copy: Distribution | None = None,
    price: float | None = None,
    grid: int = GRID,
    breathe: Callable[[], object] = lambda: None,
) -> Table:
    """Return the table for steps of this `first_token` time and `rest` (decode and tools; None: none), in seconds.

    Without `hazards` the row index is the number of steps left minus one. With them (h_i: the run ends after its step
    number i, given that it came so far) it is the number of steps done. `copy` is the first-token time of the copy's
    target where it differs; `price` (seconds of lateness per hedge) is the one now in force. `breathe` is called
    at least once in half a millisecond of work, to let other threads run.

    Raises:
        ConfigurationError: no step, or a hazard outside [0, 1].
    """
    if steps < 1:
        raise ConfigurationError(f"a plan needs at least one step, got {steps!r}")
    if hazards is not None and (len(hazards) < steps or not all(0 <= h <= 1 for h in hazards)):
        raise ConfigurationError(f"hazards must be {steps} ratios from 0 to 1")
    kernels = _Kernels(first_token, copy or first_token, rest, steps, grid, breathe)
    mean = first_token.mean + (rest.mean if rest is not None else 0.0)
    around = price if price is not None and 0 < price < math.inf else TYPICAL_PRICE * mean
    prices = around * PRICE_STEP ** np.array(PRICE_RANGE, dtype=np.float64)
    choices = np.empty((ENOUGH, len(prices), steps, grid), dtype=np.uint8)
    worth = kernels.ended()
    for turn in range(steps):
        row = turn if hazards is None else steps - 1 - turn
        ends = 1.0 if turn == 0 else 0.0 if hazards is None else hazards[row]
        worth = kernels.step(worth, ends, prices, choices[:, :, row])
    return Table(prices, kernels.cell, kernels.late, kernels.delays.tolist(), choices)


class _Worth(NamedTuple):
    """What is expected of a run, minus lateness and the price of hedges, by its purse: 0, 1, ..., enough."""

    value: Array
    """Shape (purses, prices, cells), at the middle of each cell."""
    lost: Array
    """Shape (purses, prices): by how much a run below the grid is worth less than `_Kernels.below`."""


class _Kernels:
    """The distributions of a step's length under each delay, transformed once."""

    def __init__(
        self,
        first_token: Distribution,
        copy: Distribution,
        rest: Distribution | None,
        steps: int,
        grid: int,
        breathe: Callable[[], object],
    ) -> None:
        longest = float(first_token.values[-1])
        rest_mean = rest.mean if rest is not None else 0.0
        rest_longest = float(rest.values[-1]) if rest is not None else 0.0
        mean = first_token.mean + rest_mean
        spread = math.sqrt(steps) * (first_token.quantile(0.95) + rest_mean)
        self.cell = ((steps + LATE) * mean + spread + min(longest, 30 * mean)) / grid
        self.late = math.ceil(LATE * mean / self.cell)
        self.grid = grid
        self.breathe = breathe
        self.delays = np.array([first_token.quantile(q) if q else 0.0 for q in _QUANTILES] + [np.inf])
        self.chance = np.where(self.delays > 0, first_token.exceeds(self.delays), 1.0)
        # What lasts longer than the grid is late wherever it starts, so there its mean is all that counts.
        self.length = min(grid, math.ceil((longest + rest_longest) / self.cell) + 2)
        masses = np.empty((2, len(self.delays), self.length))
        self.mean = np.empty(len(self.delays))
        for index, (delay, chance) in enumerate(zip(self.delays, self.chance, strict=True)):
            unhedged, hedged = _lengths(first_token, copy, delay, chance)
            masses[0, index] = _on_grid(*unhedged, self.cell, self.length, whole=1 - chance)
            masses[1, index] = _on_grid(*hedged, self.cell, self.length, whole=chance)
            self.mean[index] = unhedged[1][-1] + hedged[1][-1] + rest_mean
            breathe()
        if rest is not None:
            tail = _on_grid(*_area(rest.values, rest.exceeds), self.cell, self.length)
            size = _smooth(2 * self.length)
            spectrum = np.fft.rfft(masses, size) * np.fft.rfft(tail, size)
            whole, masses = masses.sum(axis=2), np.fft.irfft(spectrum, size)[:, :, : self.length]
            masses[:, :, -1] += whole - masses.sum(axis=2)
        beyond = self.mean - masses.sum(axis=0) @ (np.arange(self.length) * self.cell)
        self._beyond = LATE_WEIGHT * beyond
        self._size = _smooth(grid + self.length)  # what wraps around falls on cells that are not read
        self._unhedged, self._hedged = np.fft.rfft(masses, self._size)
        slack = (np.arange(-self.length, grid) - self.late + 0.5) * self.cell
        late, full = np.maximum(-slack, 0.0), self.late * self.cell
        worth = -np.minimum(late, full) - LATE_WEIGHT * np.maximum(late - full, 0.0)
        self.below, self._end = worth[: self.length], worth[self.length :]
        # A quarter of a megabyte each: taken anew at every step, the memory costs as much as the sums.
        self._product = np.empty((len(PRICE_RANGE), *self._hedged.shape), dtype=np.complex128)
        self._other = np.empty_like(self._product)
        self._worth = np.empty((len(PRICE_RANGE), len(self.delays), self._size))
        breathe()

    def ended(self) -> _Worth:
        """Return what a run is worth that has ended."""
        shape = ENOUGH + 1, len(PRICE_RANGE)
        return _Worth(np.broadcast_to(self._end, (*shape, self.grid)), np.zeros(shape))

    def step(self, after: _Worth, ends: float, prices: Array, choices: NDArray[np.uint8]) -> _Worth:
        """Go one step back: return what a run is worth before it, and put its best delays into `choices`.

        `ends`: the chance that the run ends with this step.
        """
        value = after.value * (1 - ends) + self._end * ends
        lost = after.lost * (1 - ends)
        spectra = np.fft.rfft(np.concatenate([self.below - lost[:, :, None], value], axis=2), self._size)
        before = _Worth(np.empty_like(value), np.empty_like(lost))
        before.value[0] = self._seen(np.fft.irfft(spectra[0] * self._unhedged[-1], self._size)) - self._beyond[-1]
        before.lost[0] = lost[0] + LATE_WEIGHT * self.mean[-1]
        spent = prices[:, None] * self.chance
        cost = LATE_WEIGHT * self.mean + spent
        self.breathe()
        for purse in range(1, ENOUGH + 1):
            less = purse if purse == ENOUGH else purse - 1
            np.multiply(spectra[purse, :, None], self._unhedged, out=self._product)
            self._product += np.multiply(spectra[less, :, None], self._hedged, out=self._other)
            worth = self._seen(np.fft.irfft(self._product, self._size, out=self._worth))
            worth -= (spent + self._beyond)[:, :, None]
            worth[:, -1] += _PREFER_NEVER
            best = choices[purse - 1] = worth.argmax(axis=1)
            before.value[purse] = np.take_along_axis(worth, best[:, None], axis=1)[:, 0]
            kept, taken = lost[purse, :, None] * (1 - self.chance), lost[less, :, None] * self.chance
            before.lost[purse] = (cost + kept + taken).min(axis=1)
            self.breathe()
        return before

    def _seen(self, worth: Array) -> Array:
        return worth[..., self.length : self.length + self.grid]


def _lengths(
    first_token: Distribution, copy: Distribution, delay: float, chance: float
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return the time to the first token where it comes within `delay` seconds, and where a copy is sent, as `_area`.

    `chance`: that a copy is sent.
    """

    def unhedged(seconds: Array) -> Array:
        return np.maximum(first_token.exceeds(seconds) - chance, 0.0)

    def hedged(seconds: Array) -> Array:
        first = np.minimum(first_token.exceeds(seconds), chance)
        return first * np.where(seconds >= delay, copy.exceeds(seconds - delay), 1.0)

    within = _area(first_token.values, unhedged)
    if math.isinf(delay):
        return within, (np.zeros(1), np.zeros(1))
    return within, _area(np.concatenate([first_token.values, [delay], copy.values + delay]), hedged)


def _area(jumps: Array, exceeds: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Return where the distribution may jump, from 0 on, and the area below P(X > t) up to there, exactly.

    The last area is the mean.
    """
    knots = np.unique(np.append(jumps, 0.0))
    return knots, np.concatenate([[0.0], np.cumsum(exceeds(knots[:-1]) * np.diff(knots))])


def _on_grid(knots: Array, area: Array, cell: float, length: int, whole: float = 1.0) -> Array:
    """Return the probabilities of 0, 1, 2, ... cells with the mean of the distribution; they sum to `whole`.

    A value between two cells is shared by both: the probability of a cell is the second difference of the area. The
    last takes what is left.
    """
    survival = np.diff(np.interp(np.arange(length) * cell, knots, area)) / cell
    mass: Array = -np.diff(survival, prepend=whole, append=0.0)
    return mass


def _smooth(n: int) -> int:
    """Return the smallest number >= n without a prime factor above 5: the FFT is fast there."""
    while True:
        rest = n
        for factor in (2, 3, 5):
            while rest % factor == 0:
                rest //= factor
        if rest == 1:
            return n
        n += 1
