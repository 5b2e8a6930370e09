"""Hedged LLM steps for LangGraph agents."""

__version__ = "0.1.0"
