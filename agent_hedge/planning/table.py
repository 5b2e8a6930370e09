"""The planned delay d*(k, s): when to hedge a step with k steps and s seconds left.

A step takes min(X1, d + X2) + R: the first token of the primary or of the copy sent after d seconds, then decode and
tool time. With the expected lateness as objective and a price per hedge,

    V_0(s) = min(s, 0)
    V_k(s) = max over d of  E[V_{k-1}(s - R - min(X1, d + X2))] - price * P(X1 > d)

Inside a step the only news is that it still waits, so choosing d at its start loses nothing. For s <= 0 every coming
second is late and V_k is exactly linear, which closes the grid below; above it nothing is late. One table serves every
run, deadline and length up to its size: only (k, s) differs. Where the length is a distribution, the step after this
one comes with probability 1 - h_i, h_i being the hazard of the length at i. (Derivation and robustness: the lateness
objective keeps hedging hopeless runs as a static trigger would; the hard one P(T <= D) stops, and wrecks their p99.)

The expectation is a convolution, done for all delays and prices at once by FFT on a grid of seconds. The grid may be
coarse (a tenth of a step, where a run has 50) because what is put on it keeps its mean: a value between two cells is
shared by both. Three times as many cells, or a hundred, choose no better.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent_hedge.errors import ConfigurationError
from agent_hedge.planning.distribution import Array, Distribution

GRID = 512
"""Cells of the slack axis: from 384 on, misses are the same to a hundredth."""
PRICE_STEP = 2.0
"""Ratio between neighbouring prices of a table; delays between two are interpolated. A table is centred on the price
in force when it is built, and built again as the window rolls: far from its centre a third of its gain is lost."""
PRICE_RANGE = range(-3, 3)
"""The tabled prices, in steps around the price in force when the table is built."""
TYPICAL_PRICE = 3e-3
"""In mean steps of expected lateness per hedge: where 5 % of the steps are hedged at a deadline that 1 % miss."""
_QUANTILES = (0.0, 0.3, 0.6, 0.8, 0.85, 0.88, 0.90, 0.92, 0.935, 0.95, 0.96, 0.97, 0.98, 0.99, 0.995)
_PREFER_NEVER = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Delays by price, step and slack. Implements the `PlanTable` port for one price at a time; reads are O(1)."""

    prices: Array
    cell: float
    """Seconds of one cell of the slack axis."""
    delays: NDArray[np.float32]
    """Shape (prices, steps, cells); infinity: never."""
    hopeless: NDArray[np.float32]
    """Shape (prices, steps): the delay where nothing can be in time."""
    passed: Sequence[tuple[float, float]]
    """The chance that a first token takes longer than a delay, and the delay in seconds: the longest delay first."""

    @property
    def steps(self) -> int:
        return int(self.delays.shape[1])

    def delay(self, step: int, slack: float, price: float) -> float:
        """Return the delay in seconds, infinity for never.

        `step` counts from 0: steps left minus one where the length is known, steps done where it is a distribution.
        A price between two tabled ones is interpolated on its logarithm; one beyond them is the nearest.
        """
        step = min(max(step, 0), self.steps - 1)
        low, weight = self.place(price)
        if slack <= 0:
            first, second = self.hopeless.item(low, step), self.hopeless.item(low + 1, step)
        else:
            cell = min(int(slack / self.cell), self.delays.shape[2] - 1)
            first, second = self.delays.item(low, step, cell), self.delays.item(low + 1, step, cell)
        if math.isinf(first) or math.isinf(second):
            return first if weight < 0.5 else second
        return first + weight * (second - first)

    def passed_by(self, chance: float) -> float:
        """Return the shortest tabled delay that a first token passes with at most this chance."""
        index = bisect_right(self.passed, (chance, math.inf))
        return self.passed[index - 1 if index else 0][1]

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
    target where it differs; `price` (seconds of lateness per hedge) is the one now in force. `breathe` is called after
    every half millisecond of work or so, to let other threads run.

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
    delays = np.empty((len(prices), steps, grid), dtype=np.float32)
    hopeless = np.empty((len(prices), steps), dtype=np.float32)
    value = np.zeros((len(prices), grid))
    slope = np.zeros(len(prices))
    for turn in range(steps):
        row = turn if hazards is None else steps - 1 - turn
        end = (1.0 if turn == 0 else 0.0) if hazards is None else (1.0 if turn == 0 else hazards[row])
        value, slope, best, best_late = kernels.step(value * (1 - end), slope * (1 - end), prices)
        delays[:, row] = kernels.delays[best]
        hopeless[:, row] = kernels.delays[best_late]
        breathe()
    passed = zip(kernels.chance[-2::-1].tolist(), kernels.delays[-2::-1].tolist(), strict=True)
    return Table(prices, kernels.cell, delays, hopeless, tuple(passed))


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
        self.cell = (steps * mean + spread + min(longest, 30 * mean)) / grid
        self.grid = grid
        self.delays = np.array([first_token.quantile(q) if q else 0.0 for q in _QUANTILES] + [np.inf])
        # What lasts longer than the grid is late wherever it starts, so there its mean is all that counts.
        self.length = min(grid, math.ceil((longest + rest_longest) / self.cell) + 2)
        mass = np.empty((len(self.delays), self.length))
        self.mean = np.empty(len(self.delays))
        for index, delay in enumerate(self.delays):
            knots, area = _hedged(first_token, copy, delay)
            mass[index] = _on_grid(knots, area, self.cell, self.length)
            self.mean[index] = area[-1] + rest_mean
            breathe()
        if rest is not None:
            tail = _on_grid(*_area(rest.values, rest.exceeds), self.cell, self.length)
            size = _smooth(2 * self.length)
            spectrum = np.fft.rfft(mass, size, axis=1) * np.fft.rfft(tail, size)
            mass = np.fft.irfft(spectrum, size, axis=1)[:, : self.length]
            mass[:, -1] += 1.0 - mass.sum(axis=1)
        self.chance = np.append(first_token.exceeds(self.delays[:-1]), 0.0)
        self.chance[self.delays == 0.0] = 1.0
        self._beyond = self.mean - mass @ (np.arange(self.length) * self.cell)
        self._size = _smooth(grid + self.length)  # what wraps around falls on cells that are not read
        self._spectrum = np.fft.rfft(mass, self._size, axis=1)
        self._late = -(np.arange(self.length, 0, -1) - 0.5) * self.cell
        # Half a megabyte each: taken anew at every step, the memory costs as much as the sums.
        self._product = np.empty((len(PRICE_RANGE), *self._spectrum.shape), dtype=np.complex128)
        self._worth = np.empty((len(PRICE_RANGE), len(self.delays), self._size))
        breathe()

    def step(
        self, value: Array, slope: Array, prices: Array
    ) -> tuple[Array, Array, NDArray[np.intp], NDArray[np.intp]]:
        """Go one step back: return the new value and linear part, and the best delays on the grid and below it.

        `value` (prices, cells) at the middle of each cell; below 0 it is s - `slope`.
        """
        late = self._late[None, :] - slope[:, None]
        padded = np.concatenate([late, value], axis=1)
        spectra = np.fft.rfft(padded, self._size, axis=1)
        product = np.multiply(spectra[:, None, :], self._spectrum[None], out=self._product)
        worth = np.fft.irfft(product, self._size, axis=2, out=self._worth)
        worth = worth[:, :, self.length : self.length + self.grid]
        worth -= (prices[:, None] * self.chance + self._beyond)[:, :, None]
        worth[:, -1] += _PREFER_NEVER
        best = worth.argmax(axis=1)
        cost = self.mean[None, :] + prices[:, None] * self.chance[None, :]
        best_late = cost.argmin(axis=1)
        new_slope = slope + cost.min(axis=1)
        return np.take_along_axis(worth, best[:, None, :], axis=1)[:, 0], new_slope, best, best_late


def _hedged(first_token: Distribution, copy: Distribution, delay: float) -> tuple[Array, Array]:
    """Return the time to the first token, where a copy is sent after `delay` seconds, as `_area` does."""
    if math.isinf(delay):
        return _area(first_token.values, first_token.exceeds)

    def exceeds(seconds: Array) -> Array:
        return first_token.exceeds(seconds) * np.where(seconds >= delay, copy.exceeds(seconds - delay), 1.0)

    return _area(np.concatenate([first_token.values, [delay], copy.values + delay]), exceeds)


def _area(jumps: Array, exceeds: Callable[[Array], Array]) -> tuple[Array, Array]:
    """Return where the distribution may jump, from 0 on, and the area below P(X > t) up to there, exactly.

    The last area is the mean.
    """
    knots = np.unique(np.append(jumps, 0.0))
    return knots, np.concatenate([[0.0], np.cumsum(exceeds(knots[:-1]) * np.diff(knots))])


def _on_grid(knots: Array, area: Array, cell: float, length: int) -> Array:
    """Return the probabilities of 0, 1, 2, ... cells with the mean of the distribution; the last takes what is left.

    A value between two cells is shared by both: the probability of a cell is the second difference of the area.
    """
    survival = np.diff(np.interp(np.arange(length) * cell, knots, area)) / cell
    mass: Array = -np.diff(survival, prepend=1.0, append=0.0)
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
