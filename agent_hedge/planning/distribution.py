"""A distribution of seconds as a step function: what tables are built from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """`survival[i]` is P(X > values[i]); `values` in seconds, ascending. Mass that never fell is put on the last."""

    values: Array
    survival: Array

    @classmethod
    def of_samples(cls, samples: Sequence[float] | Array) -> Distribution:
        """Return the empirical distribution of seconds."""
        values = np.sort(np.asarray(samples, dtype=np.float64))
        return cls(values, 1.0 - np.arange(1, len(values) + 1) / len(values))

    @classmethod
    def of_curve(cls, values: Sequence[float], reached: Sequence[float]) -> Distribution:
        """Return the distribution of a Kaplan-Meier curve: P(X <= values[i]) = reached[i]."""
        return cls(np.asarray(values, dtype=np.float64), 1.0 - np.clip(np.asarray(reached, dtype=np.float64), 0.0, 1.0))

    def exceeds(self, seconds: Array) -> Array:
        """Return P(X > t) for each t (1 below 0, 0 from the last value on)."""
        index = np.searchsorted(self.values, seconds, side="right") - 1
        result = np.where(index < 0, 1.0, self.survival[np.maximum(index, 0)])
        return np.where(seconds >= self.values[-1], 0.0, result)

    def quantile(self, q: float) -> float:
        """Return the smallest value that P(X <= value) >= q."""
        index = int(np.searchsorted(1.0 - self.survival, q - 1e-12, side="left"))
        return float(self.values[min(index, len(self.values) - 1)])

    @property
    def mean(self) -> float:
        steps = np.diff(self.values, prepend=0.0)
        before = np.concatenate(([1.0], self.survival[:-1]))
        return float(np.sum(steps * before))
