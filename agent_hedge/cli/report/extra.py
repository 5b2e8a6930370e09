"""What hedges added to the bill: their own prompts, and the completions of those that lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent_hedge.core.step import Certainty

Row = Mapping[str, Any]


@dataclass(slots=True)
class Extra:
    """Money, between two bounds: a loser rarely says how much of its prompt the provider found in its cache."""

    at_least: float = 0.0
    """Every prompt of a hedge at the price of cached tokens."""
    at_most: float = 0.0
    """At the full price: nobody had sent the prompt there before."""
    priced: int = 0
    unpriced: int = 0
    """Hedges whose price, or size of prompt, is not known."""

    def add(self, attempts: Sequence[tuple[Row, Mapping[str, Any]]]) -> None:
        """Count the attempts of one step, each with its receipt."""
        hedges = [(row, receipt) for row, receipt in attempts if row["role"] == "hedge"]
        if not hedges:
            return
        sizes = [row["tokens_input"] for row, _ in attempts if row["tokens_input"] is not None]
        for row, receipt in hedges:
            size = row["tokens_input"] if row["tokens_input"] is not None else max(sizes, default=None)
            price = receipt.get("price")
            if size is None or not isinstance(price, dict):
                self.unpriced += 1
                continue
            self.priced += 1
            if row["computed_certainty"] == Certainty.EXACT:  # by the provider's own word
                most = least = min(receipt.get("cached", 0), size)
            else:
                most, least = size, 0
            self.at_least += _prompt(price, size, cached=most)
            self.at_most += _prompt(price, size, cached=least)
        for row, receipt in attempts:
            price = receipt.get("price")
            if row["outcome"] != "won" and isinstance(price, dict):
                lost = (row["tokens_computed"] or 0) * price.get("output", 0.0) / 1e6
                self.at_least += lost
                self.at_most += lost

    def as_dict(self) -> dict[str, Any] | None:
        """Return plain data; None where nothing has a price."""
        if not self.priced:
            return None
        return {"at_least": self.at_least, "at_most": self.at_most, "hedges_unpriced": self.unpriced}


def _prompt(price: Mapping[str, float], size: int, *, cached: int) -> float:
    full = price.get("input", 0.0)
    return (cached * price.get("cached_input", full) + (size - cached) * full) / 1e6
