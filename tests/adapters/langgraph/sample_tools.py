"""Imported from inside a node's body."""

from __future__ import annotations

from langchain_core.tools import tool


@tool
def pay(to: str) -> str:
    """Do something that cannot be undone."""
    return to
