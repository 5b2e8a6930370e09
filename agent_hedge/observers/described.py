"""What a target is, in the conventions' words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """Who serves a target, where, and (for a chat model) under which model name; empty where it is not known."""

    provider: str = ""
    model: str = ""
    address: str = ""
    port: int | None = None


NOTHING = Described()
Describe = Callable[[str], Described]
"""Target name -> what is known of it."""


def describe_nothing(_: str) -> Described:
    return NOTHING
