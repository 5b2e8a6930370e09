"""LangGraph: what a graph may do is read before it runs, and its nodes are raced while it runs."""
